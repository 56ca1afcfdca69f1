"""Plans to damage, where in them to do so, and that they are then refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plan_damage import (
    instructions_of,
    kinds_of,
    program_of,
)

import dcp
from dcp import masks
from dcp.blocks import Kind
from dcp.errors import PlanCheckError
from dcp.instructions import (
    CommLaunch,
    Items,
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


def swapped(items: Items, field: str, a: int, b: int) -> Items:
    items[field][[a, b]] = items[field][[b, a]]
    return items
