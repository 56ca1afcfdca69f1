"""`check_plan` proves sound plans and names what is wrong with damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from plan_damage import (
    instructions_of,
    kinds_of,
    program_of,
    with_instructions,
    with_items,
    with_program,
    without,
)

import dcp
from dcp import masks
from dcp.blocks import Kind
from dcp.errors import PlanCheckError
from dcp.instructions import (
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
from dcp.scheduling import Phase
from dcp.verification import check_plan
from dcp.verification.strategies import AnyPlacement

# Whole blocks, so that every slot is large enough for every block of its kind.
BATCH = dcp.Batch([30, 0, 15, 5], mask=masks.sliding_window(11))
HEADS = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, dtype="float64")
CLUSTER = dcp.Cluster(nodes=2, devices_per_node=2)


def scattered(scheduler: str = "sequential") -> dcp.ExecutionPlan:
    """A plan with all kinds of transfers between all ranks."""
    return dcp.plan(
        BATCH, HEADS, CLUSTER, block_size=5, partitioner=AnyPlacement(seed=1), scheduler=scheduler
    )


PLANS: dict[str, Callable[[], dcp.ExecutionPlan]] = {
    "sequential": scattered,
    "paper": lambda: scattered("paper"),
    **{
        name: lambda name=name: dcp.plan(BATCH, HEADS, CLUSTER, block_size=5, baseline=name)
        for name in ("ring", "zigzag", "ulysses", "usp")
    },
}


def refused(plan: dcp.ExecutionPlan, *words: str) -> str:
    """Assert that the plan is refused with these words in the message."""
    with pytest.raises(PlanCheckError) as raised:
        check_plan(plan)
    message = str(raised.value)
    for word in words:
        assert word in message, f"{word!r} not in {message!r}"
    return message


def place(rank: int, phase: Phase, index: int, kind: str) -> str:
    return f"rank {rank}, {phase}, instruction {index} ({kind})"


def first(
    plan: dcp.ExecutionPlan, phase: Phase, kind: type[Any], condition: Callable[[Any], bool]
) -> tuple[int, int, Any]:
    """Rank, index and instruction of the first one of a kind that meets a condition."""
    return next(each for each in instructions_of(plan, phase, kind) if condition(each[2]))


def changed(field: str, position: int, value: int) -> Callable[[Items], Items]:
    """An edit that sets one field of one item."""

    def edit(items: Items) -> Items:
        items[field][position] = value
        return items

    return edit


def launch_with(plan: dcp.ExecutionPlan, phase: Phase, kind: Kind) -> tuple[int, int, int]:
    """Rank, instruction and item of the first receive of this kind."""
    for rank, index, launch in instructions_of(plan, phase, CommLaunch):
        found = kinds_of(program_of(plan, rank, phase), launch.receives)
        if kind in found:
            return rank, index, found.index(kind)
    raise AssertionError(f"no {kind.name} is received")


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


@pytest.mark.parametrize("kind", [Kind.Q, Kind.KV])
def test_a_dropped_transfer_is_read_before_it_is_there(kind: Kind) -> None:
    plan = scattered()
    rank, index, item = launch_with(plan, "forward", kind)
    damaged, block = dropped(plan, "forward", rank, index, item)
    refused(damaged, f"rank {rank}, forward", "(attention)", f"block {block} ", "holds nothing")


@pytest.mark.parametrize("kind", [Kind.O, Kind.DQ, Kind.DKV])
def test_a_dropped_result_is_missed_where_it_is_merged(kind: Kind) -> None:
    plan = scattered()
    phase: Phase = "forward" if kind == Kind.O else "backward"
    rank, index, item = launch_with(plan, phase, kind)
    damaged, block = dropped(plan, phase, rank, index, item)
    refused(damaged, f"rank {rank}, {phase}", "(reduce)", f"block {block} ", "holds nothing")


def dropped(
    plan: dcp.ExecutionPlan, phase: Phase, rank: int, index: int, item: int
) -> tuple[dcp.ExecutionPlan, int]:
    """The plan without one transfer, at neither end; and the block that it carried."""
    receiving = program_of(plan, rank, phase)
    launch = receiving.instructions[index]
    assert isinstance(launch, CommLaunch)
    row = launch.receives[item]
    kind = kinds_of(receiving, launch.receives)[item]
    source = int(row["peer"])
    sending = program_of(plan, source, phase)
    for other, send in enumerate(sending.instructions):
        if isinstance(send, CommLaunch) and send.step == launch.step:
            for position, sent in enumerate(send.sends):
                label = (sent["peer"], sent["block"], sent["group"])
                same_kind = kinds_of(sending, send.sends)[position] == kind
                if label == (rank, row["block"], row["group"]) and same_kind:
                    plan = with_items(
                        plan, source, phase, other, lambda x, p=position: without(x, p), "sends"
                    )
    plan = with_items(plan, rank, phase, index, lambda x: without(x, item), "receives")
    return plan, int(row["block"])


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


def swapped(items: Items, field: str, a: int, b: int) -> Items:
    items[field][[a, b]] = items[field][[b, a]]
    return items


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


def test_a_removed_wait_lets_data_be_read_too_early() -> None:
    plan = scattered()
    rank, index, _ = next(instructions_of(plan, "forward", CommWait))
    damaged = with_instructions(plan, rank, "forward", lambda x: x[:index] + x[index + 1 :])
    refused(damaged, f"rank {rank}, forward, instruction", "block ", "has not been waited for")


def test_a_wait_for_nothing_is_refused() -> None:
    plan = scattered()

    def wait_first(instructions: list[Instruction]) -> list[Instruction]:
        return [CommWait(1), *instructions]

    damaged = with_instructions(plan, 2, "forward", wait_first)
    refused(damaged, place(2, "forward", 0, "commwait"), "nothing is on its way")


@pytest.mark.parametrize(
    ("field", "text"),
    [("sends", "which does not send it"), ("receives", "which does not receive it")],
)
def test_a_transfer_with_one_end_is_refused(field: str, text: str) -> None:
    plan = scattered()
    rank, index, launch = first(plan, "forward", CommLaunch, lambda x: len(getattr(x, field)) > 0)
    row = getattr(launch, field)[-1]
    peer = int(row["peer"])
    damaged = with_items(plan, rank, "forward", index, lambda x: without(x, -1), field)
    refused(
        damaged,
        f"rank {peer}, forward, instruction",
        f"block {row['block']} group {row['group']}",
        text,
        f"rank {rank}",
    )


def exchanged(items: Items) -> Items:
    """The first two items in the other order."""
    items[[0, 1]] = items[[1, 0]]
    return items


def test_messages_packed_in_another_order_are_refused() -> None:
    plan = scattered()
    rank, index, _ = first(
        plan, "forward", CommLaunch, lambda x: len(set(x.sends["peer"][:2])) < len(x.sends[:2])
    )
    damaged = with_items(plan, rank, "forward", index, exchanged, "sends")
    refused(damaged, place(rank, "forward", index, "commlaunch"), "where rank", "expects")


def test_a_message_to_oneself_is_refused() -> None:
    plan = scattered()
    rank, index, _ = next(instructions_of(plan, "forward", CommLaunch))
    damaged = with_items(plan, rank, "forward", index, changed("peer", 0, rank), "sends")
    refused(damaged, place(rank, "forward", index, "commlaunch"), f"peer is {rank}")


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


def test_ranks_that_wait_for_each_other_are_named() -> None:
    """Both wait for what the other sends afterwards."""
    plan = dcp.plan(
        dcp.Batch([8]), HEADS, dcp.Cluster(devices_per_node=2), block_size=4, baseline="ring"
    )

    def waiting_first(step_in: int, step_out: int) -> Callable[[list[Instruction]], Any]:
        def edit(instructions: list[Instruction]) -> list[Instruction]:
            launch, *rest = instructions
            assert isinstance(launch, CommLaunch)
            receive = msgspec.structs.replace(launch, sends=launch.sends[:0], step=step_in)
            send = msgspec.structs.replace(launch, receives=launch.receives[:0], step=step_out)
            others = [x for x in rest if not (isinstance(x, CommWait) and x.step == launch.step)]
            return [receive, CommWait(step_in), send, *others]

        return edit

    damaged = with_instructions(plan, 0, "forward", waiting_first(7, 8))
    damaged = with_instructions(damaged, 1, "forward", waiting_first(8, 7))
    refused(
        damaged,
        place(0, "forward", 1, "commwait"),
        "no rank can go on: rank 0 waits at instruction 1 for step 7 from rank 1; "
        "rank 1 waits at instruction 1 for step 8 from rank 0",
    )


def test_launches_out_of_step_are_refused_even_where_they_get_through() -> None:
    plan = dcp.plan(
        dcp.Batch([9]), HEADS, dcp.Cluster(devices_per_node=3), block_size=3, baseline="ring"
    )

    def renumbered(instructions: list[Instruction]) -> list[Instruction]:
        return [
            msgspec.structs.replace(one, step=5) if getattr(one, "step", 0) == 1 else one
            for one in instructions
        ]

    for rank in range(3):
        plan = with_instructions(plan, rank, "forward", renumbered)
    refused(plan, "rank 0, forward", "(commlaunch)", "launches step 2 after step 5")


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


def with_blocks(plan: dcp.ExecutionPlan, **fields: Any) -> dcp.ExecutionPlan:
    """The plan with some arrays of its blocks replaced."""
    blocks = replace(plan.blocks, **fields)
    content = msgspec.structs.replace(plan.content, blocks=blocks)
    return replace(plan, content=content)


def test_token_blocks_that_leave_a_gap_are_refused() -> None:
    plan = scattered()
    start = plan.blocks.token_start.copy()
    start[2] += 1
    refused(with_blocks(plan, token_start=start), "block 2: query tokens 11 … 16 of sequence 0")


def test_sequences_that_are_longer_than_their_blocks_are_refused() -> None:
    plan = scattered()
    lengths = plan.blocks.q_lengths.copy()
    lengths[-1] += 1
    refused(with_blocks(plan, q_lengths=lengths), "hold 50 query tokens, the sequences 51")


def test_a_query_head_in_two_groups_is_refused() -> None:
    plan = scattered()
    groups = replace(plan.blocks.groups, q_start=np.array([0, 1]))
    refused(with_blocks(plan, groups=groups), "query heads [0, 1, 1, 2]", "exactly one")
    groups = replace(plan.blocks.groups, kv_head=np.array([1, 0]))
    refused(with_blocks(plan, groups=groups), "read another key head")


def test_mask_slices_that_overlap_or_leave_their_sequence_are_refused() -> None:
    plan = scattered()
    slices = plan.blocks.sequence_slices
    twice = with_blocks(
        plan,
        sequence_slices=np.concatenate([slices, slices[:1]]),
        slice_sequence=np.append(plan.blocks.slice_sequence, plan.blocks.slice_sequence[0]),
    )
    refused(twice, "of sequence 0 overlap")
    outside = slices.copy()
    outside[0, 1] += 100
    refused(with_blocks(plan, sequence_slices=outside), "leaves sequence 0")


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    plan = scattered()
    refused(with_blocks(plan, token_side=plan.blocks.token_side[:-1]), "token_side", "shapes")
    refused(with_blocks(plan, comp_mask=plan.blocks.comp_mask[:-1]), "comp_mask", "shapes")


def test_a_claim_about_the_work_that_the_masks_do_not_bear_out_is_refused() -> None:
    plan = scattered()
    pairs = plan.blocks.comp_pairs.copy()
    pairs[3] += 1
    refused(with_blocks(plan, comp_pairs=pairs), "computation block 3 is (q")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("volume_bytes", 0),
        ("inter_node_bytes", 1),
        ("compute_imbalance", 1.0),
        ("token_imbalance", 9.0),
        ("violations", ("none at all",)),
    ],
)
def test_figures_of_the_placement_that_are_not_true_are_refused(name, value):
    plan = dcp.plan(
        dcp.Batch([90, 40]), HEADS, dcp.Cluster(nodes=2, devices_per_node=2), baseline="ring"
    )
    placement = replace(plan.placement, **{name: value})
    content = msgspec.structs.replace(plan.content, placement=placement)
    with pytest.raises(PlanCheckError, match=f"the placement says {name}"):
        check_plan(replace(plan, content=content))


@pytest.mark.parametrize("field", ["mask_ptr", "slots", "arena_rows"])
def test_arrays_of_another_shape_are_refused(field):
    plan = dcp.plan(dcp.Batch([90]), HEADS, dcp.Cluster(devices_per_node=2), baseline="ring")
    first, *others = plan.ranks
    array = getattr(first.forward, field)
    damaged = msgspec.structs.replace(first.forward, **{field: np.stack([array, array])})
    ranks = [msgspec.structs.replace(first, forward=damaged), *others]
    content = msgspec.structs.replace(plan.content, ranks=ranks)
    with pytest.raises(PlanCheckError):
        check_plan(replace(plan, content=content))
