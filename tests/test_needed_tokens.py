"""Placed blocks are cut again where a device needs some of their tokens only."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_check_plan_claims import with_blocks

import dcp
from dcp import masks
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import BlockGraph, Kind
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.errors import PlanCheckError
from dcp.needed_tokens import cut_to_need
from dcp.placement import Assignment, Limits, PlacementProblem, evaluate
from dcp.verification import check_plan
from dcp.verification.any_placement import AnyPlacement
from dcp.verification.local_run import check_numbers
from dcp.verification.strategies import batches, block_sizes, clusters, specs

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, dtype="float64")
TWO = Cluster(devices_per_node=2)
KEY_BYTES = 2 * 2 * 8 * 8  # keys and values of a token, all head groups


def with_the_queries(blocks: BlockGraph, home: np.ndarray) -> Assignment:
    return Assignment(home, home[blocks.comp_q])


def halves(blocks: BlockGraph) -> Assignment:
    """The first half of the token blocks on one device, the second on another."""
    count = blocks.num_token_blocks
    return with_the_queries(blocks, np.arange(count) * 2 // count)


def volume(blocks: BlockGraph, answer: Assignment, cluster: Cluster = TWO) -> int:
    return evaluate(PlacementProblem.of(blocks, cluster), answer).volume_bytes


@pytest.mark.parametrize("window", [3, 11, 20, 33])
def test_of_a_window_over_two_devices_all_keys_but_one_are_sent(window: int) -> None:
    blocks = cut(Batch([128], mask=masks.sliding_window(window)), SPEC, 16)
    pieces, answer = cut_to_need(blocks, halves(blocks))
    assert volume(pieces, answer) == (window - 1) * KEY_BYTES
    assert volume(blocks, halves(blocks)) == -(-(window - 1) // 16) * 16 * KEY_BYTES


def test_queries_that_another_device_computes_are_cut_too() -> None:
    """Four queries of the second block look back; the device of their keys computes that."""
    slices = [[0, 16, 0, 16, -32, 0], [16, 20, 0, 16, -32, 0], [16, 32, 16, 32, -32, 0]]
    blocks = cut(Batch([32], mask=masks.from_slices(slices, 32, 32)), SPEC, 16)
    home = np.array([0, 1])
    pieces, answer = cut_to_need(blocks, Assignment(home, home[blocks.comp_kv]))
    assert pieces.token_length.tolist() == [16, 4, 12]
    assert answer.token_home.tolist() == [0, 1, 1]
    sent = pieces.data_bytes[Kind.Q, 1].sum() + pieces.data_bytes[Kind.O, 1].sum()
    assert volume(pieces, answer) == sent


@pytest.mark.parametrize(
    "mask", [masks.causal(), masks.full(), masks.sliding_window(33), masks.sliding_window(32)]
)
def test_blocks_stay_as_they_are_where_cuts_save_little_or_nothing(mask: masks.Mask) -> None:
    """A window of 32 needs all but one token of two blocks; an eighth of 16 would be two."""
    blocks = cut(Batch([128], mask=mask), SPEC, 16)
    given_answer = halves(blocks)
    pieces, answer = cut_to_need(blocks, given_answer)
    assert pieces is blocks
    assert answer is given_answer


def test_a_block_of_which_many_devices_need_different_parts_is_cut_several_times() -> None:
    mask = masks.from_dense(np.kron(np.eye(4), np.ones((16, 4))) > 0)
    blocks = cut(Batch([64], [16], mask=mask), SPEC, 16)
    home = np.array([0, 1, 2, 3, 0])
    pieces, answer = cut_to_need(blocks, with_the_queries(blocks, home))
    assert pieces.token_length.tolist() == [16, 16, 16, 16, 4, 4, 4, 4]
    assert volume(pieces, answer, Cluster(devices_per_node=4)) == 12 * KEY_BYTES


def whole_of(pieces: BlockGraph) -> np.ndarray:
    """Whole (q, kv, group) of every computation block."""
    whole = pieces.token_whole
    return np.stack([whole[pieces.comp_q], whole[pieces.comp_kv], pieces.comp_group])


@pytest.mark.property
@given(data=st.data(), cluster=clusters(), seed=st.integers(0, 99))
def test_pieces_stay_where_their_wholes_are_and_send_no_more(data, cluster, seed) -> None:
    block_size = data.draw(block_sizes())
    blocks = cut(data.draw(batches(block_size)), data.draw(specs()), block_size)
    problem = PlacementProblem.of(blocks, cluster)
    before = evaluate(problem, AnyPlacement(seed=seed).place(problem))
    pieces, answer = cut_to_need(blocks, before.assignment)
    after = evaluate(PlacementProblem.of(pieces, cluster), answer)

    least = block_size * 2 * blocks.spec.num_kv_heads * blocks.spec.head_dim * 8 / 8
    cuts = pieces.num_token_blocks - blocks.num_token_blocks
    assert after.volume_bytes <= before.volume_bytes - cuts * least
    assert after.inter_node_bytes <= before.inter_node_bytes
    for name in ("compute_imbalance", "token_imbalance", "violations"):
        assert getattr(after, name) == getattr(before, name)

    assert np.array_equal(after.token_home, before.token_home[pieces.token_whole])
    length = np.bincount(pieces.token_whole, pieces.token_length, blocks.num_token_blocks)
    assert np.array_equal(length, blocks.token_length)
    device = dict(zip(zip(*whole_of(blocks), strict=True), before.comp_device, strict=True))
    assert [device[key] for key in zip(*whole_of(pieces), strict=True)] == list(after.comp_device)
    pairs = np.bincount(pieces.comp_whole, pieces.comp_pairs, len(blocks.comp_q))
    assert np.array_equal(pairs, blocks.comp_pairs)


WINDOW = Batch([300, 90], mask=masks.sliding_window(70))


@pytest.fixture(scope="module")
def plan() -> dcp.ExecutionPlan:
    return dcp.plan(
        WINDOW, SPEC, Cluster(nodes=2, devices_per_node=2), block_size=32,
        partitioner="local_search", scheduler="overlap",
    )  # fmt: skip


def test_a_plan_of_pieces_is_proven_and_equals_dense_attention(plan: dcp.ExecutionPlan) -> None:
    uncut = cut(WINDOW, SPEC, 32, at_mask_edges=True)
    assert plan.blocks.num_token_blocks > uncut.num_token_blocks
    assert plan.report().comm_bytes == plan.placement.volume_bytes
    check_plan(plan)
    check_numbers(WINDOW, plan)


def test_static_schemes_send_whole_blocks() -> None:
    ring = dcp.plan(WINDOW, SPEC, TWO, block_size=32, baseline="ring")
    assert ring.blocks.token_whole.tolist() == list(range(ring.blocks.num_token_blocks))


def test_limits_are_those_of_whole_blocks() -> None:
    """Four equal blocks on three devices: no packing of wholes is better, one of pieces is."""
    blocks = cut(Batch([64], mask=masks.sliding_window(9)), SPEC, 16)
    pieces, answer = cut_to_need(blocks, with_the_queries(blocks, np.array([0, 0, 1, 2])))
    assert pieces.num_token_blocks > 4
    uneven = Limits(inter_node=0.5, intra_node=0.5)
    problem = PlacementProblem.of(pieces, Cluster(devices_per_node=3), limits=uneven)
    assert evaluate(problem, answer).feasible


def test_wholes_that_are_no_wholes_are_refused(plan: dcp.ExecutionPlan) -> None:
    whole, home = plan.blocks.token_whole, plan.placement.token_home
    assert check_plan(with_blocks(plan, token_whole=whole))
    apart = np.flatnonzero(np.diff(home)) + 1  # joined with a block of another home
    far = np.flatnonzero(np.diff(whole)) + 1  # joined with the whole before
    for first in itertools.chain(apart[:1], far[:1]):
        joined = whole - (np.arange(len(whole)) >= first)
        with pytest.raises(PlanCheckError, match="is no piece of whole block"):
            check_plan(with_blocks(plan, token_whole=joined))
