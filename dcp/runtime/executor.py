"""Runs one rank's program, instruction by instruction, with any kernel and transport."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from dcp.blocks import BlockGraph, Kind
from dcp.instructions import Attention, Buffer, CommLaunch, CommWait, Copy, Program, Reduce
from dcp.kernel_interface import Kernel
from dcp.runtime.allocation import allocate
from dcp.runtime.buffers import Buffers, Planes
from dcp.runtime.messages import ProgramMessages, StepMessages
from dcp.runtime.tracing import UNWATCHED, Watch
from dcp.runtime.transports import Receive, Send, Transport


class Executor:
    """One run of a program.

    Args:
        blocks: The plan's blocks.
        program: Forward or backward program of one rank.
        inputs: Planes of the home inputs, as for `Buffers`.
        kept: In backward, what `arenas` of the forward executor gave for this program.
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
        kept: Mapping[Buffer, Planes] = MappingProxyType({}),
        kernel: Kernel,
        transport: Transport,
        watch: Watch = UNWATCHED,
    ) -> None:
        self._program = program
        self._watch = watch
        self._transport = transport
        self._device = inputs[Kind.Q][0].device
        self._buffers = Buffers(blocks, program, inputs, kept)
        self._kernel = kernel.bind(blocks, program, self._buffers)
        self._messages = ProgramMessages.of(blocks, program)
        self._arriving: dict[int, tuple[CommLaunch, Tensor]] = {}

    def run(self) -> Iterator[int]:
        """Run the program, and yield a step whenever its messages are not ready.

        Whoever drives the iterator resumes it when they are: ranks of one process take turns in
        this way. A transport that blocks by itself never makes it yield.

        Raises:
            TransportError: a message did not arrive or leave in time.
        """
        for instruction in self._watch.each(self._program.instructions):
            if isinstance(instruction, Attention):
                self._kernel.attend(instruction)
            elif isinstance(instruction, Reduce):
                self._kernel.reduce(instruction)
            elif isinstance(instruction, Copy):
                self._kernel.copy(instruction)
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

    def arenas(self, buffers: Iterable[Buffer]) -> dict[Buffer, Planes]:
        """Arenas as the program has left them."""
        return {buffer: self._buffers.planes(buffer) for buffer in buffers}

    def _launch(self, launch: CommLaunch) -> None:
        leaving = self._messages.of_items(launch.sends)
        packed = self._message_buffer(leaving)
        self._kernel.pack(launch, packed)
        coming = self._messages.of_items(launch.receives)
        arriving = self._message_buffer(coming)
        self._arriving[launch.step] = launch, arriving
        self._transport.launch(
            launch.step,
            [
                Send(peer=peer, block=block, data=packed[begin:end])
                for peer, block, begin, end in leaving.messages
            ],
            [
                Receive(peer=peer, block=block, data=arriving[begin:end])
                for peer, block, begin, end in coming.messages
            ],
        )

    def _message_buffer(self, step: StepMessages) -> Tensor:
        return allocate((step.nbytes,), torch.uint8, self._device)

    def _arrive(self, step: int) -> None:
        self._transport.receive(step)
        self._kernel.unpack(*self._arriving.pop(step))
