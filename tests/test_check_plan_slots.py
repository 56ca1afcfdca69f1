"""`check_plan` names slots that hold something else, lose what they held or do not fit."""

from __future__ import annotations

import msgspec
import numpy as np
from plan_damage import (
    instructions_of,
    kinds_of,
    program_of,
    with_items,
    with_program,
)
from refusals import (
    changed,
    first,
    launch_with,
    place,
    refused,
    scattered,
    swapped,
)

import dcp
from dcp.blocks import Kind
from dcp.instructions import (
    Attention,
    Buffer,
    CommLaunch,
    Items,
    Program,
    Reduce,
)


def test_two_swapped_slots_are_seen_by_the_first_reader() -> None:
    plan = scattered()
    rank, index, _ = launch_with(plan, "forward", Kind.KV)
    program = program_of(plan, rank, "forward")
    launch = program.instructions[index]
    assert isinstance(launch, CommLaunch)
    kv = [i for i, kind in enumerate(kinds_of(program, launch.receives)) if kind == Kind.KV]
    damaged = with_items(
        plan, rank, "forward", index, lambda x: swapped(x, "slot", kv[0], kv[1]), "receives"
    )
    refused(damaged, f"rank {rank}, forward", "(attention)", "KV: reads it from slot", "holds KV")


def test_reuse_of_a_sum_that_is_still_growing_is_refused() -> None:
    plan = scattered()
    rank, index, attention = first(plan, "forward", Attention, lambda x: x.items["fresh"].sum() > 1)
    fresh = np.flatnonzero(attention.items["fresh"])
    slot = int(attention.items["out"][fresh[0]])

    def reused(items: Items) -> Items:
        mine = items["out"] == items["out"][fresh[1]]
        items["out"][mine] = slot
        return items

    damaged = with_items(plan, rank, "forward", index, reused)
    refused(damaged, place(rank, "forward", index, "attention"), f"overwrites slot {slot}", "lost")


def test_reuse_of_an_input_that_is_still_read_is_refused() -> None:
    """The slot of a later arrival is taken for an earlier one too."""
    plan = scattered("paper")
    program, rank, first, second = two_kv_launches(plan)
    one, two = program.instructions[first], program.instructions[second]
    assert isinstance(one, CommLaunch)
    assert isinstance(two, CommLaunch)
    kv_one = kinds_of(program, one.receives).index(Kind.KV)
    kv_two = kinds_of(program, two.receives).index(Kind.KV)
    slot = int(one.receives["slot"][kv_one])
    damaged = with_items(plan, rank, "forward", second, changed("slot", kv_two, slot), "receives")
    refused(damaged, f"rank {rank}, forward, instruction", f"slot {slot}")


def two_kv_launches(plan: dcp.ExecutionPlan) -> tuple[Program, int, int, int]:
    for rank in range(len(plan.ranks)):
        program = program_of(plan, rank, "forward")
        indices = [
            index
            for index, one in enumerate(program.instructions)
            if isinstance(one, CommLaunch) and Kind.KV in kinds_of(program, one.receives)
        ]
        if len(indices) > 1:
            return program, rank, indices[0], indices[1]
    raise AssertionError("no rank receives keys twice")


def test_gradients_in_another_blocks_slot_are_refused() -> None:
    """Computations sorted by key block, their gradient slots left in the old order."""
    plan = scattered()
    rank, index, _ = first(
        plan, "backward", Attention, lambda x: len(np.unique(x.items["dkv"])) > 2
    )

    def unsorted_slots(items: Items) -> Items:
        slots = np.unique(items["dkv"])
        turned = dict(zip(slots.tolist(), np.roll(slots, 1).tolist(), strict=True))
        items["dkv"] = [turned[slot] for slot in items["dkv"].tolist()]
        return items

    damaged = with_items(plan, rank, "backward", index, unsorted_slots)
    refused(damaged, f"rank {rank}, backward, instruction", "DKV", "slot")


def test_a_stale_sum_is_not_added_to() -> None:
    plan = scattered()
    rank, index, attention = next(instructions_of(plan, "forward", Attention))
    begun = int(np.flatnonzero(attention.items["fresh"])[0])
    damaged = with_items(plan, rank, "forward", index, changed("fresh", begun, 0))
    refused(damaged, place(rank, "forward", index, "attention"), "adds to slot", "holds nothing")


def test_a_sum_that_begins_anew_loses_what_it_held() -> None:
    plan = scattered()
    rank, index, reduce = next(instructions_of(plan, "forward", Reduce))
    merged = int(np.flatnonzero(reduce.items["fresh"] == 0)[0])
    damaged = with_items(plan, rank, "forward", index, changed("fresh", merged, 1))
    refused(damaged, place(rank, "forward", index, "reduce"), "which would be lost")


def test_overlapping_slots_are_refused() -> None:
    plan = scattered()
    program = program_of(plan, 1, "forward")
    slots = program.slots.copy()
    mine = np.flatnonzero(slots["buffer"] == Buffer.KV_IN)
    slots["offset"][mine[1]] = slots["offset"][mine[0]]
    damaged = msgspec.structs.replace(program, slots=slots)
    refused(with_program(plan, 1, "forward", damaged), "rank 1, forward", "overlap in arena KV_IN")


def test_slots_beyond_their_arena_are_refused() -> None:
    plan = scattered()
    program = program_of(plan, 1, "forward")
    rows = program.arena_rows.copy()
    rows[Buffer.O_ACC] -= 1
    damaged = msgspec.structs.replace(program, arena_rows=rows)
    refused(with_program(plan, 1, "forward", damaged), "rank 1, forward", "of arena O_ACC")


def test_slots_that_are_too_small_are_refused() -> None:
    plan = scattered()
    rank = next(instructions_of(plan, "forward", Attention))[0]
    program = program_of(plan, rank, "forward")
    slots = program.slots.copy()
    slots["size"][slots["buffer"] == Buffer.O_ACC] = 1
    damaged = msgspec.structs.replace(program, slots=slots)
    refused(with_program(plan, rank, "forward", damaged), f"rank {rank}, forward", "with 1 rows")


def test_an_arena_larger_than_its_slots_is_refused() -> None:
    plan = scattered()
    program = program_of(plan, 0, "forward")
    rows = program.arena_rows.copy()
    rows[Buffer.O_ACC] = 1 << 62
    damaged = msgspec.structs.replace(program, arena_rows=rows)
    refused(with_program(plan, 0, "forward", damaged), "rank 0, forward", "the slots fill")
