"""Every stage of planning, by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from planning_setting import CLUSTERS, HEADS, MASKS

import dcp
from dcp import plan_file, registry
from dcp.blocks import BlockGraph
from dcp.cutting import cut
from dcp.lowering import lower
from dcp.placement import Placement, PlacementProblem, evaluate
from dcp.scheduling import PHASES, SchedulingProblem

Benchmark = Callable[..., Any]

BLOCK_SIZE = 2048
TOKENS = 131072


class Planned(NamedTuple):
    """What the stages hand on."""

    batch: dcp.Batch
    cluster: dcp.Cluster
    blocks: BlockGraph
    placement: Placement
    plan: dcp.ExecutionPlan


def _long_tailed(tokens: int) -> list[int]:
    """Lengths from a log-normal distribution, the last one cut to fit."""
    lengths = np.random.default_rng(0).lognormal(7.5, 1.5, size=tokens).astype(int)
    ends = np.minimum(np.cumsum(lengths), tokens)
    return [int(length) for length in np.diff(ends, prepend=0) if length]


LENGTHS = {"long": [TOKENS], "long-tailed": _long_tailed(TOKENS)}


@pytest.fixture(scope="module", params=LENGTHS)
def lengths(request: pytest.FixtureRequest) -> list[int]:
    return LENGTHS[request.param]


@pytest.fixture(scope="module", params=("causal", "lambda"))
def planned(request: pytest.FixtureRequest, lengths: list[int]) -> Planned:
    batch, cluster = dcp.Batch(lengths, mask=MASKS[request.param]()), CLUSTERS["4x8"]
    blocks = cut(batch, HEADS, BLOCK_SIZE, at_mask_edges=True)
    problem = PlacementProblem.of(blocks, cluster)
    plan = dcp.plan(
        batch,
        HEADS,
        cluster,
        block_size=BLOCK_SIZE,
        partitioner="local_search",
        scheduler="overlap",
    )
    return Planned(batch, cluster, blocks, evaluate(problem, _local_search(problem)), plan)


def _local_search(problem: PlacementProblem) -> Any:
    return registry.create("partitioners", "local_search").place(problem)


def _to_schedule(planned: Planned, phase: Any) -> SchedulingProblem:
    return SchedulingProblem(
        blocks=planned.blocks,
        token_home=planned.placement.token_home,
        comp_device=planned.placement.comp_device,
        cluster=planned.cluster,
        phase=phase,
    )


def test_cut(benchmark: Benchmark, planned: Planned) -> None:
    assert benchmark(cut, planned.batch, HEADS, BLOCK_SIZE, at_mask_edges=True).num_token_blocks


@pytest.mark.parametrize("partitioner", ["local_search", "greedy"])
def test_place(benchmark: Benchmark, planned: Planned, partitioner: str) -> None:
    backend = registry.create("partitioners", partitioner)
    assert benchmark(backend.place, PlacementProblem.of(planned.blocks, planned.cluster))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("scheduler", ["overlap", "paper"])
def test_schedule(benchmark: Benchmark, planned: Planned, scheduler: str, phase: Any) -> None:
    backend = registry.create("schedulers", scheduler)
    assert benchmark(backend.schedule, _to_schedule(planned, phase))


@pytest.mark.parametrize("phase", PHASES)
def test_lower(benchmark: Benchmark, planned: Planned, phase: Any) -> None:
    schedule = registry.create("schedulers", "overlap").schedule(_to_schedule(planned, phase))
    programs = benchmark(
        lower,
        planned.blocks,
        planned.placement.token_home,
        planned.placement.comp_device,
        planned.cluster.num_devices,
        schedule,
    )
    assert len(programs) == planned.cluster.num_devices


@pytest.mark.parametrize("phase", PHASES)
def test_simulate(benchmark: Benchmark, planned: Planned, phase: Any) -> None:
    problem = _to_schedule(planned, phase)
    schedule = registry.create("schedulers", "overlap").schedule(problem)
    assert benchmark(lambda: problem.estimate(schedule)).total_s


def test_encode(benchmark: Benchmark, planned: Planned) -> None:
    assert benchmark(plan_file.encode, planned.plan.content)  # plans keep their encoding


def test_decode(benchmark: Benchmark, planned: Planned) -> None:
    assert benchmark(dcp.ExecutionPlan.from_bytes, planned.plan.to_bytes()).digest


@pytest.mark.parametrize("scheme", ["auto", "zigzag"])
def test_whole_plan(benchmark: Benchmark, planned: Planned, scheme: str) -> None:
    baseline = None if scheme == "auto" else scheme
    options = {"block_size": BLOCK_SIZE, "baseline": baseline}
    assert benchmark(dcp.plan, planned.batch, HEADS, planned.cluster, **options)
