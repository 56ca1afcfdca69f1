"""How data blocks lie in messages: bytes of the planes, one after another, without gaps.

The messages of a step, one a peer, stand in one buffer, so that they are packed and unpacked at
once. Each begins at a multiple of `dcp.memory.MESSAGE_ALIGNMENT_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dcp.arrays import IntArray
from dcp.blocks import KEY_SIDE, BlockGraph
from dcp.instructions import KIND_OF, Buffer, Items, Program
from dcp.memory import padded_bytes
from dcp.runtime.buffers import NARROW_PLANES, WIDE_PLANES, PlaneDtypes
from dcp.runtime.once import once_a_program

_MOST_PLANES = 3


class Message(NamedTuple):
    """One message: its peer, its first block, and its bytes in the buffer of the step."""

    peer: int
    block: int
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, eq=False)
class StepMessages:
    """All messages of a step in one direction.

    Attributes:
        messages: One a peer, peers in the order of their first item.
        items: The data blocks in them, one after another.
        begins: First byte of each plane of each of these, [items, 3]; a kind may have fewer.
        nbytes: Bytes of the buffer for all of them.
    """

    messages: tuple[Message, ...]
    items: Items
    begins: IntArray
    nbytes: int

    @cached_property
    def contents(self) -> list[tuple[int, int, int, list[int]]]:
        """Slot, block, group and begins of every data block."""
        columns = [self.items[name].tolist() for name in ("slot", "block", "group")]
        return list(zip(*columns, self.begins.tolist(), strict=True))


class ProgramMessages:
    """The messages of a program's launches, laid out when they are first asked for."""

    def __init__(self, blocks: BlockGraph, program: Program) -> None:
        self._lengths = blocks.token_length
        self._query_heads = blocks.groups.q_count
        self._buffers = program.slots["buffer"]
        self._one_row = np.array([KIND_OF[buffer] in KEY_SIDE for buffer in Buffer])
        self._row_bytes = _row_bytes(PlaneDtypes.of(blocks.spec), blocks.spec.head_dim)
        self._laid_out: dict[int, StepMessages] = {}

    @staticmethod
    @once_a_program
    def of(blocks: BlockGraph, program: Program) -> ProgramMessages:
        """Those of a program, kept as long as the program lives."""
        return ProgramMessages(blocks, program)

    def of_items(self, items: Items) -> StepMessages:
        """Messages of the sends or the receives of one of the program's launches."""
        if id(items) not in self._laid_out:
            self._laid_out[id(items)] = self._lay_out(items)
        return self._laid_out[id(items)]

    def _lay_out(self, items: Items) -> StepMessages:
        _, first, number = np.unique(items["peer"], return_index=True, return_inverse=True)
        items = items[np.argsort(first[number], kind="stable")]
        buffer, group = self._buffers[items["slot"]], items["group"]
        rows = self._lengths[items["block"]]
        rows = rows * np.where(self._one_row[buffer], 1, self._query_heads[group])
        ends = np.cumsum(rows[:, None] * self._row_bytes[buffer], axis=None)  # without padding
        begins = np.append(0, ends)[:-1].reshape(-1, _MOST_PLANES)
        messages, total = [], 0
        for low, high in _runs(items["peer"]):
            begin, total = total, total + int(ends[_MOST_PLANES * high - 1] - begins[low, 0])
            begins[low:high] += begin - begins[low, 0]
            peer, block = items["peer"][low], items["block"][low]
            messages.append(Message(int(peer), int(block), begin, total))
            total = padded_bytes(total)
        return StepMessages(messages=tuple(messages), items=items, begins=begins, nbytes=total)


def _runs(values: IntArray) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of equal values."""
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    yield from pairwise([0, *edges.tolist(), len(values)] if len(values) else [])


def _row_bytes(dtypes: PlaneDtypes, head_dim: int) -> IntArray:
    """Bytes of a row of each plane on the wire, [buffers, 3]; 0 for planes that are not there."""
    table = np.zeros((len(Buffer), _MOST_PLANES), dtype=np.int64)
    for buffer in Buffer:
        kind = KIND_OF[buffer]
        widths = [head_dim] * WIDE_PLANES[kind] + [1] * NARROW_PLANES.get(kind, 0)
        for plane, (width, dtype) in enumerate(zip(widths, dtypes.wire(kind), strict=True)):
            table[buffer, plane] = width * dtype.itemsize
    return table


def write(plane: Tensor, data: Tensor, begin: int, dtype: torch.dtype) -> None:
    """Write a plane into messages (uint8, 1-D) from a byte on, cast to its dtype on the wire."""
    part = data[begin : begin + plane.numel() * dtype.itemsize]
    if begin % dtype.itemsize == 0:
        part.view(dtype).view(plane.shape).copy_(plane)
    else:  # a tensor cannot start there, but bytes can
        part.copy_(plane.to(dtype).contiguous().view(-1).view(torch.uint8))


def read(plane: Tensor, data: Tensor, begin: int) -> None:
    """Fill a contiguous plane, of the dtype on the wire, from messages from a byte on."""
    flat = plane.view(-1).view(torch.uint8)
    flat.copy_(data[begin : begin + len(flat)])
