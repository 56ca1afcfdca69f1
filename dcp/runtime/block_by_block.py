"""Instructions of a program by calls of a kernel's block operations, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from dcp.blocks import BlockGraph, Kind
from dcp.instructions import Attention, CommLaunch, Copy, Items, Program, Reduce
from dcp.kernel_interface import Kernel, ProgramKernel
from dcp.runtime import messages
from dcp.runtime.attention_calls import AttentionCall, ProgramCalls, Span, Target
from dcp.runtime.buffers import Buffers, Planes, copy_planes
from dcp.runtime.messages import ProgramMessages


class BlockByBlock(ProgramKernel):
    """What `Kernel.bind` gives unless a kernel has something better.

    Args:
        kernel: Computes the blocks.
        blocks, program, buffers: As for `Kernel.bind`.
    """

    def __init__(
        self, kernel: Kernel, blocks: BlockGraph, program: Program, buffers: Buffers
    ) -> None:
        self._kernel = kernel
        self._scale = blocks.spec.scale
        self._buffers = buffers
        self._calls = ProgramCalls.of(blocks, program)
        self._messages = ProgramMessages.of(blocks, program)

    # --- attention -------------------------------------------------------------------------

    def attend(self, instruction: Attention) -> None:
        """See `ProgramKernel.attend`."""
        held: Planes = ()
        lies: tuple[tuple[Span, ...], int] | None = None
        for call in self._calls.calls(instruction.items):
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

    def reduce(self, instruction: Reduce) -> None:
        """See `ProgramKernel.reduce`."""
        view = self._buffers.view
        for row in _records(instruction.items):
            where = row["block"], row["group"]
            target, new = view(row["dst"], *where), view(row["src"], *where)
            self._add(self._buffers.kind(row["dst"]), target, new, row["fresh"])

    def copy(self, instruction: Copy) -> None:
        """See `ProgramKernel.copy`."""
        for row in _records(instruction.items):
            where = row["block"], row["group"]
            self._buffers.store(self._buffers.view(row["src"], *where), row["dst"], *where)

    # --- messages ----------------------------------------------------------------------------

    def pack(self, launch: CommLaunch, data: Tensor) -> None:
        """See `ProgramKernel.pack`."""
        for slot, block, group, begins in self._messages.of_items(launch.sends).contents:
            planes = self._buffers.view(slot, block, group)
            dtypes = self._buffers.dtypes.wire(self._buffers.kind(slot))
            for plane, dtype, begin in zip(planes, dtypes, begins, strict=False):
                messages.write(plane, data, begin, dtype)

    def unpack(self, launch: CommLaunch, data: Tensor) -> None:
        """See `ProgramKernel.unpack`."""
        for slot, block, group, begins in self._messages.of_items(launch.receives).contents:
            for plane, begin in zip(self._buffers.view(slot, block, group), begins, strict=False):
                messages.read(plane, data, begin)


def _records(items: Items) -> Iterator[dict[str, int]]:
    """Rows of a structured array, by field name, as plain integers."""
    names: Any = items.dtype.names
    return (dict(zip(names, row, strict=True)) for row in items.tolist())
