"""Batch to plan: chooses backends, runs the four stages, keeps the answer and its cost."""

from __future__ import annotations

import time
from typing import Literal

from dcp.auto import choose
from dcp.baseline import Baseline
from dcp.batch import AttentionSpec, Batch
from dcp.block_size import choose_block_size
from dcp.checks import check_kind, shown
from dcp.cluster import Cluster
from dcp.errors import SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.placement import Limits, Partitioner
from dcp.plan_request import PlanRequest
from dcp.planning_job import PlanningJob, backend_of
from dcp.scheduling import CostModel, Scheduler
from dcp.selection import SelectionTable


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
    keep_bytes: int | None = 0,
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
        limits: Balance asked for. Given explicitly, they bind "auto": a candidate over a limit
            loses to any that keeps them all. None for the paper's, which "auto" may trade for
            simulated time.
        keep_bytes: Most bytes of received queries, keys and values that a rank keeps from forward,
            so that backward does not send them again; None for any number. All of a kind that
            every rank can keep is kept.
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
    asked = Limits() if limits is None else limits
    _check_arguments(batch, heads, cluster, asked, keep_bytes, selection)
    size = choose_block_size(batch, cluster) if block_size == "auto" else block_size
    request = PlanRequest(
        batch=batch, spec=heads, cluster=cluster, block_size=size, keep_bytes=keep_bytes
    )
    job = PlanningJob(
        request=request,
        limits=asked,
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
        best = choose(job, partitioner, scheduler, winner=winner, limits_bind=limits is not None)
    content = job.lowered(best)
    return ExecutionPlan(
        content=content,
        forward_estimate=best.forward,
        backward_estimate=best.backward,
        planning_s=time.perf_counter() - started,
    )


def _check_arguments(
    batch: Batch,
    heads: AttentionSpec,
    cluster: Cluster,
    limits: Limits,
    keep_bytes: int | None,
    selection: SelectionTable | None,
) -> None:
    for name, value, kind in (
        ("batch", batch, Batch),
        ("heads", heads, AttentionSpec),
        ("cluster", cluster, Cluster),
        ("limits", limits, Limits),
    ):
        check_kind(name, value, kind)
    if keep_bytes is not None and not (type(keep_bytes) is int and keep_bytes >= 0):
        raise SpecError(
            f"keep_bytes is {shown(keep_bytes)}; give a whole number of bytes, 0 or more, or None "
            "for no limit"
        )
    if selection is not None:
        check_kind("selection", selection, SelectionTable)
