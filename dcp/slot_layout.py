"""Where everything lies on every rank in one phase, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dcp.accumulators import Accumulators, trace_accumulators
from dcp.arrays import Int32Array, IntArray
from dcp.blocks import Kind
from dcp.instructions import ACCUMULATOR, ARRIVAL, HOME_INPUT, HOME_OUTPUT
from dcp.placed_phase import PlacedPhase
from dcp.scheduling import KEY_INPUT, RESULTS
from dcp.slot_table import Content, Section, SlotTable, arena_section, home_section
from dcp.timeline import attention_time, launch_time, wait_time


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotLayout:
    """Where everything lies.

    Attributes:
        table: Slots of all ranks.
        input_slot: Slot of every input on every rank, [ranks, kinds, T, groups]; -1 for none.
        output_slot: Slot of every home output on its home, [kinds, T, groups].
        arrival_slot: Slot of every transfer as it arrives, [transfers].
        sums: Lives of accumulators.
        sum_slot: Slot of every life.
    """

    table: SlotTable
    input_slot: Int32Array
    output_slot: IntArray
    arrival_slot: IntArray
    sums: Accumulators
    sum_slot: IntArray


def lay_out(phase: PlacedPhase) -> SlotLayout:
    """Lay out the slots of every rank: home tensors, then arrivals, then accumulators."""
    blocks, moved = phase.blocks, phase.schedule.transfers
    homes = [(HOME_INPUT[kind], kind) for kind in phase.inputs]
    homes += [(HOME_OUTPUT[kind], kind) for kind in phase.results]
    home_parts = [home_section(blocks, phase.token_home, *which) for which in homes]

    kinds = (*phase.inputs, *phase.results)
    arriving = [np.flatnonzero(moved.kind == kind) for kind in kinds]
    last_use = _last_use_of_inputs(phase)
    arrival_parts = [
        arena_section(blocks, ARRIVAL[kind], _arrivals(phase, kind, rows, last_use))
        for kind, rows in zip(kinds, arriving, strict=True)
    ]
    sums = trace_accumulators(blocks, phase.comp_device, phase.schedule, phase.comps, phase.results)
    summed = [np.flatnonzero(sums.kind == kind) for kind in phase.results]
    sum_parts = [
        arena_section(blocks, ACCUMULATOR[kind], _sums(sums, lives))
        for kind, lives in zip(phase.results, summed, strict=True)
    ]
    sections = [part[0] for part in (*home_parts, *arrival_parts, *sum_parts)]
    table = SlotTable.of(sections, phase.num_ranks)

    numbers = iter(table.numbers)
    shape = (len(Kind), blocks.num_token_blocks, len(blocks.groups))
    input_slot = np.full((phase.num_ranks, *shape), -1, dtype=np.int32)
    output_slot = np.full(shape, -1, dtype=np.int64)
    for (buffer, kind), (section, block) in zip(homes, home_parts, strict=True):
        group = section.records["group"]
        if buffer in HOME_INPUT.values():
            input_slot[section.rank, kind, block, group] = next(numbers)
        else:
            output_slot[kind, block, group] = next(numbers)
    arrival_slot = _numbered(len(moved), arriving, arrival_parts, numbers)
    received = np.flatnonzero(~moved.is_result)
    where = (moved.dst, moved.kind, moved.block, moved.group)
    input_slot[tuple(column[received] for column in where)] = arrival_slot[received]
    return SlotLayout(
        table=table,
        input_slot=input_slot,
        output_slot=output_slot,
        arrival_slot=arrival_slot,
        sums=sums,
        sum_slot=_numbered(len(sums.kind), summed, sum_parts, numbers),
    )


def _numbered(
    count: int,
    rows: list[IntArray],
    parts: list[tuple[Section, IntArray]],
    numbers: Iterator[IntArray],
) -> IntArray:
    """Number of the slot of every content, [count], from the sections that hold these rows."""
    slots = np.empty(count, dtype=np.int64)
    for mine, (_, slot) in zip(rows, parts, strict=True):
        slots[mine] = next(numbers)[slot]
    return slots


def _sums(sums: Accumulators, lives: IntArray) -> Content:
    return Content(
        sums.rank[lives],
        sums.block[lives],
        sums.group[lives],
        sums.birth[lives],
        sums.death[lives],
    )


def _arrivals(phase: PlacedPhase, kind: Kind, rows: IntArray, last_use: Int32Array) -> Content:
    """What arrives of one kind, and how long it is needed."""
    moved = phase.schedule.transfers
    rank, block, group = moved.dst[rows], moved.block[rows], moved.group[rows]
    death = wait_time(moved.step[rows])
    if kind not in RESULTS:
        death = np.maximum(death, last_use[rank, kind, block, group])
    return Content(rank, block, group, launch_time(moved.step[rows]), death)


def _last_use_of_inputs(phase: PlacedPhase) -> Int32Array:
    """Last quarter in which each rank reads each input, [ranks, kinds, T, groups]; -1: never."""
    blocks, moved = phase.blocks, phase.schedule.transfers
    last = np.full(
        (phase.num_ranks, len(Kind), blocks.num_token_blocks, len(blocks.groups)),
        -1,
        dtype=np.int32,
    )
    time = attention_time(phase.schedule.comp_division)
    for kind in phase.inputs:
        block = blocks.comp_kv if kind == KEY_INPUT else blocks.comp_q
        np.maximum.at(last[:, kind], (phase.comp_device, block, blocks.comp_group), time)
    np.maximum.at(last, (moved.src, moved.kind, moved.block, moved.group), launch_time(moved.step))
    return last
