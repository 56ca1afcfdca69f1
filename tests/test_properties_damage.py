"""One random change to a plan is refused, or does no harm: then the numbers are still right."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from plan_damage import program_of, with_instructions, with_program

import dcp
from dcp import masks
from dcp.errors import PlanCheckError
from dcp.instructions import Attention, CommLaunch, Copy, Instruction, Program, Reduce
from dcp.scheduling import PHASES, Phase
from dcp.verification import check_plan
from dcp.verification.local_run import check_numbers
from dcp.verification.strategies import AnyPlacement

pytestmark = pytest.mark.property

BATCH = dcp.Batch([11, 0, 7, 1], mask=masks.lambda_mask(2, 5))
HEADS = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=4, dtype="float64")
PLANS = [
    dcp.plan(BATCH, HEADS, cluster, block_size=3, **options)
    for cluster in (dcp.Cluster(devices_per_node=2), dcp.Cluster(devices_per_node=3))
    for options in (
        {"partitioner": AnyPlacement(seed=3), "scheduler": "sequential"},
        {"partitioner": AnyPlacement(seed=4), "scheduler": "paper"},
        {"baseline": "ring"},
        {"baseline": "zigzag"},
        {"baseline": "usp"},
    )
]
ITEM_FIELDS: dict[type[Any], tuple[str, ...]] = {
    Attention: ("items",),
    Reduce: ("items",),
    Copy: ("items",),
    CommLaunch: ("sends", "receives"),
}


@st.composite
def damaged(draw: st.DrawFn) -> dcp.ExecutionPlan:
    """A sound plan with one random change in one rank's program."""
    plan = draw(st.sampled_from(PLANS))
    rank, phase = draw(st.integers(0, len(plan.ranks) - 1)), draw(st.sampled_from(PHASES))
    change = draw(st.sampled_from([change_item, change_order, change_slot, change_mask]))
    event(change.__name__)
    return change(draw, plan, rank, phase)


def change_item(
    draw: st.DrawFn, plan: dcp.ExecutionPlan, rank: int, phase: Phase
) -> dcp.ExecutionPlan:
    """A field of an item gets another value, or an item is dropped, doubled or moved."""

    def edit(instructions: list[Instruction]) -> list[Instruction]:
        places = [
            (index, field)
            for index, one in enumerate(instructions)
            for field in ITEM_FIELDS.get(type(one), ())
            if len(getattr(one, field))
        ]
        index, field = draw(st.sampled_from(places))
        items = getattr(instructions[index], field).copy()
        position = draw(st.integers(0, len(items) - 1))
        kind = draw(st.sampled_from(["value", "value", "drop", "double", "move"]))
        if kind == "value":
            name = draw(st.sampled_from(items.dtype.names))
            values = sorted({*items[name].tolist(), *(items[name] + 1).tolist(), -1})
            items[name][position] = draw(st.sampled_from(values))
        elif kind == "move":
            items[[position, -1]] = items[[-1, position]]
        else:
            items = np.repeat(items, np.where(np.arange(len(items)) == position, _TIMES[kind], 1))
        instructions[index] = msgspec.structs.replace(instructions[index], **{field: items})
        return instructions

    return with_instructions(plan, rank, phase, edit)


_TIMES = {"drop": 0, "double": 2}


def change_order(
    draw: st.DrawFn, plan: dcp.ExecutionPlan, rank: int, phase: Phase
) -> dcp.ExecutionPlan:
    """An instruction is dropped, doubled, or exchanged with another; or its step changes."""

    def edit(instructions: list[Instruction]) -> list[Instruction]:
        index = draw(st.integers(0, len(instructions) - 1))
        one = instructions[index]
        kind = draw(st.sampled_from(["drop", "double", "exchange", "step"]))
        if kind in _TIMES:
            return instructions[:index] + [one] * _TIMES[kind] + instructions[index + 1 :]
        if kind == "exchange":
            other = draw(st.integers(0, len(instructions) - 1))
            instructions[index], instructions[other] = instructions[other], one
        elif hasattr(one, "step"):
            step = one.step + draw(st.sampled_from([-1, 1]))
            instructions[index] = msgspec.structs.replace(one, step=step)
        return instructions

    return with_instructions(plan, rank, phase, edit)


def change_slot(
    draw: st.DrawFn, plan: dcp.ExecutionPlan, rank: int, phase: Phase
) -> dcp.ExecutionPlan:
    """A slot or an arena becomes larger, smaller, or lies elsewhere."""
    program = program_of(plan, rank, phase)
    if draw(st.booleans()):
        rows = program.arena_rows.copy()
        rows[draw(st.integers(0, len(rows) - 1))] += draw(st.sampled_from([-1, 1, 7]))
        return with_program(plan, rank, phase, replaced(program, arena_rows=rows))
    slots = program.slots.copy()
    slot = draw(st.integers(0, len(slots) - 1))
    name = draw(st.sampled_from(slots.dtype.names))
    slots[name][slot] += draw(st.sampled_from([-1, 1, 2, -3]))
    return with_program(plan, rank, phase, replaced(program, slots=slots))


def change_mask(
    draw: st.DrawFn, plan: dcp.ExecutionPlan, rank: int, phase: Phase
) -> dcp.ExecutionPlan:
    """A bound of a mask slice moves, or a slice counts to another mask."""
    program = program_of(plan, rank, phase)
    if not len(program.mask_slices):
        return plan
    rows, ptr = program.mask_slices.copy(), program.mask_ptr.copy()
    if draw(st.booleans()):
        row, column = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, 5))
        rows[row, column] += draw(st.sampled_from([-1, 1, 3]))
    else:
        ptr[draw(st.integers(0, len(ptr) - 1))] += draw(st.sampled_from([-1, 1]))
    return with_program(plan, rank, phase, replaced(program, mask_slices=rows, mask_ptr=ptr))


def replaced(program: Program, **fields: Any) -> Program:
    changed: Program = msgspec.structs.replace(program, **fields)
    return changed


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{len(plan.ranks)} x {plan.origin}")
def test_the_plans_are_sound_before_they_are_changed(plan: dcp.ExecutionPlan) -> None:
    check_plan(plan)


@given(plan=damaged(), seed=st.integers(0, 9))
@settings(max_examples=8 * settings.default.max_examples)
def test_what_is_not_refused_is_still_right(plan: dcp.ExecutionPlan, seed: int) -> None:
    try:
        check_plan(plan)
    except PlanCheckError:
        event("refused")
        return
    event("harmless")
    check_numbers(BATCH, plan, seed=seed)
