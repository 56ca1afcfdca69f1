"""Batch to plan: chooses backends, runs the four stages, keeps the answer and its cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dcp import registry
from dcp.baseline import Arrangement, Baseline, BaselineRequest
from dcp.batch import AttentionSpec, Batch
from dcp.block_size import choose_block_size
from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.cost import Estimate
from dcp.cutting import cut
from dcp.errors import SpecError
from dcp.execution_plan import ExecutionPlan, Origin, PlanContent
from dcp.instructions import RankPlan
from dcp.lowering import lower
from dcp.placement import Limits, Partitioner, Placement, PlacementProblem, evaluate
from dcp.schedule_validation import validate_schedule
from dcp.scheduling import PHASES, CostModel, Phase, Scheduler, SchedulingProblem
from dcp.selection import SelectionTable, Winner

logger = logging.getLogger("dcp")

AUTO_PARTITIONERS = ("greedy",)
AUTO_SCHEDULERS = ("overlap",)
AUTO_BASELINES = ("zigzag", "usp", "ulysses", "ring", "allgather")


def plan(
    batch: Batch,
    heads: AttentionSpec,
    cluster: Cluster,
    *,
    block_size: int | Literal["auto"] = 1024,
    partitioner: str | Partitioner = "auto",
    scheduler: str | Scheduler = "auto",
    baseline: str | Baseline | None = None,
    limits: Limits | None = None,
    seed: int = 0,
    budget: float = 1.0,
    cost_model: str | CostModel = "event",
    selection: SelectionTable | None = None,
) -> ExecutionPlan:
    """Plan a batch for a cluster.

    Args:
        batch: Lengths and masks.
        heads: Heads and dtype.
        cluster: Devices and links; the plan has one program a device.
        block_size: Most tokens a block, or "auto" for one that fits the batch.
        partitioner: Name, "name:option=value,…", an instance, or "auto".
        scheduler: The same. With "auto" for both, static schemes compete too, and the plan with
            the least simulated time wins; the choice is logged once.
        baseline: A static scheme instead, by name or instance; partitioner and scheduler must
            then stay "auto".
        limits: Balance asked for.
        seed: Equal seeds give equal plans.
        budget: Effort of the partitioner, 1.0 for the default.
        cost_model: What simulated times come from, by name or instance.
        selection: What "auto" starts from: where the table has a winner for the batch's kind, it
            is tried in place of the built-in partitioner and scheduler.

    Raises:
        SpecError: arguments that do not belong together, or illegal ones.
        UnknownBackendError, MissingPackageError: a name that is not there, or not installed.
        BackendError, PlacementError, ScheduleError: a backend failed or answered wrongly.
    """
    started = time.perf_counter()
    size = choose_block_size(batch, cluster) if block_size == "auto" else block_size
    request = BaselineRequest(batch=batch, spec=heads, cluster=cluster, block_size=size)
    job = _Job(
        request=request,
        limits=limits or Limits(),
        seed=seed,
        budget=budget,
        cost_model=_backend("cost_models", cost_model),
    )
    if baseline is not None:
        if partitioner != "auto" or scheduler != "auto":
            raise SpecError(
                "a baseline brings its own placement and schedule; "
                "give either baseline=, or partitioner= and scheduler="
            )
        best = job.static(baseline)
    else:
        winner = selection.winner_for(batch, cluster) if selection else None
        best = _choose(job, partitioner, scheduler, winner)
    content = job.lowered(best)
    return ExecutionPlan(content=content, planning_s=time.perf_counter() - started)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Candidate:
    """A placed and scheduled batch with its simulated cost."""

    origin: Origin
    arrangement: Arrangement
    placement: Placement
    forward: Estimate
    backward: Estimate

    @property
    def total_s(self) -> float:
        return self.forward.total_s + self.backward.total_s


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """What `plan` was asked for."""

    request: BaselineRequest
    limits: Limits
    seed: int
    budget: float
    cost_model: CostModel

    def static(self, baseline: str | Baseline) -> _Candidate:
        """A static scheme."""
        backend: Baseline = _backend("baselines", baseline)
        arrangement = backend.arrange(self.request)
        placement = evaluate(self._problem(arrangement.blocks), arrangement.assignment)
        return self._candidate(Origin(baseline=_title(baseline)), arrangement, placement)

    def planned(
        self, partitioner: str | Partitioner, schedulers: Sequence[str | Scheduler]
    ) -> Iterator[_Candidate]:
        """One placement, with each of the schedulers."""
        request = self.request
        blocks = cut(request.batch, request.spec, request.block_size, at_mask_edges=True)
        problem = self._problem(blocks)
        answer = _backend("partitioners", partitioner).place(problem)
        placement = evaluate(problem, answer)
        for scheduler in schedulers:
            backend: Scheduler = _backend("schedulers", scheduler)
            forward, backward = (
                backend.schedule(self._to_schedule(blocks, placement, phase)) for phase in PHASES
            )
            arrangement = Arrangement(
                blocks=blocks, assignment=answer, forward=forward, backward=backward
            )
            origin = Origin(partitioner=_title(partitioner), scheduler=_title(scheduler))
            yield self._candidate(origin, arrangement, placement)

    def lowered(self, best: _Candidate) -> PlanContent:
        """Programs for every rank."""
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
            spec=self.request.spec,
            cluster=cluster,
            limits=self.limits,
            origin=best.origin,
            blocks=blocks,
            placement=placement,
            forward_estimate=best.forward,
            backward_estimate=best.backward,
            ranks=ranks,
        )

    def _problem(self, blocks: BlockGraph) -> PlacementProblem:
        return PlacementProblem.of(
            blocks, self.request.cluster, limits=self.limits, seed=self.seed, budget=self.budget
        )

    def _to_schedule(
        self, blocks: BlockGraph, placement: Placement, phase: Phase
    ) -> SchedulingProblem:
        return SchedulingProblem(
            blocks=blocks,
            token_home=placement.token_home,
            comp_device=placement.comp_device,
            cluster=self.request.cluster,
            phase=phase,
            cost_model=self.cost_model,
        )

    def _candidate(
        self, origin: Origin, arrangement: Arrangement, placement: Placement
    ) -> _Candidate:
        blocks, devices = arrangement.blocks, self.request.cluster.num_devices
        schedules = (arrangement.forward, arrangement.backward)
        for schedule in schedules:
            validate_schedule(
                blocks, placement.token_home, placement.comp_device, devices, schedule
            )
        forward, backward = (
            self._to_schedule(blocks, placement, schedule.phase).timeline(schedule).estimate()
            for schedule in schedules
        )
        return _Candidate(
            origin=origin,
            arrangement=arrangement,
            placement=placement,
            forward=forward,
            backward=backward,
        )


def _choose(
    job: _Job,
    partitioner: str | Partitioner,
    scheduler: str | Scheduler,
    winner: Winner | None,
) -> _Candidate:
    """The candidate with the least simulated time; static schemes compete under full "auto"."""
    partitioners: Sequence[str | Partitioner] = (partitioner,)
    schedulers: Sequence[str | Scheduler] = (scheduler,)
    if partitioner == "auto":
        partitioners = _known(winner.partitioner if winner else None) or AUTO_PARTITIONERS
    if scheduler == "auto":
        schedulers = _known(winner.scheduler if winner else None) or AUTO_SCHEDULERS
    candidates = [candidate for name in partitioners for candidate in job.planned(name, schedulers)]
    best, left_out = min(candidates, key=_total_s), []
    if partitioner == "auto" and scheduler == "auto":
        for name in AUTO_BASELINES:
            try:
                rival = _static_rival(job, name, best.total_s)
            except SpecError as error:
                left_out.append(f"{name}: {error}")
                continue
            candidates.append(rival)
            best = min(best, rival, key=_total_s)
    times = ", ".join(f"{each.origin} {each.total_s * 1e3:.3f} ms" for each in candidates)
    if len(candidates) > 1 or left_out:
        reasons = "; left out " + "; ".join(left_out) if left_out else ""
        logger.info("auto chose %s of simulated times %s%s", best.origin, times, reasons)
    return best


def _known(request: str | None) -> tuple[str, ...]:
    return (request,) if request else ()


def _total_s(candidate: _Candidate) -> float:
    return candidate.total_s


def _static_rival(job: _Job, name: str, best_s: float) -> _Candidate:
    """A static scheme.

    Raises:
        SpecError: it cannot serve the request, or cannot be faster.
    """
    least = _backend("baselines", name).least_seconds(job.request)
    if least >= best_s:
        raise SpecError(f"its messages alone take {least * 1e3:.3f} ms")
    return job.static(name)


def _backend(group: str, wanted: Any) -> Any:
    return registry.create(group, wanted) if isinstance(wanted, str) else wanted


def _title(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else str(wanted.name)
