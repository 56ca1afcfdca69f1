"""Schedule to programs: numbered slots and the five kinds of instruction, for every rank.

In step s a rank waits for what arrives and merges partial results, launches step s+1, computes
division s, and copies results that are final: the quarters of `dcp.timeline`.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from dcp.placed_phase import PlacedPhase
from dcp.runs import expand_runs
from dcp.scheduling import KEY_RESULT, QUERY_RESULT, RESULTS, Schedule
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stepped:
    """Rows of all ranks, ordered by rank and step, to take one rank's step from."""

    items: Items
    ptr: IntArray
    steps: int

    @classmethod
    def of(cls, items: Items, rank: IntArray, step: IntArray, shape: tuple[int, int]) -> _Stepped:
        """From rows in any order; rows of a step keep theirs."""
        key = rank * shape[1] + step
        order = np.argsort(key, kind="stable")
        ptr = np.searchsorted(key[order], np.arange(shape[0] * shape[1] + 1))
        return cls(items=items[order], ptr=ptr, steps=shape[1])

    def at(self, rank: int, step: int) -> Items:
        """Rows of one rank in one step."""
        position = rank * self.steps + step
        return self.items[self.ptr[position] : self.ptr[position + 1]]


def _programs(phase: PlacedPhase, slots: SlotLayout) -> list[Program]:
    moved, schedule = phase.schedule.transfers, phase.schedule
    steps = max(schedule.num_divisions, int(moved.step.max(initial=0)) + 1) + 1
    shape = (phase.num_ranks, steps)
    partial = np.flatnonzero(np.isin(moved.kind, RESULTS))
    final = np.flatnonzero(slots.sums.is_final)
    comps = phase.comps
    receives = _Stepped.of(
        _messages(phase, moved.src, slots.arrival_slot), moved.dst, moved.step, shape
    )
    sends = _Stepped.of(_messages(phase, moved.dst, _sent_slots(slots, phase)), moved.src,
                        moved.step, shape)  # fmt: skip
    reduces = _Stepped.of(
        _reductions(phase, slots, partial), moved.dst[partial], moved.step[partial], shape
    )
    masks = [_masks(phase, rows) for rows in _split(phase.comp_device[comps], comps, shape[0])]
    mask = np.concatenate([numbers for numbers, _, _ in masks])
    attention = _Stepped.of(
        _attention_items(phase, slots, mask),
        phase.comp_device[comps],
        schedule.comp_division[comps],
        shape,
    )
    copies = _Stepped.of(
        _copies(slots, final), slots.sums.rank[final], slots.sums.death[final] // 4, shape
    )
    programs = []
    for rank in range(phase.num_ranks):
        instructions: list[Instruction] = []
        for step in range(steps):
            instructions += _instructions(rank, step, receives, reduces, sends, attention, copies)
        programs.append(
            Program(
                instructions=instructions,
                slots=slots.table.of_rank(rank),
                arena_rows=slots.table.arena_rows(rank),
                mask_ptr=masks[rank][1],
                mask_slices=masks[rank][2],
            )
        )
    return programs


def _instructions(
    rank: int,
    step: int,
    receives: _Stepped,
    reduces: _Stepped,
    sends: _Stepped,
    attention: _Stepped,
    copies: _Stepped,
) -> list[Instruction]:
    """One round of one rank: wait, reduce, launch the next step, compute, copy."""
    found: list[Instruction] = []
    if len(receives.at(rank, step)):
        found.append(CommWait(step))
    if len(items := reduces.at(rank, step)):
        found.append(Reduce(items))
    if step + 1 < sends.steps:
        outgoing, incoming = sends.at(rank, step + 1), receives.at(rank, step + 1)
        if len(outgoing) or len(incoming):
            found.append(CommLaunch(step + 1, outgoing, incoming))
    if len(items := attention.at(rank, step)):
        found.append(Attention(step, items))
    if len(items := copies.at(rank, step)):
        found.append(Copy(items))
    return found


def _split(owner: IntArray, values: IntArray, count: int) -> list[IntArray]:
    """Values of each owner 0 … count-1; owners are ascending."""
    return np.split(values, np.searchsorted(owner, np.arange(1, count)))


def _messages(phase: PlacedPhase, peer: IntArray, slot: IntArray) -> Items:
    moved = phase.schedule.transfers
    return _rows(MESSAGE_ITEM, peer=peer, slot=slot, block=moved.block, group=moved.group)


def _sent_slots(slots: SlotLayout, phase: PlacedPhase) -> IntArray:
    moved = phase.schedule.transfers
    sent: IntArray = slots.input_slot[moved.src, moved.kind, moved.block, moved.group].astype(
        np.int64
    )
    partial = np.isin(moved.kind, RESULTS)
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


def _masks(phase: PlacedPhase, comps: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Mask number of every item of a rank, and its own table with mask 0 kept in front."""
    blocks = phase.blocks
    wanted = blocks.comp_mask[comps]
    used = np.unique(np.append(wanted, 0))
    begin, end = blocks.mask_ptr[used], blocks.mask_ptr[used + 1]
    ptr = np.concatenate([[0], np.cumsum(end - begin)]).astype(np.int64)
    _, rows = expand_runs(begin, end - begin)
    return np.searchsorted(used, wanted), ptr, blocks.mask_slices[rows]


def _rows(dtype: np.dtype[np.void], **columns: IntArray | BoolArray) -> Items:
    rows = np.zeros(len(next(iter(columns.values()))), dtype=dtype)
    for name, values in columns.items():
        rows[name] = values
    return rows
