"""Where everything lies on every rank in one phase, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dcp.accumulators import Accumulators, trace_accumulators
from dcp.arrays import BoolArray, Int32Array, IntArray
from dcp.blocks import Kind
from dcp.input_sources import InputSources
from dcp.instructions import ACCUMULATOR, ARRIVAL, HOME_INPUT, HOME_OUTPUT
from dcp.placed_phase import PlacedPhase
from dcp.quarters import launch_time, wait_time
from dcp.scheduling import Transfers
from dcp.slot_table import Content, SlotTable, arena_section, home_section


class Finals(NamedTuple):
    """Sums copied to home outputs: where, when, what, from slot and to slot, [n] each."""

    rank: IntArray
    step: IntArray
    block: IntArray
    group: IntArray
    src: Int32Array
    dst: Int32Array


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotLayout:
    """Where everything lies.

    Attributes:
        table: Slots of all ranks.
        comp_slot: For each kind, the slot that each computation reads or adds to, in program
            order, [C].
        comp_is_first: For each kind of result, whether the computation finds that slot empty.
        arrival_slot, sent_slot: Slot of every transfer as it arrives and as it leaves,
            [transfers].
        merged_slot, merge_is_first: Slot that what has arrived is added to, and whether it is
            empty, [transfers]; -1 and False for inputs.
        finals: Copies to home outputs.
    """

    table: SlotTable
    comp_slot: dict[Kind, Int32Array]
    comp_is_first: dict[Kind, BoolArray]
    arrival_slot: Int32Array
    sent_slot: Int32Array
    merged_slot: Int32Array
    merge_is_first: BoolArray
    finals: Finals


def lay_out(phase: PlacedPhase) -> SlotLayout:
    """Lay out the slots of every rank: home tensors, then arrivals, then accumulators."""
    blocks, moved, kinds = phase.blocks, phase.schedule.transfers, (*phase.inputs, *phase.results)
    home = HOME_INPUT | HOME_OUTPUT
    home_parts = [home_section(blocks, phase.token_home, home[kind], kind) for kind in kinds]
    sources = InputSources.of(phase)
    last_use = sources.last_use(phase)
    arriving = [np.flatnonzero(moved.kind == kind) for kind in kinds]
    arrival_parts = [
        arena_section(blocks, ARRIVAL[kind], _arrivals(moved, rows, last_use))
        for kind, rows in zip(kinds, arriving, strict=True)
    ]
    sums = {kind: trace_accumulators(phase, kind) for kind in phase.results}
    sum_parts = [
        arena_section(blocks, ACCUMULATOR[kind], _sums(each)) for kind, each in sums.items()
    ]
    sections = [part[0] for part in (*home_parts, *arrival_parts, *sum_parts)]
    table = SlotTable.of(sections, phase.num_ranks)

    numbers = iter(table.numbers)
    shape = len(Kind), blocks.num_token_blocks, len(blocks.groups)
    home_slot = np.full(shape, -1, dtype=np.int32)
    for kind, (section, block) in zip(kinds, home_parts, strict=True):
        home_slot[kind, block, section.records["group"]] = next(numbers)
    arrival_slot = np.empty(len(moved), dtype=np.int32)
    for rows, (_, slot) in zip(arriving, arrival_parts, strict=True):
        arrival_slot[rows] = next(numbers)[slot]
    sum_slot = {
        kind: next(numbers)[slot].astype(np.int32)
        for kind, (_, slot) in zip(sums, sum_parts, strict=True)
    }
    return _layout(phase, table, sources, sums, home_slot, arrival_slot, sum_slot)


def _layout(
    phase: PlacedPhase,
    table: SlotTable,
    sources: InputSources,
    sums: dict[Kind, Accumulators],
    home_slot: Int32Array,
    arrival_slot: Int32Array,
    sum_slot: dict[Kind, Int32Array],
) -> SlotLayout:
    """Slots of computations and transfers.

    Args:
        phase, table, sources, sums: What is laid out.
        home_slot: Slot of each home tensor's block on its home, [kinds, T, groups].
        arrival_slot: Slot of each transfer as it arrives, [transfers].
        sum_slot: Slot of each life of the accumulators of a kind.
    """
    moved, group = phase.schedule.transfers, phase.blocks.comp_group[phase.comps]

    arrived = np.append(arrival_slot, np.int32(-1))

    def input_slot(transfer: Int32Array, *at_home: IntArray | int) -> Int32Array:
        return np.where(transfer < 0, home_slot[at_home], arrived[transfer])

    sent_slot = input_slot(sources.of_send, moved.kind, moved.block, moved.group)
    merged_slot = np.full(len(moved), -1, dtype=np.int32)
    merge_is_first = np.zeros(len(moved), dtype=bool)
    comp_slot = {
        kind: input_slot(transfer, int(kind), phase.comp_block(kind), group)
        for kind, transfer in sources.of_comp.items()
    }
    for kind, each in sums.items():
        sent_slot[each.transfers] = sum_slot[kind][each.of_send]
        merged_slot[each.transfers] = sum_slot[kind][each.of_receive]
        merge_is_first[each.transfers] = each.receive_is_first
        comp_slot[kind] = sum_slot[kind][each.of_comp]
    return SlotLayout(
        table=table,
        comp_slot=comp_slot,
        comp_is_first={kind: each.comp_is_first for kind, each in sums.items()},
        arrival_slot=arrival_slot,
        sent_slot=sent_slot,
        merged_slot=merged_slot,
        merge_is_first=merge_is_first,
        finals=_finals(sums, home_slot, sum_slot),
    )


def _finals(
    sums: dict[Kind, Accumulators], home_slot: Int32Array, sum_slot: dict[Kind, Int32Array]
) -> Finals:
    parts = []
    for kind, each in sums.items():
        final = each.is_final
        rank, block, group = each.rank[final], each.block[final], each.group[final]
        slots = sum_slot[kind][final], home_slot[kind, block, group]
        parts.append((rank, each.death[final] // 4, block, group, *slots))
    return Finals(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _sums(sums: Accumulators) -> Content:
    return Content(sums.rank, sums.block, sums.group, sums.birth, sums.death)


def _arrivals(moved: Transfers, rows: IntArray, last_use: IntArray) -> Content:
    """What some transfers bring, and how long it is needed."""
    step = moved.step[rows]
    death = np.maximum(wait_time(step), last_use[rows])
    return Content(moved.dst[rows], moved.block[rows], moved.group[rows], launch_time(step), death)
