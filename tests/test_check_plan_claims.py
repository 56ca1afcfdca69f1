"""`check_plan` refuses what a plan says of itself and its masks and lengths do not bear out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from refusals import (
    HEADS,
    refused,
    scattered,
)

import dcp
from dcp.errors import PlanCheckError
from dcp.verification import check_plan


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
