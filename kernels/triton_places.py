"""Where the slots of a program lie, in numbers: views for the tables of the Triton kernels.

Nothing here needs triton.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dcp.arrays import IntArray
from dcp.blocks import KEY_SIDE, BlockGraph, Kind
from dcp.instructions import (
    ACCUMULATOR,
    ARRIVAL,
    HOME_BUFFERS,
    HOME_INPUT,
    KIND_OF,
    Buffer,
    Program,
)
from dcp.kernels.triton_tables import VIEW
from dcp.runtime.buffers import NARROW_PLANES, WIDE_PLANES, Buffers


class Plane(NamedTuple):
    """A tensor of a run, seen as a dtype: a plane of a buffer, or a step's messages (None)."""

    buffer: Buffer | None
    number: int
    dtype: torch.dtype


class Places:
    """Where the slots of one program lie in the tensors of one run, or of any like it.

    Args:
        blocks: The plan's blocks.
        program: The program.
        buffers: Tensors whose strides count.
    """

    def __init__(self, blocks: BlockGraph, program: Program, buffers: Buffers) -> None:
        self.lengths = blocks.token_length
        self.query_heads = blocks.groups.q_count
        self._first_head = {False: blocks.groups.q_start, True: blocks.groups.kv_head}
        self._buffer = program.slots["buffer"]
        self._offset = program.slots["offset"].astype(np.int64)
        self._buffers = buffers
        self._head_dim = blocks.spec.head_dim

    def num_planes(self, buffer: Buffer) -> int:
        """Planes of a buffer."""
        kind = KIND_OF[buffer]
        return WIDE_PLANES[kind] + NARROW_PLANES.get(kind, 0)

    def is_wide(self, buffer: Buffer, plane: int) -> bool:
        """Whether a plane has head_dim elements a row."""
        return plane < WIDE_PLANES[KIND_OF[buffer]]

    def shapes(self, buffer: Buffer, plane: int, blocks: IntArray, groups: IntArray) -> IntArray:
        """Tokens, heads and elements of data blocks in a plane, [blocks, 3].

        Where a row is one number, the heads of a token are taken as one row.
        """
        tokens, heads = self.lengths[blocks], self._heads(buffer, groups)
        if self.is_wide(buffer, plane):
            return _columns(tokens, heads, self._head_dim)
        return _columns(tokens, 1, heads)

    def buffers_of(self, slots: IntArray) -> IntArray:
        """Buffer of every slot."""
        found: IntArray = self._buffer[slots]
        return found

    def views(self, slots: IntArray, groups: IntArray, plane: int) -> IntArray:
        """Views of a plane of slots, [slots, 4]: 0 for home tensors and 1 for arenas come first."""
        views = np.empty((len(slots), VIEW), dtype=np.int64)
        buffers = self._buffer[slots]
        for number in np.unique(buffers):
            here = buffers == number
            views[here] = self._views(Buffer(number), slots[here], groups[here], plane)
        return views

    def plane(self, buffer: Buffer, plane: int) -> Plane:
        """A plane as it is."""
        return Plane(buffer, plane, self._buffers.planes(buffer)[plane].dtype)

    def wire_dtype(self, buffer: Buffer, plane: int) -> torch.dtype:
        """Dtype of a plane in messages."""
        return self._buffers.dtypes.wire(KIND_OF[buffer])[plane]

    def pair(self, kind: Kind, plane: int) -> tuple[Plane, Plane]:
        """Home tensor and arena of an input; the home tensor twice where nothing arrives."""
        home = self.plane(HOME_INPUT[kind], plane)
        arena = ARRIVAL[kind]
        return home, self.plane(arena, plane) if self._buffers.planes(arena) else home

    def accumulator(self, kind: Kind, plane: int) -> Plane:
        """A plane of a result's accumulators."""
        return self.plane(ACCUMULATOR[kind], plane)

    def _heads(self, buffer: Buffer, groups: IntArray) -> IntArray:
        heads: IntArray = self.query_heads[groups]
        return np.ones_like(heads) if KIND_OF[buffer] in KEY_SIDE else heads

    def _views(self, buffer: Buffer, slots: IntArray, groups: IntArray, plane: int) -> IntArray:
        offset, tensor = self._offset[slots], self._buffers.planes(buffer)[plane]
        if buffer in HOME_BUFFERS:
            token, head = tensor.stride(0), tensor.stride(1)
            first = self._first_head[KIND_OF[buffer] in KEY_SIDE][groups]
            return _columns(0, offset * token + first * head, token, head)
        row = tensor.stride(0)
        return _columns(1, offset * row, self._heads(buffer, groups) * row, row)


def strides_of(buffers: Buffers) -> tuple[tuple[int, ...], ...]:
    """What views depend on besides the program."""
    return tuple(plane.stride() for buffer in HOME_BUFFERS for plane in buffers.planes(buffer))


def _columns(*columns: IntArray | int) -> IntArray:
    return np.stack(np.broadcast_arrays(*columns), axis=1).astype(np.int64)
