"""Runs one rank's program, instruction by instruction, with any kernel and transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from dcp.blocks import BlockGraph, Kind
from dcp.instructions import Attention, CommLaunch, CommWait, Copy, Items, Program, Reduce
from dcp.kernel_interface import Kernel
from dcp.runtime import messages
from dcp.runtime.attention_calls import AttentionCall, ProgramCalls, Span, Target
from dcp.runtime.buffers import Buffers, Planes, copy_planes
from dcp.runtime.tracing import UNWATCHED, Watch
from dcp.runtime.transports import Receive, Send, Transport


class Executor:
    """One run of a program.

    Args:
        blocks: The plan's blocks.
        program: Forward or backward program of one rank.
        inputs: Planes of the home inputs, as for `Buffers`.
        kernel: Computes attention.
        transport: This rank's transport.
        watch: Accompanies the instructions.
    """

    def __init__(
        self,
        blocks: BlockGraph,
        program: Program,
        inputs: dict[Kind, Planes],
        *,
        kernel: Kernel,
        transport: Transport,
        watch: Watch = UNWATCHED,
    ) -> None:
        self._program = program
        self._watch = watch
        self._scale = blocks.spec.scale
        self._kernel = kernel
        self._transport = transport
        self._buffers = Buffers(blocks, program, inputs)
        self._calls = ProgramCalls.of(blocks, program)
        self._arriving: dict[int, list[list[Planes]]] = {}

    def run(self) -> Iterator[int]:
        """Run the program, and yield a step whenever its messages are not ready.

        Whoever drives the iterator resumes it when they are: ranks of one process take turns in
        this way. A transport that blocks by itself never makes it yield.

        Raises:
            TransportError: a message did not arrive or leave in time.
        """
        for instruction in self._watch.each(self._program.instructions):
            if isinstance(instruction, Attention):
                self._attend(instruction.items)
            elif isinstance(instruction, Reduce):
                self._reduce(instruction.items)
            elif isinstance(instruction, Copy):
                self._copy(instruction.items)
            elif isinstance(instruction, CommLaunch):
                self._launch(instruction)
            elif isinstance(instruction, CommWait):
                while not self._transport.ready(instruction.step):
                    yield instruction.step
                self._arrive(instruction.step)
        self._transport.finish()

    def output(self, kind: Kind) -> Planes:
        """Planes of a home output once the program has run."""
        return self._buffers.output(kind)

    # --- attention -------------------------------------------------------------------------

    def _attend(self, items: Items) -> None:
        held: Planes = ()
        lies: tuple[tuple[Span, ...], int] | None = None
        for call in self._calls.calls(items):
            if lies != (call.kv, call.group):  # keys that two calls share are gathered once
                lies = call.kv, call.group
                held = self._buffers.gather(*lies)
            if call.dout:
                self._backward(call, *held)
            else:
                self._forward(call, *held)

    def _forward(self, call: AttentionCall, k: Tensor, v: Tensor) -> None:
        (q,) = self._buffers.gather(call.q, call.group)
        new = self._kernel.forward(q, k, v, call.mask, self._scale)
        self._add_parts(Kind.O, call.query_targets, call.group, new)

    def _backward(self, call: AttentionCall, k: Tensor, v: Tensor) -> None:
        (q,) = self._buffers.gather(call.q, call.group)
        dout, lse, delta = self._buffers.gather(call.dout, call.group)
        dq, dk, dv = self._kernel.backward(q, k, v, dout, lse, delta, call.mask, self._scale)
        self._add_parts(Kind.DQ, call.query_targets, call.group, (dq,))
        self._add_parts(Kind.DKV, call.key_targets, call.group, (dk, dv))

    def _add_parts(self, kind: Kind, targets: tuple[Target, ...], group: int, new: Planes) -> None:
        for target in targets:
            part = tuple(plane[target.begin : target.end] for plane in new)
            self._add(kind, self._buffers.at(target.span, group), part, target.fresh)

    def _add(self, kind: Kind, target: Planes, new: Planes, fresh: int) -> None:
        """Add a partial result to an accumulator, or begin it."""
        if fresh:
            copy_planes(target, new)
        elif kind == Kind.O:
            self._kernel.merge(*target, *new)
        else:
            for total, value in zip(target, new, strict=True):
                total.add_(value)

    # --- reduction and copy ------------------------------------------------------------------

    def _reduce(self, items: Items) -> None:
        view = self._buffers.view
        for row in _records(items):
            where = row["block"], row["group"]
            target, new = view(row["dst"], *where), view(row["src"], *where)
            self._add(self._buffers.kind(row["dst"]), target, new, row["fresh"])

    def _copy(self, items: Items) -> None:
        for row in _records(items):
            where = row["block"], row["group"]
            self._buffers.store(self._buffers.view(row["src"], *where), row["dst"], *where)

    # --- communication -----------------------------------------------------------------------

    def _launch(self, launch: CommLaunch) -> None:
        sends = [
            Send(peer=peer, block=rows[0]["block"], data=self._packed(rows))
            for peer, rows in _by_peer(launch.sends).items()
        ]
        receives = []
        for peer, rows in _by_peer(launch.receives).items():
            planes = [self._buffers.view(row["slot"], row["block"], row["group"]) for row in rows]
            self._arriving.setdefault(launch.step, []).append(planes)
            receives.append(
                Receive(peer=peer, block=rows[0]["block"], nbytes=messages.size_bytes(planes))
            )
        self._transport.launch(launch.step, sends, receives)

    def _packed(self, rows: list[dict[str, int]]) -> Tensor:
        buffers = self._buffers
        return messages.pack(
            [
                (
                    buffers.view(row["slot"], row["block"], row["group"]),
                    buffers.dtypes.wire(buffers.kind(row["slot"])),
                )
                for row in rows
            ]
        )

    def _arrive(self, step: int) -> None:
        arrived = zip(self._transport.receive(step), self._arriving.pop(step), strict=True)
        for message, planes in arrived:
            messages.unpack(message, planes)


def _records(items: Items) -> Iterator[dict[str, int]]:
    """Rows of a structured array, by field name, as plain integers."""
    names: Any = items.dtype.names
    return (dict(zip(names, row, strict=True)) for row in items.tolist())


def _by_peer(items: Items) -> dict[int, list[dict[str, int]]]:
    """Rows of each peer, in their order; peers in the order of their first row."""
    grouped: dict[int, list[dict[str, int]]] = {}
    for row in _records(items):
        grouped.setdefault(row["peer"], []).append(row)
    return grouped
