"""How data blocks lie in messages: bytes of the planes, one after another, without gaps.

The messages of a step, one a peer, stand in one buffer, so that they are packed and unpacked at
once. Each begins at a multiple of `dcp.memory.MESSAGE_ALIGNMENT_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dcp.blocks import BlockGraph
from dcp.instructions import KIND_OF, Buffer, Items, Program
from dcp.memory import padded_bytes
from dcp.runtime.attention_calls import KEY_SIDE
from dcp.runtime.buffers import NARROW_PLANES, WIDE_PLANES, PlaneDtypes


class Message(NamedTuple):
    """One message: its peer, its first block, and its bytes in the buffer of the step."""

    peer: int
    block: int
    begin: int
    end: int


class Content(NamedTuple):
    """A data block in a message: its slot, and the first byte and the dtype of each plane."""

    slot: int
    block: int
    group: int
    begins: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepMessages:
    """All messages of a step in one direction.

    Attributes:
        messages: One a peer, peers in the order of their first item.
        contents: What they hold, in order.
        nbytes: Bytes of the buffer for all of them.
    """

    messages: tuple[Message, ...]
    contents: tuple[Content, ...]
    nbytes: int


class ProgramMessages:
    """The messages of a program's launches, laid out when they are first asked for."""

    def __init__(self, blocks: BlockGraph, program: Program) -> None:
        self._head_dim = blocks.spec.head_dim
        self._dtypes = PlaneDtypes.of(blocks.spec)
        self._lengths: list[int] = blocks.token_length.tolist()
        self._query_heads: list[int] = blocks.groups.q_count.tolist()
        self._buffers: list[int] = program.slots["buffer"].tolist()
        self._laid_out: dict[int, StepMessages] = {}

    @classmethod
    def of(cls, blocks: BlockGraph, program: Program) -> ProgramMessages:
        """Those of a program, kept as long as the program lives."""
        if program not in _kept:
            _kept[program] = cls(blocks, program)
        return _kept[program]

    def of_items(self, items: Items) -> StepMessages:
        """Messages of the sends or the receives of one of the program's launches."""
        if id(items) not in self._laid_out:
            self._laid_out[id(items)] = self._lay_out(items)
        return self._laid_out[id(items)]

    def _lay_out(self, items: Items) -> StepMessages:
        by_peer: dict[int, list[tuple[int, int, int]]] = {}
        for peer, slot, block, group in items.tolist():
            by_peer.setdefault(peer, []).append((slot, block, group))
        messages, contents, end = [], [], 0
        for peer, what in by_peer.items():
            begin = end = padded_bytes(end)
            for slot, block, group in what:
                content, end = self._content(slot, block, group, end)
                contents.append(content)
            messages.append(Message(peer, what[0][1], begin, end))
        return StepMessages(
            messages=tuple(messages), contents=tuple(contents), nbytes=padded_bytes(end)
        )

    def _content(self, slot: int, block: int, group: int, begin: int) -> tuple[Content, int]:
        """A data block whose first byte is given, and the byte after its last."""
        kind = KIND_OF[Buffer(self._buffers[slot])]
        rows = self._lengths[block] * (1 if kind in KEY_SIDE else self._query_heads[group])
        widths = [self._head_dim] * WIDE_PLANES[kind] + [1] * NARROW_PLANES.get(kind, 0)
        dtypes, begins = self._dtypes.wire(kind), []
        for width, dtype in zip(widths, dtypes, strict=True):
            begins.append(begin)
            begin += rows * width * dtype.itemsize
        return Content(slot, block, group, tuple(begins), dtypes), begin


_kept: WeakKeyDictionary[Program, ProgramMessages] = WeakKeyDictionary()


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
