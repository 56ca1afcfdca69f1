"""Schedule to programs: numbered slots and the five kinds of instruction, for every rank.

Time inside a program is counted in quarters: step s waits and reduces at 4s, launches step s+1 at
4s+1, computes division s at 4s+2 and copies final results at 4s+3. A content lives from the
quarter that first writes it to the quarter that last reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dcp.accumulators import Accumulators, trace_accumulators
from dcp.arrays import BoolArray, IntArray
from dcp.blocks import BlockGraph, Kind
from dcp.instructions import (
    ACCUMULATOR,
    ARRIVAL,
    BACKWARD_ITEM,
    COPY_ITEM,
    FORWARD_ITEM,
    HOME_INPUT,
    HOME_OUTPUT,
    MESSAGE_ITEM,
    REDUCE_ITEM,
    SLOT,
    Attention,
    Buffer,
    CommLaunch,
    CommWait,
    Copy,
    Instruction,
    Items,
    Program,
    Reduce,
)
from dcp.scheduling import (
    KEY_INPUT,
    KEY_RESULT,
    QUERY_INPUTS,
    QUERY_RESULT,
    RESULTS,
    Schedule,
)
from dcp.slot_allocation import allocate
from dcp.timeline import attention_time, launch_time, wait_time


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
    order = np.lexsort((blocks.comp_kv, blocks.comp_q, blocks.comp_group, schedule.comp_division))
    comps = _split_by(comp_device[order], order, num_devices)
    transfers = schedule.transfers
    everything = np.arange(len(transfers))
    sends = _split_by(transfers.src, everything, num_devices)
    receives = _split_by(transfers.dst, everything, num_devices)
    homes = _split_by(token_home, np.arange(len(token_home)), num_devices)
    return [
        _RankLowering(
            blocks=blocks,
            schedule=schedule,
            home_blocks=homes[rank],
            comps=comps[rank],
            sends=sends[rank],
            receives=receives[rank],
        ).program()
        for rank in range(num_devices)
    ]


def _split_by(owner: IntArray, values: IntArray, count: int) -> list[IntArray]:
    """Values of each owner 0 … count-1, in their order."""
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(count + 1))
    return [values[order[low:high]] for low, high in pairwise(edges)]


@dataclass(frozen=True, kw_only=True, eq=False)
class _RankLowering:
    """What one rank computes, sends and receives: rows of the global arrays, in program order."""

    blocks: BlockGraph
    schedule: Schedule
    home_blocks: IntArray
    comps: IntArray
    sends: IntArray
    receives: IntArray

    def program(self) -> Program:
        table = _SlotTable(self.blocks)
        self._home_slots(table)
        arrivals = self._arrival_slots(table)
        sums = self._accumulators()
        sum_slots = self._accumulator_slots(table, sums)
        mask, mask_ptr, mask_slices = self._masks()
        return Program(
            instructions=self._instructions(table, arrivals, sums, sum_slots, mask),
            slots=table.records(),
            arena_rows=table.arena_rows,
            mask_ptr=mask_ptr,
            mask_slices=mask_slices,
        )

    # --- slots ---------------------------------------------------------------------------

    @property
    def _inputs(self) -> tuple[Kind, ...]:
        return (*QUERY_INPUTS[self.schedule.phase], KEY_INPUT)

    @property
    def _results(self) -> tuple[Kind, ...]:
        query = QUERY_RESULT[self.schedule.phase]
        return (query,) if self.schedule.phase == "forward" else (query, KEY_RESULT)

    def _home_slots(self, table: _SlotTable) -> None:
        for kind in self._inputs:
            table.add_home(HOME_INPUT[kind], kind, self.home_blocks)
        for kind in self._results:
            table.add_home(HOME_OUTPUT[kind], kind, self.home_blocks)

    def _arrival_slots(self, table: _SlotTable) -> IntArray:
        """Slots of everything received, in the order of `receives`."""
        moved, rows = self.schedule.transfers, self.receives
        slots = np.zeros(len(rows), dtype=np.int64)
        last_use = self._last_use_of_inputs()
        for kind in (*self._inputs, *self._results):
            mine = np.flatnonzero(moved.kind[rows] == kind)
            block, group = moved.block[rows[mine]], moved.group[rows[mine]]
            step = moved.step[rows[mine]]
            death = wait_time(step)
            if kind not in RESULTS:
                death = np.maximum(death, last_use[kind, block, group])
            slots[mine] = table.add_arena(ARRIVAL[kind], block, group, launch_time(step), death)
            if kind not in RESULTS:
                table.input_slot[kind, block, group] = slots[mine]
        return slots

    def _last_use_of_inputs(self) -> IntArray:
        """Last quarter in which each input is read here, [kinds, T, groups]; -1 for never."""
        blocks, moved = self.blocks, self.schedule.transfers
        last = np.full((len(Kind), blocks.num_token_blocks, len(blocks.groups)), -1)
        time = attention_time(self.schedule.comp_division[self.comps])
        group = blocks.comp_group[self.comps]
        for kind in self._inputs:
            block = blocks.comp_kv if kind == KEY_INPUT else blocks.comp_q
            np.maximum.at(last[kind], (block[self.comps], group), time)
        rows = self.sends
        where = (moved.kind[rows], moved.block[rows], moved.group[rows])
        np.maximum.at(last, where, launch_time(moved.step[rows]))
        return last

    def _accumulators(self) -> Accumulators:
        return trace_accumulators(
            self.blocks, self.schedule, self.comps, self.sends, self.receives, self._results
        )

    def _accumulator_slots(self, table: _SlotTable, sums: Accumulators) -> IntArray:
        """Slot of every accumulator life, [lives]."""
        slots = np.zeros(len(sums.kind), dtype=np.int64)
        for kind in self._results:
            mine = np.flatnonzero(sums.kind == kind)
            slots[mine] = table.add_arena(
                ACCUMULATOR[kind],
                sums.block[mine],
                sums.group[mine],
                sums.birth[mine],
                sums.death[mine],
            )
        return slots

    # --- instructions --------------------------------------------------------------------

    def _instructions(
        self,
        table: _SlotTable,
        arrivals: IntArray,
        sums: Accumulators,
        sum_slots: IntArray,
        mask: IntArray,
    ) -> list[Instruction]:
        timed: list[tuple[int, Instruction]] = []
        moved = self.schedule.transfers
        received_at = moved.step[self.receives]
        sent_at = moved.step[self.sends]
        receives = self._messages(self.receives, arrivals, moved.src)
        sends = self._messages(self.sends, self._sent_slots(table, sums, sum_slots), moved.dst)
        for step in np.unique(np.concatenate([received_at, sent_at])).tolist():
            here = receives[received_at == step]
            timed.append((launch_time(step), CommLaunch(step, sends[sent_at == step], here)))
            if len(here):
                timed.append((wait_time(step), CommWait(step)))

        partial = np.isin(moved.kind[self.receives], RESULTS)
        reduces = self._reductions(arrivals, partial, sums, sum_slots)
        for step in np.unique(received_at[partial]).tolist():
            timed.append((wait_time(step), Reduce(reduces[received_at[partial] == step])))

        items = self._attention_items(table, sums, sum_slots, mask)
        divisions = self.schedule.comp_division[self.comps]
        for division in np.unique(divisions).tolist():
            timed.append(
                (attention_time(division), Attention(division, items[divisions == division]))
            )

        final = np.flatnonzero(sums.is_final)
        copies = self._copies(table, sums, sum_slots, final)
        for time in np.unique(sums.death[final]).tolist():
            timed.append((time, Copy(copies[sums.death[final] == time])))
        return [instruction for _, instruction in sorted(timed, key=lambda pair: pair[0])]

    def _messages(self, rows: IntArray, slots: IntArray, peer: IntArray) -> Items:
        moved = self.schedule.transfers
        return _rows(
            MESSAGE_ITEM, peer=peer[rows], slot=slots, block=moved.block[rows],
            group=moved.group[rows],
        )  # fmt: skip

    def _sent_slots(self, table: _SlotTable, sums: Accumulators, sum_slots: IntArray) -> IntArray:
        moved, rows = self.schedule.transfers, self.sends
        slots = table.input_slot[moved.kind[rows], moved.block[rows], moved.group[rows]]
        partial = np.isin(moved.kind[rows], RESULTS)
        slots[partial] = sum_slots[sums.of_send[partial]]
        return slots

    def _reductions(
        self, arrivals: IntArray, partial: BoolArray, sums: Accumulators, sum_slots: IntArray
    ) -> Items:
        moved, rows = self.schedule.transfers, self.receives[partial]
        life = sums.of_receive[partial]
        return _rows(
            REDUCE_ITEM,
            src=arrivals[partial],
            dst=sum_slots[life],
            block=moved.block[rows],
            group=moved.group[rows],
            fresh=sums.receive_is_first[partial],
        )

    def _attention_items(
        self, table: _SlotTable, sums: Accumulators, sum_slots: IntArray, mask: IntArray
    ) -> Items:
        blocks, comps = self.blocks, self.comps
        q, kv, group = blocks.comp_q[comps], blocks.comp_kv[comps], blocks.comp_group[comps]
        common = {
            "q": table.input_slot[Kind.Q, q, group],
            "kv": table.input_slot[Kind.KV, kv, group],
            "q_block": q,
            "kv_block": kv,
            "group": group,
            "mask": mask,
        }
        query = QUERY_RESULT[self.schedule.phase]
        if self.schedule.phase == "forward":
            return _rows(
                FORWARD_ITEM,
                **common,
                out=sum_slots[sums.of_comp[query]],
                fresh=sums.comp_is_first[query],
            )
        return _rows(
            BACKWARD_ITEM,
            **common,
            dout=table.input_slot[Kind.DO, q, group],
            dq=sum_slots[sums.of_comp[query]],
            dkv=sum_slots[sums.of_comp[KEY_RESULT]],
            fresh_dq=sums.comp_is_first[query],
            fresh_dkv=sums.comp_is_first[KEY_RESULT],
        )

    def _copies(
        self, table: _SlotTable, sums: Accumulators, sum_slots: IntArray, final: IntArray
    ) -> Items:
        kind, block, group = sums.kind[final], sums.block[final], sums.group[final]
        return _rows(
            COPY_ITEM,
            src=sum_slots[final],
            dst=table.output_slot[kind, block, group],
            block=block,
            group=group,
        )

    def _masks(self) -> tuple[IntArray, IntArray, IntArray]:
        """Mask number of every item and the rank's own table, with mask 0 kept in front."""
        blocks = self.blocks
        used = np.unique(np.concatenate([[0], blocks.comp_mask[self.comps]]))
        begin, end = blocks.mask_ptr[used], blocks.mask_ptr[used + 1]
        ptr = np.concatenate([[0], np.cumsum(end - begin)]).astype(np.int64)
        rows = np.arange(ptr[-1]) - np.repeat(ptr[:-1] - begin, end - begin)
        return np.searchsorted(used, blocks.comp_mask[self.comps]), ptr, blocks.mask_slices[rows]


class _SlotTable:
    """Collects slots and remembers where inputs and home outputs lie."""

    def __init__(self, blocks: BlockGraph) -> None:
        shape = (len(Kind), blocks.num_token_blocks, len(blocks.groups))
        self.input_slot = np.full(shape, -1)
        self.output_slot = np.full(shape, -1)
        self.arena_rows = np.zeros(len(Buffer), dtype=np.int64)
        self._blocks = blocks
        self._parts: list[Items] = []
        self._count = 0

    def add_home(self, buffer: Buffer, kind: Kind, home_blocks: IntArray) -> None:
        """Slots of the caller's tensor, one a (home block, group)."""
        blocks, groups = self._blocks, len(self._blocks.groups)
        carries = blocks.has_kv if kind in (Kind.KV, Kind.DKV) else blocks.has_q
        mine = home_blocks[carries[home_blocks]]
        length = blocks.token_length[mine]
        block, group = np.repeat(mine, groups), np.tile(np.arange(groups), len(mine))
        table = self.input_slot if buffer in HOME_INPUT.values() else self.output_slot
        table[kind, block, group] = self._append(
            buffer, np.repeat(np.cumsum(length) - length, groups), np.repeat(length, groups), group
        )

    def add_arena(
        self, buffer: Buffer, block: IntArray, group: IntArray, birth: IntArray, death: IntArray
    ) -> IntArray:
        """Slots for contents with these lives; returns the slot of each."""
        rows = self._blocks.token_length[block]
        if buffer not in (Buffer.KV_IN, Buffer.DKV_ACC, Buffer.DKV_PART):
            rows = rows * self._blocks.groups.q_count[group]
        order = np.lexsort((block, group, birth))  # neighbours in a sequence become neighbours here
        arena = allocate(birth[order], death[order], rows[order])
        self.arena_rows[buffer] = arena.rows
        numbers = self._append(buffer, arena.offset, arena.size, np.full_like(arena.size, -1))
        slots = np.zeros(len(block), dtype=np.int64)
        slots[order] = numbers[arena.slot]
        return slots

    def records(self) -> Items:
        return np.concatenate(self._parts)

    def _append(
        self, buffer: Buffer, offset: IntArray, size: IntArray, group: IntArray
    ) -> IntArray:
        buffers = np.full_like(size, buffer)
        self._parts.append(_rows(SLOT, buffer=buffers, offset=offset, size=size, group=group))
        numbers = self._count + np.arange(len(size))
        self._count += len(size)
        return numbers


def _rows(dtype: np.dtype[np.void], **columns: IntArray | BoolArray) -> Items:
    rows = np.zeros(len(next(iter(columns.values()))), dtype=dtype)
    for name, values in columns.items():
        rows[name] = values
    return rows
