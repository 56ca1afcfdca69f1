"""How far from the optimum: small placements against the exact solver, which is itself checked."""

from __future__ import annotations

import itertools
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from dcp import masks, registry
from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.errors import BackendError, MissingPackageError, SpecError
from dcp.lower_bound import lower_bound_bytes
from dcp.placement import Assignment, Limits, Placement, PlacementProblem, evaluate
from dcp.verification.exact import optimal_placement

needs_solver = pytest.mark.skipif(
    find_spec("highspy") is None,
    reason="highspy is not installed; install dynamic-context-parallel[exact]",
)

ONE_GROUP = AttentionSpec(num_q_heads=4, num_kv_heads=1, head_dim=64)
TWO_GROUPS = AttentionSpec(num_q_heads=8, num_kv_heads=2, head_dim=64)
BLOCK = 16

CAUSAL, WINDOW, LAMBDA = masks.causal(), masks.sliding_window(40), masks.lambda_mask(8, 32)
BATCHES = {
    "causal": Batch([128]),
    "shorter causal": Batch([96]),
    "causal, ragged": Batch([48, 40, 30]),
    "window": Batch([128], mask=WINDOW),
    "lambda": Batch([128], mask=LAMBDA),
    "full": Batch([64], mask=masks.full()),
    "shared question": Batch([96], mask=masks.shared_question(answer_lengths=[20, 20, 20])),
    "mixed": Batch([64, 40, 30], mask=[CAUSAL, WINDOW, masks.full()]),
    "short sequences": Batch([25, 14, 12, 9, 7, 3]),
    "cross-attention": Batch([40, 20], [80, 30], mask=masks.full()),
}
CLUSTERS = {
    "1x2": Cluster(devices_per_node=2),
    "1x3": Cluster(devices_per_node=3),
    "1x4": Cluster(devices_per_node=4),
    "2x2": Cluster(nodes=2, devices_per_node=2),
}
# What takes HiGHS more than three seconds to prove.
SLOW = {
    *itertools.product(("causal", "shorter causal", "window"), ("1x4", "2x2")),
    ("causal", "1x3"), ("lambda", "1x4"), ("lambda", "2x2"), ("shared question", "2x2"),
    ("cross-attention", "1x4"), ("cross-attention", "2x2"),
}  # fmt: skip
INSTANCES = [pair for pair in itertools.product(BATCHES, CLUSTERS) if pair not in SLOW]


def problem_of(
    batch: Batch, cluster: Cluster, spec: AttentionSpec = ONE_GROUP, limits: Limits | None = None
) -> PlacementProblem:
    blocks = cut(batch, spec, BLOCK, at_mask_edges=True)
    return PlacementProblem.of(blocks, cluster, limits=limits)


@cache
def problem(batch: str, cluster: str) -> PlacementProblem:
    return problem_of(BATCHES[batch], CLUSTERS[cluster])


def weighted(placement: Placement, inter_weight: float) -> float:
    return placement.volume_bytes + (inter_weight - 1) * placement.inter_node_bytes


@cache
def optimum(batch: str, cluster: str, inter_weight: float = 1.0) -> float:
    one = problem(batch, cluster)
    placement = evaluate(one, optimal_placement(one, inter_weight=inter_weight))
    assert placement.feasible
    return weighted(placement, inter_weight)


@needs_solver
@pytest.mark.parametrize(("batch", "cluster"), INSTANCES)
def test_the_optimum_lies_between_the_lower_bound_and_every_partitioner(
    batch: str, cluster: str
) -> None:
    blocks = cut(BATCHES[batch], ONE_GROUP, BLOCK, at_mask_edges=True)
    best = optimum(batch, cluster)
    assert lower_bound_bytes(blocks, problem(batch, cluster)) <= best
    for entry in registry.entries("partitioners"):
        if entry.availability.available:
            answer = registry.create("partitioners", entry.name).place(problem(batch, cluster))
            placement = evaluate(problem(batch, cluster), answer)
            assert placement.volume_bytes >= best or not placement.feasible, entry.name


@needs_solver
@pytest.mark.parametrize(
    ("name", "inter_weight", "mean_gap"),
    [
        ("greedy", 1.0, 1.25),
        ("local_search:inter_weight=1", 1.0, 1.01),
        ("local_search:inter_weight=3", 3.0, 1.03),
        ("local_search", 8.0, 1.03),
    ],
)
def test_a_partitioner_is_near_the_optimum_on_average(
    name: str, inter_weight: float, mean_gap: float
) -> None:
    """Weighted bytes ÷ the least; where nothing has to be sent, nothing is."""
    backend, ratios = registry.create("partitioners", name), []
    for pair in INSTANCES:
        placement = evaluate(problem(*pair), backend.place(problem(*pair)))
        assert placement.feasible
        if least := optimum(*pair, inter_weight):
            ratios.append(weighted(placement, inter_weight) / least)
        else:
            assert placement.volume_bytes == 0
    assert np.mean(ratios) <= mean_gap, sorted(ratios)


def best_of_all(problem: PlacementProblem, inter_weight: float) -> float | None:
    """Least weighted bytes over every feasible placement, tried one after another."""
    devices = range(problem.cluster.num_devices)
    costs = []
    for home in itertools.product(devices, repeat=len(problem.token_tokens)):
        held = np.bincount(home, weights=problem.token_tokens)
        if home[0] or held.max() > problem.token_allowance:
            continue  # devices are alike, so the first block may stay on the first
        for comp in itertools.product(devices, repeat=len(problem.comp_q)):
            placement = evaluate(problem, Assignment(np.array(home), np.array(comp)))
            if placement.feasible:
                costs.append(weighted(placement, inter_weight))
    return min(costs, default=None)


@needs_solver
@pytest.mark.parametrize(
    "small",
    [
        problem_of(Batch([28, 22, 18]), CLUSTERS["1x2"]),
        problem_of(Batch([20, 8]), CLUSTERS["1x2"], spec=TWO_GROUPS),
        problem_of(Batch([14, 28, 19]), Cluster(nodes=2, devices_per_node=1)),
        problem_of(
            Batch([14, 28, 9]), Cluster(nodes=3, devices_per_node=1), limits=Limits(inter_node=0.1)
        ),
        problem_of(Batch([20, 7], [9, 18], mask=masks.full()), CLUSTERS["1x3"]),
        problem_of(Batch([29], mask=masks.full()), CLUSTERS["2x2"], limits=Limits(device=0.6)),
        problem_of(Batch([3, 19]), CLUSTERS["2x2"]),
        # Blocks so coarse that a node's devices are limited by how its blocks pack.
        problem_of(
            Batch([4, 7, 19]), CLUSTERS["2x2"], limits=Limits(inter_node=0.1, intra_node=0.3)
        ),
    ],
)
@pytest.mark.parametrize("inter_weight", [1.0, 1.25, 8.0])
def test_the_solver_finds_what_trying_every_placement_finds(
    small: PlacementProblem, inter_weight: float
) -> None:
    placement = evaluate(small, optimal_placement(small, inter_weight=inter_weight))
    assert placement.feasible
    assert weighted(placement, inter_weight) == best_of_all(small, inter_weight)


@needs_solver
def test_nothing_to_place_is_placed() -> None:
    for batch in (Batch([]), Batch([12, 9], [0, 0], mask=masks.full())):
        empty = problem_of(batch, CLUSTERS["2x2"])
        placement = evaluate(empty, optimal_placement(empty))
        assert placement.feasible
        assert placement.volume_bytes == 0


@needs_solver
def test_an_optimum_that_takes_too_long_is_not_given_out() -> None:
    with pytest.raises(BackendError, match=r"not proven .*between .* bytes; give more time"):
        optimal_placement(problem("causal", "2x2"), time_limit_s=0.2)


@pytest.mark.parametrize("weight", [0.5, float("inf"), "x"])
def test_a_weight_that_means_nothing_is_refused(weight: Any) -> None:
    with pytest.raises(SpecError, match=f"inter_weight is '?{weight}"):
        optimal_placement(problem("mixed", "1x2"), inter_weight=weight)


def test_without_the_solver_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MissingPackageError, match=r"install dynamic-context-parallel\[exact\]"):
        optimal_placement(problem("mixed", "1x2"))
