"""Schedule to programs: numbered slots and the five kinds of instruction, for every rank.

In step s a rank waits for what arrives and merges partial results, launches step s+1, computes
division s, and copies results that are final: the quarters of `dcp.timeline`.
"""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from dcp.arrays import BoolArray, IntArray
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
from dcp.ordering import distinct
from dcp.placed_phase import PlacedPhase
from dcp.runs import expand_runs
from dcp.scheduling import KEY_RESULT, QUERY_RESULT, Schedule
from dcp.slot_layout import SlotLayout, lay_out


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
    phase: PlacedPhase, slots: SlotLayout, mask: IntArray, shape: tuple[int, int]
) -> list[list[Instruction]]:
    """Instructions of every rank. In a step: wait, reduce, launch the next, compute, copy."""
    moved, comps, sums, steps = phase.schedule.transfers, phase.comps, slots.sums, shape[1]
    partial, final = np.flatnonzero(moved.is_result), np.flatnonzero(sums.is_final)
    arrive = _messages(phase, moved.src, slots.arrival_slot)
    leave = _messages(phase, moved.dst, _sent_slots(slots, phase))
    received = _by_cell(arrive, moved.dst, moved.step, shape)
    sent = _by_cell(leave, moved.src, moved.step, shape)
    reduced = _by_cell(
        _reductions(phase, slots, partial), moved.dst[partial], moved.step[partial], shape
    )
    computed = _by_cell(
        _attention_items(phase, slots, mask),
        phase.comp_device[comps],
        phase.schedule.comp_division[comps],
        shape,
    )
    copied = _by_cell(_copies(slots, final), sums.rank[final], sums.death[final] // 4, shape)

    nothing = arrive[:0]
    ordered: list[tuple[int, Instruction]] = [
        *((5 * cell, CommWait(cell % steps)) for cell in received),
        *((5 * cell + 1, Reduce(items)) for cell, items in reduced.items()),
        *(
            (
                5 * (cell - 1) + 2,
                CommLaunch(cell % steps, sent.get(cell, nothing), received.get(cell, nothing)),
            )
            for cell in sent.keys() | received.keys()
        ),
        *((5 * cell + 3, Attention(cell % steps, items)) for cell, items in computed.items()),
        *((5 * cell + 4, Copy(items)) for cell, items in copied.items()),
    ]
    found: list[list[Instruction]] = [[] for _ in range(phase.num_ranks)]
    for key, instruction in sorted(ordered, key=itemgetter(0)):
        found[key // (5 * steps)].append(instruction)
    return found


def _by_cell(
    items: Items, rank: IntArray, step: IntArray, shape: tuple[int, int]
) -> dict[int, Items]:
    """Rows by cell, which is rank * steps + step; those of a cell keep their order."""
    cell = rank * shape[1] + step
    order = np.argsort(cell, kind="stable")
    items, cell = items[order], cell[order]
    edges = [*np.flatnonzero(np.diff(cell, prepend=-1)).tolist(), len(cell)]
    return {int(cell[low]): items[low:high] for low, high in pairwise(edges)}


def _messages(phase: PlacedPhase, peer: IntArray, slot: IntArray) -> Items:
    moved = phase.schedule.transfers
    return _rows(MESSAGE_ITEM, peer=peer, slot=slot, block=moved.block, group=moved.group)


def _sent_slots(slots: SlotLayout, phase: PlacedPhase) -> IntArray:
    moved = phase.schedule.transfers
    sent: IntArray = slots.input_slot[moved.src, moved.kind, moved.block, moved.group].astype(
        np.int64
    )
    partial = moved.is_result
    sent[partial] = slots.sum_slot[slots.sums.of_send[partial]]
    return sent


def _reductions(phase: PlacedPhase, slots: SlotLayout, partial: IntArray) -> Items:
    moved = phase.schedule.transfers
    return _rows(
        REDUCE_ITEM,
        src=slots.arrival_slot[partial],
        dst=slots.sum_slot[slots.sums.of_receive[partial]],
        block=moved.block[partial],
        group=moved.group[partial],
        fresh=slots.sums.receive_is_first[partial],
    )


def _attention_items(phase: PlacedPhase, slots: SlotLayout, mask: IntArray) -> Items:
    blocks, comps, sums = phase.blocks, phase.comps, slots.sums
    rank = phase.comp_device[comps]
    q, kv, group = blocks.comp_q[comps], blocks.comp_kv[comps], blocks.comp_group[comps]
    common = {
        "q": slots.input_slot[rank, Kind.Q, q, group],
        "kv": slots.input_slot[rank, Kind.KV, kv, group],
        "q_block": q,
        "kv_block": kv,
        "group": group,
        "mask": mask,
    }
    query = QUERY_RESULT[phase.schedule.phase]
    if phase.schedule.phase == "forward":
        return _rows(
            FORWARD_ITEM,
            **common,
            out=slots.sum_slot[sums.of_comp[query]],
            fresh=sums.comp_is_first[query],
        )
    return _rows(
        BACKWARD_ITEM,
        **common,
        dout=slots.input_slot[rank, Kind.DO, q, group],
        dq=slots.sum_slot[sums.of_comp[query]],
        dkv=slots.sum_slot[sums.of_comp[KEY_RESULT]],
        fresh_dq=sums.comp_is_first[query],
        fresh_dkv=sums.comp_is_first[KEY_RESULT],
    )


def _copies(slots: SlotLayout, final: IntArray) -> Items:
    sums = slots.sums
    kind, block, group = sums.kind[final], sums.block[final], sums.group[final]
    return _rows(
        COPY_ITEM,
        src=slots.sum_slot[final],
        dst=slots.output_slot[kind, block, group],
        block=block,
        group=group,
    )


class _MaskTables(NamedTuple):
    """The masks that each rank's items name, in a table of its own with mask 0 in front.

    Attributes:
        number: Mask in its rank's table, for every computation in program order, [C].
        ptr, slices: The tables, rank by rank.
    """

    number: IntArray
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
            number=np.searchsorted(used, wanted) - first[rank],
            ptr=[ptr[low : high + 1] - ptr[low] for low, high in spans],
            slices=[slices[ptr[low] : ptr[high]] for low, high in spans],
        )


def _rows(dtype: np.dtype[np.void], **columns: IntArray | BoolArray) -> Items:
    rows = np.zeros(len(next(iter(columns.values()))), dtype=dtype)
    for name, values in columns.items():
        rows[name] = values
    return rows
