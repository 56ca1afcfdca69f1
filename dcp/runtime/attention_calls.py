"""Attention items to kernel calls: neighbouring blocks of a program become one call.

A kernel's time goes into pairs only while its calls are large: every call of a query row ends in
a merge of partial results, and few rows are computed slowly. So the items of an instruction are
merged into rectangles of several query blocks by several key blocks, with one mask over all of
them. Slots that lie next to each other in memory are one view; others are copied together.

A program is compiled once, however often it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import IntArray
from dcp.blocks import KEY_SIDE, BlockGraph
from dcp.instructions import HOME_BUFFERS, KIND_OF, Buffer, Items, Program
from dcp.kernel_interface import BlockMask
from dcp.runtime.once import once_a_program

# Above, calls are efficient already, and copies and temporary tensors only grow.
_MOST_QUERIES = 2048
_MOST_KEYS = 16384
_MOST_SLICES = 48  # of a mask over several blocks; masks of more are left to their blocks


class Span(NamedTuple):
    """Tokens of one head group that lie together in a buffer, from a row on."""

    buffer: int
    offset: int
    tokens: int


class Target(NamedTuple):
    """Where some tokens of a result go, and whether that accumulator holds nothing yet."""

    span: Span
    begin: int
    end: int
    fresh: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """One call of a kernel.

    Attributes:
        group: Head group.
        q, kv: Where its queries and keys lie, in order.
        dout: Where the gradient of its output lies; empty in forward.
        mask: Allowed pairs of all of them; None where all are.
        query_targets: Where out, or dq, goes.
        key_targets: Where dk and dv go; empty in forward.
    """

    group: int
    q: tuple[Span, ...]
    kv: tuple[Span, ...]
    dout: tuple[Span, ...]
    mask: BlockMask | None
    query_targets: tuple[Target, ...]
    key_targets: tuple[Target, ...]


class ProgramCalls:
    """The calls of a program's attention instructions, compiled when they are first asked for."""

    def __init__(self, blocks: BlockGraph, program: Program) -> None:
        self._lengths: list[int] = blocks.token_length.tolist()
        self._sequences: list[int] = blocks.token_seq.tolist()
        self._query_heads: list[int] = blocks.groups.q_count.tolist()
        self._slots: list[tuple[int, int, int, int]] = program.slots.tolist()
        edges = program.mask_ptr.tolist()
        self._masks = [program.mask_slices[low:high] for low, high in pairwise(edges)]
        self._compiled: dict[int, list[AttentionCall]] = {}

    @staticmethod
    @once_a_program
    def of(blocks: BlockGraph, program: Program) -> ProgramCalls:
        """Those of a program, kept as long as the program lives."""
        return ProgramCalls(blocks, program)

    def calls(self, items: Items) -> list[AttentionCall]:
        """Calls for the items of one of the program's instructions."""
        if id(items) not in self._compiled:
            self._compiled[id(items)] = self._compile(items)
        return self._compiled[id(items)]

    # --- compiling ---------------------------------------------------------------------------

    def _compile(self, items: Items) -> list[AttentionCall]:
        fresh = _fresh_slots(items)
        return [
            self._call(part, mask, fresh)
            for tiles in self._grids(items)
            for rectangle in _rectangles(tiles, self._lengths)
            for part, mask in self._split(rectangle)
        ]

    def _grids(self, items: Items) -> Iterator[list[_Tile]]:
        """Tiles of each sequence and head group; none twice, so that they form a grid."""
        grids: dict[tuple[int, int, int], dict[tuple[_Part, _Part], _Tile]] = {}
        for tile in _tiles(items):
            key, repeat = (tile.q, tile.kv), 0
            while key in (grid := grids.setdefault(self._grid_of(tile, repeat), {})):
                repeat += 1
            grid[key] = tile
        return (list(grid.values()) for grid in grids.values())

    def _grid_of(self, tile: _Tile, repeat: int) -> tuple[int, int, int]:
        return tile.group, self._sequences[tile.q.block], repeat

    def _split(self, rectangle: list[_Tile]) -> Iterator[tuple[list[_Tile], IntArray]]:
        """Undo a rectangle whose mask would be shredded; parts with their masks."""
        mask = self._mask(rectangle)
        if len(rectangle) == 1 or len(mask) <= _MOST_SLICES:
            yield rectangle, mask
        else:
            yield from (([tile], self._mask([tile])) for tile in rectangle)

    def _mask(self, rectangle: list[_Tile]) -> IntArray:
        """Allowed pairs in the rectangle's coordinates, simplified slices."""
        rows, columns = _sides(rectangle)
        row_begin = dict(zip(rows, self._begins(rows), strict=False))
        column_begin = dict(zip(columns, self._begins(columns), strict=False))
        placed = []
        for tile in rectangle:
            mask = self._masks[tile.mask]
            if not tile.mask:
                size = self._lengths[tile.q.block], self._lengths[tile.kv.block]
                mask = slice_ops.as_slices([0, size[0], 0, size[1], -size[0], size[1]])
            placed.append(slice_ops.shift(mask, -row_begin[tile.q], -column_begin[tile.kv]))
        return slice_ops.simplify(np.concatenate(placed))

    def _call(self, rectangle: list[_Tile], mask: IntArray, fresh: set[int]) -> AttentionCall:
        rows, columns = _sides(rectangle)
        group = rectangle[0].group
        q_len, kv_len = self._begins(rows)[-1], self._begins(columns)[-1]
        backward = rows[0].second >= 0
        return AttentionCall(
            group=group,
            q=self._spans([(part.first, part.block) for part in rows], group),
            kv=self._spans([(part.first, part.block) for part in columns], group),
            dout=self._spans([(part.second, part.block) for part in rows if backward], group),
            mask=None if int(slice_ops.size(mask).sum()) == q_len * kv_len else BlockMask.of(mask),
            query_targets=self._targets(rows, group, fresh),
            key_targets=self._targets(columns, group, fresh) if backward else (),
        )

    def _begins(self, parts: list[_Part]) -> list[int]:
        """First token of each part in their concatenation, and all tokens."""
        return [0, *np.cumsum([self._lengths[part.block] for part in parts]).tolist()]

    def _spans(self, contents: list[tuple[int, int]], group: int) -> tuple[Span, ...]:
        """Spans of (slot, block), neighbours joined."""
        spans: list[Span] = []
        for slot, block in contents:
            buffer, offset, _, _ = self._slots[slot]
            span = Span(buffer, offset, self._lengths[block])
            joined = self._joined(spans[-1], span, group) if spans else None
            spans[-1:] = [joined] if joined else [*spans[-1:], span]
        return tuple(spans)

    def _targets(self, parts: list[_Part], group: int, fresh: set[int]) -> tuple[Target, ...]:
        """Targets of a result, neighbours joined; what they begin is no longer fresh."""
        targets: list[Target] = []
        for part, (begin, end) in zip(parts, pairwise(self._begins(parts)), strict=True):
            buffer, offset, _, _ = self._slots[part.result]
            target = Target(Span(buffer, offset, end - begin), begin, end, part.result in fresh)
            fresh.discard(part.result)
            last = targets[-1] if targets else None
            joined = last and self._joined(last.span, target.span, group)
            if last and joined and last.fresh == target.fresh:
                targets[-1] = Target(joined, last.begin, end, target.fresh)
            else:
                targets.append(target)
        return tuple(targets)

    def _joined(self, first: Span, second: Span, group: int) -> Span | None:
        """One span for two, where the second follows the first in memory."""
        buffer = Buffer(first.buffer)
        one_row = buffer in HOME_BUFFERS or KIND_OF[buffer] in KEY_SIDE
        rows = first.tokens * (1 if one_row else self._query_heads[group])
        if second.buffer != first.buffer or second.offset != first.offset + rows:
            return None
        return Span(first.buffer, first.offset, first.tokens + second.tokens)


class _Part(NamedTuple):
    """A block on one side: slots of its input, of dout (-1 for none), of its result (-1)."""

    block: int
    first: int
    second: int
    result: int


class _Tile(NamedTuple):
    """An item."""

    group: int
    q: _Part
    kv: _Part
    mask: int


def _tiles(items: Items) -> Iterator[_Tile]:
    backward = "dout" in (items.dtype.names or ())
    for row in items.tolist():
        if backward:
            q, kv, dout, dq, dkv, q_block, kv_block, group, mask, _, _ = row
        else:
            q, kv, dq, q_block, kv_block, group, mask, _ = row
            dout = dkv = -1
        yield _Tile(group, _Part(q_block, q, dout, dq), _Part(kv_block, kv, -1, dkv), mask)


def _fresh_slots(items: Items) -> set[int]:
    """Accumulators that hold nothing before the instruction."""
    if "dout" not in (items.dtype.names or ()):
        return set(items["out"][items["fresh"] != 0].tolist())
    queries = items["dq"][items["fresh_dq"] != 0].tolist()
    return {*queries, *items["dkv"][items["fresh_dkv"] != 0].tolist()}


def _sides(rectangle: list[_Tile]) -> tuple[list[_Part], list[_Part]]:
    """Query parts and key parts of a rectangle, by block."""
    return sorted({tile.q for tile in rectangle}), sorted({tile.kv for tile in rectangle})


def _rectangles(tiles: list[_Tile], lengths: list[int]) -> Iterator[list[_Tile]]:
    """Join rows of query blocks that see much the same key blocks.

    Tiles that a rectangle lacks are forbidden by its mask, so they are cut out again by kernels.
    """
    joined: list[_Tile] = []
    keys: set[_Part] = set()
    for _, row in groupby(sorted(tiles), key=lambda tile: tile.q):
        new = list(row)
        seen = {tile.kv for tile in new}
        tokens = sum(lengths[part.block] for part in {tile.q for tile in joined} | {new[0].q})
        alike = 2 * len(keys & seen) >= len(keys | seen)
        if joined and not (alike and tokens <= _MOST_QUERIES):
            yield from _strips(joined, lengths)
            joined, keys = [], set()
        joined, keys = joined + new, keys | seen
    if joined:
        yield from _strips(joined, lengths)


def _strips(tiles: list[_Tile], lengths: list[int]) -> Iterator[list[_Tile]]:
    """Cut a rectangle between keys where it has too many of them."""
    strip: list[_Tile] = []
    tokens = 0
    for part in sorted({tile.kv for tile in tiles}):
        if strip and tokens + lengths[part.block] > _MOST_KEYS:
            yield strip
            strip, tokens = [], 0
        strip += [tile for tile in tiles if tile.kv == part]
        tokens += lengths[part.block]
    yield strip
