"""Batch to plan: chooses backends, runs the four stages, keeps the answer and its cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Literal

from dcp.baseline import Baseline, BaselineRequest
from dcp.batch import AttentionSpec, Batch
from dcp.block_size import choose_block_size
from dcp.cluster import Cluster
from dcp.errors import SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.placement import Limits, Partitioner
from dcp.planning_job import Candidate, PlanningJob, backend_of
from dcp.scheduling import CostModel, Scheduler
from dcp.selection import SelectionTable, Winner

logger = logging.getLogger("dcp")

AUTO_PARTITIONERS = ("greedy",)
AUTO_SCHEDULERS = ("overlap",)
# Even computing against few bytes: what pays is for simulated time to say, not for a fixed limit.
AUTO_DEVICE_LIMITS = (0.1, 0.03)
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
    job = PlanningJob(
        request=request,
        limits=limits or Limits(),
        seed=seed,
        budget=budget,
        cost_model=backend_of("cost_models", cost_model),
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


def _choose(
    job: PlanningJob,
    partitioner: str | Partitioner,
    scheduler: str | Scheduler,
    winner: Winner | None,
) -> Candidate:
    """The candidate with the least simulated time; static schemes compete under full "auto"."""
    partitioners: Sequence[str | Partitioner] = (partitioner,)
    schedulers: Sequence[str | Scheduler] = (scheduler,)
    if partitioner == "auto":
        partitioners = _known(winner.partitioner if winner else None) or AUTO_PARTITIONERS
    if scheduler == "auto":
        schedulers = _known(winner.scheduler if winner else None) or AUTO_SCHEDULERS
    device_limits = AUTO_DEVICE_LIMITS if partitioner == "auto" else (None,)
    candidates = [
        candidate
        for name in partitioners
        for limit in device_limits
        for candidate in job.planned(name, schedulers, device_limit=limit)
    ]
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


def _total_s(candidate: Candidate) -> float:
    return candidate.total_s


def _static_rival(job: PlanningJob, name: str, best_s: float) -> Candidate:
    """A static scheme.

    Raises:
        SpecError: it cannot serve the request, or cannot be faster.
    """
    least = backend_of("baselines", name).least_seconds(job.request)
    if least >= best_s:
        raise SpecError(f"its messages alone take {least * 1e3:.3f} ms")
    return job.static(name)
