"""Whole instructions in Triton: one launch for a forward attention, two for a backward one.

The tables of a program are made when it first runs in memory of this layout, brought to the
device together, and kept as long as the program lives; so between instructions nothing moves from
the host. They point at slots where these lie: nothing is gathered before a launch. Uploads are
ordered with launches by the current stream alone, so there is one computing stream a device.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import torch
from torch import Tensor

from dcp.blocks import BlockGraph
from dcp.instructions import Attention, Buffer, CommLaunch, Copy, Instruction, Program, Reduce
from dcp.kernel_interface import ProgramKernel
from dcp.kernels.triton_launch import check, launch
from dcp.kernels.triton_launches import Drafter, Key, Launch
from dcp.kernels.triton_places import Plane, strides_of
from dcp.kernels.triton_tables import Table, build
from dcp.kernels.triton_tiling import Tiling
from dcp.runtime.buffers import Buffers
from dcp.runtime.once import once_a_program

Prepared: TypeAlias = dict[Key, list[tuple[Launch, Table]]]


class TritonProgram(ProgramKernel):
    """A program run by launches that each serve a whole instruction.

    Args:
        blocks, program, buffers: As for `Kernel.bind`.
        forward, backward: Tiles of the attention kernels.

    Raises:
        DtypeError, ShapeError: the kernels have no code for these tensors.
    """

    def __init__(
        self,
        blocks: BlockGraph,
        program: Program,
        buffers: Buffers,
        forward: Tiling,
        backward: Tiling,
    ) -> None:
        (q,) = buffers.planes(Buffer.Q)
        check(q, *buffers.planes(Buffer.KV), *buffers.planes(Buffer.DO)[:1])
        self._buffers = buffers
        prepared = _of_layouts(blocks, program)
        key = q.device, strides_of(buffers), forward, backward
        if key not in prepared:
            drafter = Drafter(blocks, program, buffers, forward, backward)
            prepared[key] = _prepared(drafter, q.device)
        self._prepared = prepared[key]

    def attend(self, instruction: Attention) -> None:
        """See `ProgramKernel.attend`."""
        self._run("run", instruction)

    def reduce(self, instruction: Reduce) -> None:
        """See `ProgramKernel.reduce`."""
        self._run("run", instruction)

    def copy(self, instruction: Copy) -> None:
        """See `ProgramKernel.copy`."""
        self._run("run", instruction)

    def pack(self, launch: CommLaunch, data: Tensor) -> None:
        """See `ProgramKernel.pack`."""
        self._run("pack", launch, data)

    def unpack(self, launch: CommLaunch, data: Tensor) -> None:
        """See `ProgramKernel.unpack`."""
        self._run("unpack", launch, data)

    def _run(self, what: str, instruction: Instruction, data: Tensor | None = None) -> None:
        for one, table in self._prepared[what, id(instruction)]:
            tensors = tuple(
                self._tensor(argument, data)
                if isinstance(argument, Plane)
                else tuple(self._tensor(plane, data) for plane in argument)
                for argument in one.arguments
            )
            launch(one.name, table, one.tile, tensors, **one.more)

    def _tensor(self, plane: Plane, data: Tensor | None) -> Tensor:
        if plane.buffer is not None:
            return self._buffers.planes(plane.buffer)[plane.number].view(plane.dtype)
        assert data is not None  # only packing and unpacking name messages
        return data.view(plane.dtype)


@once_a_program
def _of_layouts(blocks: BlockGraph, program: Program) -> dict[Hashable, Prepared]:
    """What a program has been prepared for: none at first; filled by whoever asks."""
    return {}


def _prepared(drafter: Drafter, device: torch.device) -> Prepared:
    launches = dict(drafter.launches())
    tables = iter(build([draft for several in launches.values() for _, draft in several], device))
    return {key: [(one, next(tables)) for one, _ in several] for key, several in launches.items()}
