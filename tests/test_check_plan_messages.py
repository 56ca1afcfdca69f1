"""`check_plan` names transfers that are missing, late or unmatched, and ranks that wait forever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from plan_damage import (
    instructions_of,
    kinds_of,
    program_of,
    with_instructions,
    with_items,
    without,
)
from refusals import (
    HEADS,
    changed,
    first,
    launch_with,
    place,
    refused,
    scattered,
)

import dcp
from dcp.blocks import Kind
from dcp.instructions import (
    CommLaunch,
    CommWait,
    Instruction,
    Items,
)
from dcp.scheduling import Phase


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
