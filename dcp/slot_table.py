"""Slots of all ranks in one phase: collected by section, numbered rank by rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dcp.arrays import IntArray
from dcp.blocks import KEY_SIDE, BlockGraph, Kind
from dcp.instructions import KIND_OF, SLOT, Buffer, Items
from dcp.ordering import row_order


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """Slots of one buffer on all ranks, [slots], ordered by rank, then offset."""

    rank: IntArray
    records: Items


class Content(NamedTuple):
    """What needs a slot of an arena, arrays [n]."""

    rank: IntArray
    block: IntArray
    group: IntArray
    birth: IntArray
    death: IntArray


def home_section(
    blocks: BlockGraph, token_home: IntArray, buffer: Buffer, kind: Kind
) -> tuple[Section, IntArray]:
    """Slots of the callers' tensors, one a (home block, group), and the block of each."""
    groups = len(blocks.groups)
    carries = blocks.has_kv if kind in KEY_SIDE else blocks.has_q
    mine = np.flatnonzero(carries)
    mine = mine[np.argsort(token_home[mine], kind="stable")]
    home, length = token_home[mine], blocks.token_length[mine]
    records = np.zeros(len(mine) * groups, dtype=SLOT)
    records["buffer"] = buffer
    records["offset"] = np.repeat(offsets_within(home, length), groups)
    records["size"] = np.repeat(length, groups)
    records["group"] = np.tile(np.arange(groups), len(mine))
    return Section(rank=np.repeat(home, groups), records=records), np.repeat(mine, groups)


def arena_section(blocks: BlockGraph, buffer: Buffer, content: Content) -> tuple[Section, IntArray]:
    """Slots for contents with these lives, and the slot of each content, [n].

    Contents that are born together get neighbouring slots in the order of their tokens.
    """
    from dcp.slot_allocation import allocate  # compiled code

    rows = blocks.token_length[content.block]
    if KIND_OF[buffer] not in KEY_SIDE:
        rows = rows * blocks.groups.q_count[content.group]
    order = row_order(content.rank, content.birth, content.group, content.block)
    slot, rank, size = allocate(
        content.rank[order], content.birth[order], content.death[order], rows[order]
    )
    records = np.zeros(len(size), dtype=SLOT)
    records["buffer"] = buffer
    records["offset"] = offsets_within(rank, size)
    records["size"] = size
    records["group"] = -1
    slot_of = np.empty(len(order), dtype=np.int64)
    slot_of[order] = slot
    return Section(rank=rank, records=records), slot_of


def offsets_within(owner: IntArray, sizes: IntArray) -> IntArray:
    """Sum of the sizes before each, restarting with every owner; owners are ascending."""
    before = np.cumsum(sizes) - sizes
    first = np.searchsorted(owner, owner)
    offsets: IntArray = before - before[first] if len(owner) else before
    return offsets


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotTable:
    """All sections together, rank after rank.

    Attributes:
        records: SLOT records, [slots].
        rank_ptr: Slots of rank r are rank_ptr[r] … rank_ptr[r + 1] - 1, [ranks + 1].
        numbers: For each section, the number of each of its slots within its rank.
    """

    records: Items
    rank_ptr: IntArray
    numbers: list[IntArray]

    @classmethod
    def of(cls, sections: list[Section], num_ranks: int) -> SlotTable:
        """Join sections; within a rank they keep their order."""
        rank = np.concatenate([section.rank for section in sections])
        order = np.argsort(rank, kind="stable")
        rank_ptr = np.searchsorted(rank[order], np.arange(num_ranks + 1))
        number = np.empty(len(rank), dtype=np.int64)
        number[order] = np.arange(len(rank))
        number -= rank_ptr[rank]
        edges = np.cumsum([len(section.rank) for section in sections])[:-1]
        records = np.concatenate([section.records for section in sections])[order]
        return cls(records=records, rank_ptr=rank_ptr, numbers=np.split(number, edges))

    def of_rank(self, rank: int) -> Items:
        """Slots of one rank."""
        return self.records[self.rank_ptr[rank] : self.rank_ptr[rank + 1]]

    @cached_property
    def arena_rows(self) -> IntArray:
        """Rows of each buffer's arena on every rank, [ranks, buffers]; 0 for home buffers."""
        ranks = len(self.rank_ptr) - 1
        rank = np.repeat(np.arange(ranks), np.diff(self.rank_ptr))
        rows = np.bincount(
            rank * len(Buffer) + self.records["buffer"],
            self.records["size"] * (self.records["group"] < 0),
            ranks * len(Buffer),
        )
        return rows.astype(np.int64).reshape(ranks, -1)
