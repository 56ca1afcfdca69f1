"""Schedule to programs: numbered slots and the five kinds of instruction, for every rank.

In step s a rank waits for what arrives and merges partial results, launches step s+1, computes
division s, and copies results that are final: the quarters of `dcp.quarters`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dcp.arrays import BoolArray, Int32Array, IntArray
from dcp.blocks import BlockGraph, Kind
from dcp.instructions import (
    BACKWARD_ITEM,
    COPY_ITEM,
    FORWARD_ITEM,
    MESSAGE_ITEM,
    REDUCE_ITEM,
    Attention,
    CommLaunch,
    CommWait,
    Copy,
    Instruction,
    Items,
    Program,
    Reduce,
)
from dcp.ordering import distinct, row_order
from dcp.placed_phase import PlacedPhase
from dcp.runs import expand_runs
from dcp.scheduling import Schedule
from dcp.slot_layout import Finals, SlotLayout, lay_out

_SLOT_FIELDS = {
    Kind.Q: "q",
    Kind.KV: "kv",
    Kind.O: "out",
    Kind.DO: "dout",
    Kind.DQ: "dq",
    Kind.DKV: "dkv",
}
"""What the items of attention call the slots of each kind."""

_ITEMS_AT_A_TIME = 1 << 15
"""Items of attention in one array, about. Memory freed before has no room for all in one piece."""


def lower(
    blocks: BlockGraph,
    token_home: IntArray,
    comp_device: IntArray,
    num_devices: int,
    schedule: Schedule,
) -> list[Program]:
    """Programs of all ranks for one phase; the schedule must be valid.

    Args:
        blocks: The batch in blocks.
        token_home, comp_device: The placement, [T] and [C].
        num_devices: Ranks.
        schedule: One phase.
    """
    phase = PlacedPhase.of(blocks, token_home, comp_device, num_devices, schedule)
    return _programs(phase, lay_out(phase))


def _programs(phase: PlacedPhase, slots: SlotLayout) -> list[Program]:
    moved = phase.schedule.transfers
    steps = max(phase.schedule.num_divisions, int(moved.step.max(initial=0)) + 1)
    masks = _MaskTables.of(phase)
    instructions = _instructions(phase, slots, masks.number, (phase.num_ranks, steps))
    return [
        Program(
            instructions=instructions[rank],
            slots=slots.table.of_rank(rank),
            arena_rows=slots.table.arena_rows[rank],
            mask_ptr=masks.ptr[rank],
            mask_slices=masks.slices[rank],
        )
        for rank in range(phase.num_ranks)
    ]


def _instructions(
    phase: PlacedPhase, slots: SlotLayout, mask: Int32Array, shape: tuple[int, int]
) -> list[list[Instruction]]:
    """Instructions of every rank. In a step: wait, reduce, launch the next, compute, copy."""
    moved, steps = phase.schedule.transfers, shape[1]
    partial, finals = np.flatnonzero(moved.is_result), slots.finals
    arrive = _messages(phase, moved.src, slots.arrival_slot)
    leave = _messages(phase, moved.dst, slots.sent_slot)
    arrival = moved.dst * steps + moved.step
    received = _by_cell(arrive, arrival)
    sent = _by_cell(leave, moved.src * steps + moved.step)
    reduced = _by_cell(_reductions(phase, slots, partial), arrival[partial])
    computed = _attention(phase, slots, mask, steps)
    copied = _by_cell(_copies(finals), finals.rank * steps + finals.step)

    nothing = arrive[:0]
    launched = list(sent.keys() | received.keys())
    made: list[Instruction] = [
        *(CommWait(cell % steps) for cell in received),
        *(Reduce(items) for items in reduced.values()),
        *(
            CommLaunch(cell % steps, sent.get(cell, nothing), received.get(cell, nothing))
            for cell in launched
        ),
        *(Attention(cell % steps, items) for cell, items in computed.items()),
        *(Copy(items) for items in copied.values()),
    ]
    cells = list(received), list(reduced), launched, list(computed), list(copied)
    # What is launched in a step is for the next one.
    moment = np.concatenate(
        [
            5 * np.array(some, dtype=np.int64) + place
            for some, place in zip(cells, (0, 1, 2 - 5, 3, 4), strict=True)
        ]
    )
    order = np.argsort(moment)
    edges = np.searchsorted(moment[order], 5 * steps * np.arange(phase.num_ranks + 1)).tolist()
    ordered = [made[number] for number in order.tolist()]
    return [ordered[low:high] for low, high in pairwise(edges)]


def _by_cell(items: Items, cell: IntArray) -> dict[int, Items]:
    """Rows by cell, which is rank * steps + step; those of a cell keep their order."""
    if (cell[1:] < cell[:-1]).any():
        order = row_order(cell)
        items, cell = items[order], cell[order]
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    edges = [*first.tolist(), len(cell)]
    spans = zip(cell[first].tolist(), pairwise(edges), strict=True)
    return {at: items[low:high] for at, (low, high) in spans}


def _messages(phase: PlacedPhase, peer: IntArray, slot: Int32Array) -> Items:
    moved = phase.schedule.transfers
    return _rows(MESSAGE_ITEM, peer=peer, slot=slot, block=moved.block, group=moved.group)


def _reductions(phase: PlacedPhase, slots: SlotLayout, partial: IntArray) -> Items:
    moved = phase.schedule.transfers
    return _rows(
        REDUCE_ITEM,
        src=slots.arrival_slot[partial],
        dst=slots.merged_slot[partial],
        block=moved.block[partial],
        group=moved.group[partial],
        fresh=slots.merge_is_first[partial],
    )


def _attention(
    phase: PlacedPhase, slots: SlotLayout, mask: Int32Array, steps: int
) -> dict[int, Items]:
    """Items of attention by cell, made for some ranks at a time."""
    count = len(phase.comps)
    ranks = max(1, phase.num_ranks * _ITEMS_AT_A_TIME // max(count, 1))
    begins = np.cumsum(np.bincount(phase.comp_device, minlength=phase.num_ranks)[:-1])
    edges = np.append(0, begins)[::ranks].tolist()
    found: dict[int, Items] = {}
    for low, high in pairwise([*edges, count]):
        mine = slice(low, high)
        comps = phase.comps[mine]
        cell = phase.comp_device[comps] * steps + phase.schedule.comp_division[comps]
        found |= _by_cell(_attention_items(phase, slots, mask, mine), cell)
    return found


def _attention_items(phase: PlacedPhase, slots: SlotLayout, mask: Int32Array, mine: slice) -> Items:
    blocks, comps, forward = phase.blocks, phase.comps[mine], phase.schedule.phase == "forward"
    rows = np.zeros(len(comps), dtype=FORWARD_ITEM if forward else BACKWARD_ITEM)
    rows["q_block"], rows["kv_block"] = blocks.comp_q[comps], blocks.comp_kv[comps]
    rows["group"], rows["mask"] = blocks.comp_group[comps], mask[mine]
    for kind, slot in slots.comp_slot.items():
        rows[_SLOT_FIELDS[kind]] = slot[mine]
    for kind, is_first in slots.comp_is_first.items():
        rows["fresh" if forward else f"fresh_{_SLOT_FIELDS[kind]}"] = is_first[mine]
    return rows


def _copies(finals: Finals) -> Items:
    return _rows(COPY_ITEM, src=finals.src, dst=finals.dst, block=finals.block, group=finals.group)


class _MaskTables(NamedTuple):
    """The masks that each rank's items name, in a table of its own with mask 0 in front.

    Attributes:
        number: Mask in its rank's table, for every computation in program order, [C].
        ptr, slices: The tables, rank by rank.
    """

    number: Int32Array
    ptr: list[IntArray]
    slices: list[IntArray]

    @classmethod
    def of(cls, phase: PlacedPhase) -> _MaskTables:
        blocks, every = phase.blocks, np.arange(phase.num_ranks + 1)
        count = len(blocks.mask_ptr) - 1
        rank = phase.comp_device[phase.comps]
        wanted = rank * count + blocks.comp_mask[phase.comps]
        used = distinct(np.concatenate([wanted, every[:-1] * count]))
        first = np.searchsorted(used, every * count)
        begin = blocks.mask_ptr[used % count]
        size = blocks.mask_ptr[used % count + 1] - begin
        ptr = np.append(0, np.cumsum(size))
        _, rows = expand_runs(begin, size)
        slices = blocks.mask_slices[rows]
        spans = list(pairwise(first.tolist()))
        return cls(
            number=(np.searchsorted(used, wanted) - first[rank]).astype(np.int32),
            ptr=[ptr[low : high + 1] - ptr[low] for low, high in spans],
            slices=[slices[ptr[low] : ptr[high]] for low, high in spans],
        )


def _rows(dtype: np.dtype[np.void], **columns: IntArray | Int32Array | BoolArray) -> Items:
    rows = np.zeros(len(next(iter(columns.values()))), dtype=dtype)
    for name, values in columns.items():
        rows[name] = values
    return rows
