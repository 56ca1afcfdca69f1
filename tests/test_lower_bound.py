"""No placement within the limits sends less than the lower bound."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioner_problems import BATCHES, EIGHT_BY_TWO, FOUR_BY_EIGHT, GQA

from dcp import masks, registry, slices
from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.lower_bound import lower_bound_bytes
from dcp.needed_tokens import cut_to_need
from dcp.packing import pack_longest_first
from dcp.placement import Assignment, Limits, PlacementProblem, evaluate
from dcp.row_lengths import RowLengths
from dcp.verification.exact import optimal_placement
from dcp.verification.strategies import batches, clusters, specs

needs_solver = pytest.mark.skipif(
    find_spec("highspy") is None,
    reason="highspy is not installed; install dynamic-context-parallel[exact]",
)
SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, dtype="float64")
KEY_BYTES = 2 * 2 * 8 * 8  # keys and values of a token, all head groups


def bound_of(
    batch: Batch,
    cluster: Cluster,
    *,
    spec: AttentionSpec = SPEC,
    block_size: int = 16,
    limits: Limits | None = None,
) -> int:
    blocks = cut(batch, spec, block_size)
    return lower_bound_bytes(blocks, PlacementProblem.of(blocks, cluster, limits=limits))


def limits() -> st.SearchStrategy[Limits]:
    return st.builds(
        Limits,
        inter_node=st.sampled_from([0.0, 0.1, 0.4]),
        intra_node=st.sampled_from([0.0, 0.1, 0.5]),
        device=st.sampled_from([None, 0.1]),
        tokens=st.sampled_from([0.01, 0.3]),
    )


@pytest.mark.property
@given(
    batch=batches(4), spec=specs(), cluster=clusters(), block_size=st.integers(1, 4),
    limits=limits(), name=st.sampled_from(["greedy", "local_search"]),
)  # fmt: skip
def test_no_partitioner_sends_less(batch, spec, cluster, block_size, limits, name) -> None:
    """Not by placing blocks of a few tokens, nor by cutting them to what is needed."""
    blocks = cut(batch, spec, block_size)
    problem = PlacementProblem.of(blocks, cluster, limits=limits)
    bound = lower_bound_bytes(blocks, problem)
    placement = evaluate(problem, registry.create("partitioners", name).place(problem))
    if placement.feasible:
        pieces, answer = cut_to_need(blocks, placement.assignment)
        after = PlacementProblem.of(pieces, cluster, limits=limits)
        assert bound <= evaluate(after, answer).volume_bytes <= placement.volume_bytes


@pytest.mark.property
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    mask=st.sampled_from([masks.causal(), masks.full(), masks.lambda_mask(2, 9)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=max(1, settings.default.max_examples // 2))
def test_no_balanced_placement_sends_less(lengths, mask, seed) -> None:
    """Homes packed evenly, most computations at their queries, some anywhere."""
    blocks = cut(Batch(lengths, mask=mask), SPEC, 2)
    problem = PlacementProblem.of(blocks, Cluster(nodes=2, devices_per_node=2))
    bound, random = lower_bound_bytes(blocks, problem), np.random.default_rng(seed)
    home = pack_longest_first(blocks.token_length, 4)
    for _ in range(20):
        moved = random.random(len(blocks.comp_q)) < random.random()
        anywhere = random.integers(0, 4, len(blocks.comp_q))
        comp = np.where(moved, anywhere, home[blocks.comp_q])
        placement = evaluate(problem, Assignment(home, comp))
        assert placement.volume_bytes >= bound or not placement.feasible


TWO, THREE = Cluster(devices_per_node=2), Cluster(nodes=3, devices_per_node=1)
APART = {
    "causal": (Batch([64]), TWO, None),
    "causal, exact balance": (Batch([64]), TWO, Limits(device=0.02)),
    "causal, ragged": (Batch([48, 40, 9]), TWO, None),
    "window": (Batch([96], mask=masks.sliding_window(20)), TWO, None),
    "window, three": (Batch([64], mask=masks.sliding_window(20)), THREE, None),
    "lambda": (Batch([80], mask=masks.lambda_mask(8, 24)), TWO, None),
    "full": (Batch([48], mask=masks.full()), TWO, None),
    "full, three": (Batch([48], mask=masks.full()), THREE, None),
    "mixed": (Batch([48, 30], mask=[masks.causal(), masks.sliding_window(9)]), TWO, None),
    "question": (Batch([64], mask=masks.shared_question(answer_lengths=[16, 16])), TWO, None),
    "cross-attention": (Batch([32], [64], mask=masks.full()), TWO, None),
}


@needs_solver
@pytest.mark.parametrize("name", APART)
def test_no_placement_with_head_groups_apart_sends_less(name: str) -> None:
    batch, cluster, limits = APART[name]
    blocks = cut(batch, SPEC, 16)
    problem = PlacementProblem.of(blocks, cluster, limits=limits)
    optimum = evaluate(problem, optimal_placement(problem))
    assert optimum.feasible
    assert lower_bound_bytes(blocks, problem) <= optimum.volume_bytes


@pytest.mark.parametrize("window", [2, 7, 16, 17, 30])
def test_the_halo_of_a_window_has_to_be_sent(window: int) -> None:
    """Window - 1 keys at each border: what contiguous devices send, where blocks are cut to it."""
    cluster, mask = Cluster(nodes=2, devices_per_node=2), masks.sliding_window(window)
    blocks = cut(Batch([128], mask=mask), SPEC, 16)
    home = np.arange(8) // 2
    pieces, answer = cut_to_need(blocks, Assignment(home, home[blocks.comp_q]))
    problem = PlacementProblem.of(pieces, cluster)
    sent = evaluate(problem, answer).volume_bytes
    assert lower_bound_bytes(pieces, problem) == 3 * (window - 1) * KEY_BYTES
    assert sent - 3 * (window - 1) * KEY_BYTES in (0, 3 * KEY_BYTES)  # one token is not cut off


def test_sequences_that_fit_on_a_device_need_not_send() -> None:
    four = Cluster(devices_per_node=4)
    assert bound_of(Batch([64] * 4), four) == 0
    assert bound_of(Batch([64]), Cluster(devices_per_node=1)) == 0
    assert bound_of(Batch([]), four) == bound_of(Batch([0, 0]), four) == 0
    assert bound_of(Batch([100], [0], mask=masks.full()), four) == 0


@pytest.mark.parametrize("mask", [masks.causal(), masks.full(), masks.sliding_window(100)])
def test_tighter_limits_never_lower_the_bound(mask: masks.Mask) -> None:
    batch, cluster = Batch([600, 200, 90, 70], mask=mask), Cluster(nodes=2, devices_per_node=2)
    bounds = [
        bound_of(batch, cluster, limits=Limits(inter_node=0.5, intra_node=0.5, device=device))
        for device in (0.8, 0.4, 0.1, 0.0)
    ]
    assert bounds == sorted(bounds)
    assert bounds[-1] > 0


def test_a_placement_cut_to_need_has_the_bound_of_its_whole_blocks() -> None:
    blocks = cut(Batch([128], mask=masks.sliding_window(20)), SPEC, 16)
    home = np.arange(8) // 4
    pieces, _ = cut_to_need(blocks, Assignment(home, home[blocks.comp_q]))
    assert pieces is not blocks
    assert lower_bound_bytes(pieces, PlacementProblem.of(pieces, TWO)) == lower_bound_bytes(
        blocks, PlacementProblem.of(blocks, TWO)
    )


@pytest.mark.parametrize(
    ("name", "mask", "cluster", "most"),
    [
        ("single_long", masks.causal(), EIGHT_BY_TWO, 1.35),
        ("single_long", masks.causal(), FOUR_BY_EIGHT, 1.3),
        ("single_long", masks.lambda_mask(64, 4096), EIGHT_BY_TWO, 1.01),
        ("ldc_like_x1", masks.causal(), EIGHT_BY_TWO, 2.0),
        ("ldc_like_x4", masks.causal(), FOUR_BY_EIGHT, 1.4),
        ("longalign_like", masks.lambda_mask(64, 4096), EIGHT_BY_TWO, 2.1),
    ],
)
def test_the_bound_is_not_far_below_what_is_found(
    name: str, mask: masks.Mask, cluster: Cluster, most: float
) -> None:
    blocks = cut(Batch(BATCHES[name], mask=mask), GQA, 2048, at_mask_edges=True)
    problem = PlacementProblem.of(blocks, cluster, limits=Limits(intra_node=0.4, device=0.1))
    placement = evaluate(problem, registry.create("partitioners", "local_search").place(problem))
    bound = lower_bound_bytes(blocks, problem)
    assert bound <= placement.volume_bytes <= most * bound


@pytest.mark.property
@given(batch=batches(5))
def test_rows_of_masks_are_as_long_as_counting_finds(batch: Batch) -> None:
    tables = [batch.sequence_slices(index) for index in range(len(batch))]
    owner = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    rows = RowLengths.of(np.concatenate([slices.as_slices([]), *tables]), owner)
    longest, wanted = rows.longest(len(batch)), np.arange(1, 30)
    for index, (q, kv) in enumerate(zip(batch.q_lengths, batch.kv_lengths, strict=True)):
        length = batch.masks[index].dense(q, kv).sum(axis=1)
        assert longest[index] == length.max(initial=0)
        assert rows.at_least(index, wanted).tolist() == [(length >= each).sum() for each in wanted]
