"""`check_plan` proves sound plans and names computations, masks and copies that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from plan_damage import (
    instructions_of,
    program_of,
    with_items,
    with_program,
    without,
)
from refusals import (
    BATCH,
    CLUSTER,
    HEADS,
    changed,
    first,
    place,
    refused,
    scattered,
    swapped,
)

import dcp
from dcp.instructions import (
    Attention,
    Buffer,
    Copy,
    Items,
)
from dcp.scheduling import Phase
from dcp.verification import check_plan

PLANS: dict[str, Callable[[], dcp.ExecutionPlan]] = {
    "sequential": scattered,
    "paper": lambda: scattered("paper"),
    **{
        name: lambda name=name: dcp.plan(BATCH, HEADS, CLUSTER, block_size=5, baseline=name)
        for name in ("ring", "zigzag", "ulysses", "usp")
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_sound_plans_are_proven(name: str) -> None:
    plan = PLANS[name]()
    proof = check_plan(plan)
    assert proof.computations == len(plan.blocks.comp_q)
    assert proof.allowed_pairs == sum(
        one.area(n) for one, n in zip(BATCH.masks, BATCH.q_lengths, strict=True)
    )
    assert proof.forward.total_bytes == plan.report().comm_bytes
    assert proof.forward.inter_node_bytes == plan.report().inter_node_bytes
    assert "exactly once" in str(proof)


def test_a_saved_plan_is_proven_too() -> None:
    plan = dcp.ExecutionPlan.from_bytes(scattered("paper").to_bytes())
    assert check_plan(plan) == check_plan(scattered("paper"))


def test_a_duplicated_computation_is_named_at_both_places() -> None:
    plan = scattered()
    rank, index, attention = next(instructions_of(plan, "forward", Attention))
    damaged = with_items(plan, rank, "forward", index, lambda x: np.append(x, x[-1:]))
    q, kv = attention.items[-1][["q_block", "kv_block"]]
    refused(
        damaged,
        place(rank, "forward", index, "attention"),
        f"block {q} ",
        f"(q {q}, kv {kv}) is computed a second time",
        f"rank {rank} does so at instruction {index}",
    )


def test_a_computation_on_two_ranks_is_a_duplicate() -> None:
    plan = scattered()
    rank, index, attention = first(plan, "forward", Attention, lambda x: 0 in x.items["mask"])
    twice = attention.items[attention.items["mask"] == 0][:1].copy()
    other, other_index, _ = first(plan, "forward", Attention, lambda x: x is not attention)
    slots = program_of(plan, other, "forward").slots
    for field, buffer in (("q", Buffer.Q_IN), ("kv", Buffer.KV_IN), ("out", Buffer.O_ACC)):
        mine = np.flatnonzero(slots["buffer"] == buffer)
        twice[field] = mine[slots["size"][mine].argmax()]
    damaged = with_items(plan, other, "forward", other_index, lambda x: np.append(x, twice))
    refused(
        damaged,
        place(other, "forward", other_index, "attention"),
        f"is computed a second time; rank {rank} does so at instruction {index}",
    )


def test_a_missing_computation_is_named_with_its_device() -> None:
    plan = scattered()
    rank, index, attention = next(instructions_of(plan, "backward", Attention))
    q, kv = attention.items[0][["q_block", "kv_block"]]
    damaged = with_items(plan, rank, "backward", index, lambda x: without(x, 0))
    refused(damaged, f"rank {rank}, backward", f"(q {q}, kv {kv}) is never computed")


def test_a_computation_where_nothing_is_allowed_is_refused() -> None:
    plan = dcp.plan(dcp.Batch([8, 8]), HEADS, CLUSTER, block_size=8, baseline="ring")
    rank, index, _ = next(instructions_of(plan, "forward", Attention))
    program = program_of(plan, rank, "forward")
    home = np.flatnonzero(program.slots["buffer"] == Buffer.KV)
    other = int(plan.ranks[rank].home_blocks[1])

    def another_sequence(items: Items) -> Items:
        items["kv"][0], items["kv_block"][0] = home[program.slots["group"][home] == 0][1], other
        items["group"][0] = 0
        return items

    damaged = with_items(plan, rank, "forward", index, another_sequence)
    refused(damaged, place(rank, "forward", index, "attention"), "the mask allows nothing")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_mask_left_out_is_refused(phase: Phase) -> None:
    plan = scattered()
    rank, index, attention = first(plan, phase, Attention, lambda x: x.items["mask"].any())
    item = int(np.flatnonzero(attention.items["mask"])[0])
    damaged = with_items(plan, rank, phase, index, changed("mask", item, 0))
    refused(damaged, place(rank, phase, index, "attention"), "mask 0 of (q", "is not what")


def one_block() -> dcp.ExecutionPlan:
    """Six causal tokens on one device."""
    return dcp.plan(
        dcp.Batch([6]), HEADS, dcp.Cluster(devices_per_node=1), block_size=6, scheduler="paper"
    )


def test_a_mask_of_the_right_area_in_the_wrong_place_is_refused() -> None:
    plan = one_block()
    program = program_of(plan, 0, "forward")
    anticausal = np.array([[0, 6, 0, 6, 0, 5]])
    assert program.mask_slices.tolist() == [[0, 6, 0, 6, -5, 0]]
    damaged = msgspec.structs.replace(program, mask_slices=anticausal)
    refused(with_program(plan, 0, "forward", damaged), "mask 1 of (q 0, kv 0)")


def test_a_mask_cut_another_way_is_the_same_mask() -> None:
    plan = one_block()
    program = program_of(plan, 0, "forward")
    pieces = np.array([[0, 2, 0, 2, -9, 0], [2, 6, 0, 2, -9, 9], [2, 6, 2, 6, -9, 0]])

    def with_masks(rows: np.ndarray) -> dcp.ExecutionPlan:  # type: ignore[type-arg]
        ptr = np.array([0, 0, len(rows)])
        cut = msgspec.structs.replace(program, mask_slices=rows, mask_ptr=ptr)
        return with_program(plan, 0, "forward", cut)

    check_plan(with_masks(pieces))
    refused(with_masks(pieces[:2]), "mask 1 of (q 0, kv 0)")
    overlapping = np.concatenate([pieces, pieces[:1]])
    refused(with_masks(overlapping), "mask 1 of (q 0, kv 0)")


def test_a_result_copied_to_another_blocks_home_is_refused() -> None:
    plan = scattered()
    rank, index, copy = first(plan, "forward", Copy, lambda x: len(x.items) > 1)
    a, b = copy.items[:2]
    damaged = with_items(plan, rank, "forward", index, lambda x: swapped(x, "dst", 0, 1))
    refused(
        damaged,
        place(rank, "forward", index, "copy"),
        f"block {a['block']} group {a['group']}",
        f"the home of block {b['block']} group {b['group']}",
    )


def test_a_missing_copy_is_named() -> None:
    plan = scattered()
    rank, index, copy = list(instructions_of(plan, "backward", Copy))[-1]
    block = int(copy.items["block"][-1])
    damaged = with_items(plan, rank, "backward", index, lambda x: without(x, -1))
    refused(damaged, f"rank {rank}, backward", f"block {block} ", "never copied to its home")


def test_a_home_that_differs_from_the_placement_is_refused() -> None:
    plan = scattered()
    ranks = list(plan.ranks)
    ranks[0] = msgspec.structs.replace(ranks[0], home_blocks=ranks[1].home_blocks)
    content = msgspec.structs.replace(plan.content, ranks=ranks)
    refused(replace(plan, content=content), "rank 0 is home to blocks")
