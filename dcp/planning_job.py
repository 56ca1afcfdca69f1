"""A batch to plan: candidates placed, scheduled and simulated, and the best one lowered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dcp import registry
from dcp.backend import Backend
from dcp.baseline import Arrangement, Baseline
from dcp.blocks import BlockGraph, Kind
from dcp.checks import shown
from dcp.cost import Estimate
from dcp.cutting import cut
from dcp.errors import SpecError
from dcp.execution_plan import Origin, PlanContent
from dcp.instructions import RankPlan
from dcp.keeping import choose_kept, hand_over, without
from dcp.lowering import lower
from dcp.needed_tokens import cut_to_need
from dcp.placement import Limits, Partitioner, Placement, PlacementProblem, evaluate
from dcp.plan_request import PlanRequest
from dcp.schedule_validation import validate_schedule
from dcp.scheduling import PHASES, CostModel, Scheduler, SchedulingProblem


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A placed and scheduled batch with its simulated cost.

    Attributes:
        origin: Backends that made it.
        arrangement: Schedules; backward sends nothing of what is kept.
        placement: With its metrics.
        kept: Kinds of input that are kept from forward for backward.
        forward, backward: Simulated cost.
    """

    origin: Origin
    arrangement: Arrangement
    placement: Placement
    kept: tuple[Kind, ...]
    forward: Estimate
    backward: Estimate

    @property
    def total_s(self) -> float:
        """Simulated time, forward and backward."""
        return self.forward.total_s + self.backward.total_s


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanningJob:
    """A request, and what its candidates are held to and judged by.

    Attributes:
        request: What to plan.
        limits: Balance asked for.
        seed, budget: For partitioners.
        cost_model: What simulated times come from.
    """

    request: PlanRequest
    limits: Limits
    seed: int
    budget: float
    cost_model: CostModel

    def static(self, baseline: str | Baseline) -> Candidate:
        """A static scheme."""
        backend: Baseline = backend_of("baselines", baseline)
        arrangement = backend.arrange(self.request)
        placement = evaluate(self._problem(arrangement.blocks), arrangement.assignment)
        problems = self._to_schedule(arrangement.blocks, placement)
        return self._candidate(Origin(baseline=_title(baseline)), arrangement, placement, problems)

    def planned(
        self,
        partitioner: str | Partitioner,
        scheduler: str | Scheduler,
        *,
        device_limit: float | None = None,
    ) -> Candidate:
        """Blocks placed, cut to what devices need of them, and scheduled.

        Args:
            partitioner: Places.
            scheduler: Schedules both phases.
            device_limit: Hold the partitioner to this limit over all devices where it is tighter
                than what was asked for.
        """
        blocks, problem = self._blocks, self._planned_problem
        asked = [limit for limit in (self.limits.device, device_limit) if limit is not None]
        tight = replace(self.limits, device=min(asked, default=None))
        answer = backend_of("partitioners", partitioner).place(replace(problem, limits=tight))
        placement = evaluate(problem, answer)
        pieces, answer = cut_to_need(blocks, placement.assignment)
        if pieces is not blocks:
            blocks, placement = pieces, evaluate(self._problem(pieces), answer)
        backend: Scheduler = backend_of("schedulers", scheduler)
        problems = self._to_schedule(blocks, placement)
        forward, backward = (backend.schedule(problem) for problem in problems)
        arrangement = Arrangement(
            blocks=blocks,
            assignment=placement.assignment,
            forward=forward,
            backward=backward,
        )
        origin = Origin(
            partitioner=_title(partitioner),
            scheduler=_title(scheduler),
            device_limit=device_limit,
        )
        return self._candidate(origin, arrangement, placement, problems)

    def lowered(self, best: Candidate) -> PlanContent:
        """What the digest covers: programs for every rank."""
        cluster, placement = self.request.cluster, best.placement
        blocks = best.arrangement.blocks
        forward, backward = (
            lower(
                blocks,
                placement.token_home,
                placement.comp_device,
                cluster.num_devices,
                schedule,
            )
            for schedule in (best.arrangement.forward, best.arrangement.backward)
        )
        forward, backward = hand_over(blocks, placement.token_home, forward, backward, best.kept)
        ranks = [
            RankPlan(
                rank=rank,
                home_blocks=np.flatnonzero(placement.token_home == rank),
                forward=forward[rank],
                backward=backward[rank],
            )
            for rank in range(cluster.num_devices)
        ]
        return PlanContent(
            cluster=cluster,
            limits=self.limits,
            origin=best.origin,
            blocks=blocks,
            placement=placement,
            ranks=ranks,
        )

    @cached_property
    def _blocks(self) -> BlockGraph:
        """The batch as partitioners get it; all that are tried share it."""
        request = self.request
        return cut(request.batch, request.spec, request.block_size, at_mask_edges=True)

    @cached_property
    def _planned_problem(self) -> PlacementProblem:
        return self._problem(self._blocks)

    def _problem(self, blocks: BlockGraph) -> PlacementProblem:
        return PlacementProblem.of(
            blocks, self.request.cluster, limits=self.limits, seed=self.seed, budget=self.budget
        )

    def _to_schedule(self, blocks: BlockGraph, placement: Placement) -> list[SchedulingProblem]:
        """Forward and backward."""
        return [
            SchedulingProblem(
                blocks=blocks,
                token_home=placement.token_home,
                comp_device=placement.comp_device,
                cluster=self.request.cluster,
                phase=phase,
                cost_model=self.cost_model,
            )
            for phase in PHASES
        ]

    def _candidate(
        self,
        origin: Origin,
        arrangement: Arrangement,
        placement: Placement,
        problems: list[SchedulingProblem],
    ) -> Candidate:
        cluster, blocks = self.request.cluster, arrangement.blocks
        whole = arrangement.forward, arrangement.backward
        for schedule in whole:
            validate_schedule(
                blocks, placement.token_home, placement.comp_device, cluster.num_devices, schedule
            )
        kept = choose_kept(blocks, cluster, *whole, self.request.keep_bytes)
        sent = arrangement.forward, without(arrangement.backward, kept)
        forward, backward = (
            problem.estimate(schedule) for problem, schedule in zip(problems, sent, strict=True)
        )
        return Candidate(
            origin=origin,
            arrangement=replace(arrangement, backward=sent[1]),
            placement=placement,
            kept=kept,
            forward=forward,
            backward=backward,
        )


_INTERFACES: dict[str, type[Backend]] = {
    "partitioners": Partitioner,
    "schedulers": Scheduler,
    "baselines": Baseline,
    "cost_models": CostModel,
}


def backend_of(group: str, wanted: Any) -> Any:
    """A backend by request, or the instance that was given.

    Raises:
        SpecError: neither.
    """
    if isinstance(wanted, str):
        return registry.create(group, wanted)
    if not isinstance(wanted, _INTERFACES[group]):
        names = ", ".join(registry.names(group))
        raise SpecError(
            f"{shown(wanted)} is no {group[:-1]}; give a name ({names}), a request "
            "name:option=value, or an instance"
        )
    return wanted


def _title(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else str(wanted.name)
