"""The requests that conformance suites put to a plug-in: small, and each unlike the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dcp import masks, registry
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.execution_plan import ExecutionPlan
from dcp.placement import Assignment, Limits, Partitioner, PlacementProblem
from dcp.planner import plan
from dcp.scheduling import Phase, Scheduler, SchedulingProblem
from dcp.verification.any_placement import AnyPlacement

_GQA = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, dtype="float64")
_ONE_GROUP = AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8, dtype="float64")
_TWO_BY_TWO = Cluster(nodes=2, devices_per_node=2)
_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One request. Every call makes its arrays afresh, so that nothing is shared between them.

    Attributes:
        name: What is special about it.
        executed: Whether it is small enough to run on real tensors.
    """

    name: str
    batch: Batch
    heads: AttentionSpec = _ONE_GROUP
    cluster: Cluster = _TWO_BY_TWO
    block_size: int = 8
    limits: Limits = _LIMITS
    executed: bool = True

    def __str__(self) -> str:
        return self.name

    def blocks(self) -> BlockGraph:
        """The blocks, cut as the planner cuts them."""
        return cut(self.batch, self.heads, self.block_size, at_mask_edges=True)

    def placement_problem(self, *, seed: int = 0, budget: float = 1.0) -> PlacementProblem:
        """The problem of a partitioner."""
        return PlacementProblem.of(
            self.blocks(), self.cluster, limits=self.limits, seed=seed, budget=budget
        )

    def scheduling_problem(self, placed: Assignment, phase: Phase) -> SchedulingProblem:
        """The problem of a scheduler, for one of `placements`."""
        return SchedulingProblem(
            blocks=self.blocks(),
            token_home=placed.token_home.copy(),
            comp_device=placed.comp_device.copy(),
            cluster=self.cluster,
            phase=phase,
        )

    def placements(self) -> Iterator[tuple[str, Assignment]]:
        """Placements of every kind, good ones and bad ones, by name."""
        problem = self.placement_problem()
        scattered = AnyPlacement(seed=1).place(problem)
        yield "scattered", scattered
        yield "scattered otherwise", AnyPlacement(seed=2).place(problem)
        home = scattered.token_home
        yield "work at its queries", Assignment(home, home[problem.comp_q])
        yield "work at its keys", Assignment(home, home[problem.comp_kv])
        yield "all work on one device", Assignment(home, problem.comp_q * 0)
        yield "nothing away", Assignment(home * 0, problem.comp_q * 0)
        yield "few bytes", registry.create("partitioners", "greedy").place(problem)

    def plan(self, partitioner: Partitioner, scheduler: str | Scheduler) -> ExecutionPlan:
        """The plan of these two."""
        return plan(
            self.batch,
            self.heads,
            self.cluster,
            block_size=self.block_size,
            partitioner=partitioner,
            scheduler=scheduler,
            limits=self.limits,
        )


SAMPLES = (
    Sample(name="causal", batch=Batch([40, 23, 9])),
    Sample(name="one long sequence", batch=Batch([85]), cluster=Cluster(devices_per_node=3)),
    Sample(
        name="sliding window",
        batch=Batch([70, 12], mask=masks.sliding_window(13)),
        cluster=Cluster(devices_per_node=3),
    ),
    Sample(
        name="mixed masks",
        batch=Batch(
            [30, 26, 24, 18],
            mask=[
                masks.causal(),
                masks.lambda_mask(2, 9),
                masks.shared_question(answer_lengths=[8, 7]),
                masks.full(),
            ],
        ),
    ),
    Sample(
        name="cross-attention",
        batch=Batch([30, 0, 5, 17], [21, 12, 0, 40], mask=masks.full()),
    ),
    Sample(name="grouped heads", batch=Batch([33, 20]), heads=_GQA),
    Sample(
        name="many short sequences",
        batch=Batch([1 + 5 * index % 8 for index in range(40)], mask=masks.full()),
        cluster=Cluster(nodes=2, devices_per_node=3),
    ),
    Sample(name="zero lengths", batch=Batch([0, 17, 0, 5])),
    Sample(name="no sequences", batch=Batch([])),
    Sample(name="no computations", batch=Batch([12, 9], mask=masks.full() - masks.full())),
    Sample(name="one device", batch=Batch([20, 3]), cluster=Cluster(devices_per_node=1)),
    Sample(
        name="more devices than blocks",
        batch=Batch([5, 3]),
        cluster=Cluster(nodes=3, devices_per_node=4),
    ),
    Sample(
        name="tight limits on two levels",
        batch=Batch([60, 31, 14]),
        cluster=Cluster(nodes=2, devices_per_node=3),
        limits=Limits(inter_node=0.05, intra_node=0.02),
    ),
    Sample(
        name="a limit over all devices",
        batch=Batch([50, 41, 7]),
        limits=Limits(device=0.15),
    ),
    Sample(
        name="weights beyond 32 bits",
        batch=Batch([2**20, 2**18, 3]),
        heads=AttentionSpec(num_q_heads=32, num_kv_heads=1, head_dim=128),
        block_size=2**17,
        executed=False,
    ),
)
EXECUTED = tuple(sample for sample in SAMPLES if sample.executed)
