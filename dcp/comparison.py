"""Plans the same batches with many strategies and sets the figures side by side.

A figure of several batches is the mean over them; imbalances are the largest. A strategy is
feasible if all its plans are, and only feasible ones can be the best.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.errors import DcpError, MissingPackageError, SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.placement import Limits, PlacementProblem
from dcp.planner import plan
from dcp.report import PlanReport
from dcp.selection import SelectionTable, Winner, WorkloadKind

logger = logging.getLogger("dcp")

Status = Literal["planned", "missing", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to plan: a static scheme, or a partitioner with a scheduler.

    Attributes:
        partitioner, scheduler: Requests as for `dcp.plan`.
        baseline: A static scheme instead.
        title: Name in tables.
    """

    partitioner: str = "auto"
    scheduler: str = "auto"
    baseline: str | None = None
    title: str

    @property
    def is_static(self) -> bool:
        """Whether placement and schedule are fixed by the scheme."""
        return self.baseline is not None

    @property
    def request(self) -> str:
        """Request of the backend that places."""
        return self.partitioner if self.baseline is None else self.baseline


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What every strategy plans for.

    Raises:
        SpecError: an illegal block size or budget.
    """

    batches: tuple[Batch, ...]
    spec: AttentionSpec
    cluster: Cluster
    block_size: int | Literal["auto"]
    limits: Limits
    seed: int
    budget: float
    keep_bytes: int | None

    def __post_init__(self) -> None:
        # What no strategy could plan is refused here, not once in every row.
        size = 1 if self.block_size == "auto" else self.block_size
        nothing = cut(Batch([]), self.spec, size)
        PlacementProblem.of(nothing, self.cluster, limits=self.limits, budget=self.budget)


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """What came of one strategy.

    Attributes:
        status: "planned"; "missing" where a package is not installed; "refused" where a static
            scheme cannot serve the request; "failed" where planning failed.
        problem: What to install, or what went wrong; empty where planned.
        plans: One a batch.
        reports: One a batch.
    """

    strategy: Strategy
    status: Status
    problem: str = ""
    plans: tuple[ExecutionPlan, ...] = field(default=(), repr=False)
    reports: tuple[PlanReport, ...] = ()

    @property
    def is_planned(self) -> bool:
        """Whether there is a plan for every batch."""
        return self.status == "planned"

    @property
    def feasible(self) -> bool:
        """Whether all limits hold in all batches."""
        return self.is_planned and all(report.feasible for report in self.reports)

    @property
    def violations(self) -> tuple[str, ...]:
        """Limits that do not hold, in words, of all batches."""
        return tuple(text for report in self.reports for text in report.violations)

    def mean(self, name: str) -> float:
        """Mean over batches of a field of `PlanReport`."""
        return fmean(getattr(report, name) for report in self.reports)

    def largest(self, name: str) -> float:
        """Largest over batches of a field of `PlanReport`."""
        return max(float(getattr(report, name)) for report in self.reports)

    @property
    def time_s(self) -> float:
        """Estimated forward and backward time, mean over batches."""
        return self.mean("forward_s") + self.mean("backward_s")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """All rows, and which of them stand out.

    Attributes:
        rows: In the order of the strategies.
        best: The feasible row with the least estimated forward and backward time, if any.
        best_static: The static scheme with the least estimated time, feasible or not: whoever
            runs it has not asked for our limits.
    """

    rows: tuple[Row, ...]
    best: Row | None
    best_static: Row | None

    def time_ratio(self, row: Row) -> float | None:
        """Estimated time ÷ that of the best static scheme."""
        static = self.best_static
        return row.time_s / static.time_s if static and row.is_planned and static.time_s else None

    def bytes_ratio(self, row: Row) -> float | None:
        """Bytes sent ÷ those of the best static scheme; None where that sends nothing."""
        sent = self.best_static.mean("comm_bytes") if self.best_static else 0
        return row.mean("comm_bytes") / sent if sent and row.is_planned else None


def strategies(
    baselines: Sequence[str], partitioners: Sequence[str], schedulers: Sequence[str]
) -> list[Strategy]:
    """Each baseline, then each partitioner with each scheduler."""
    static = [Strategy(baseline=name, title=name) for name in baselines]
    planned = [
        Strategy(
            partitioner=partitioner,
            scheduler=scheduler,
            title=partitioner if scheduler == "auto" else f"{partitioner} + {scheduler}",
        )
        for partitioner in partitioners
        for scheduler in schedulers
    ]
    return static + planned


def compare(
    setting: Setting, wanted: Sequence[Strategy], on_start: Callable[[Strategy, int], None]
) -> Comparison:
    """Plan every batch with every strategy.

    Args:
        setting: What to plan for.
        wanted: Strategies, in the order of the rows.
        on_start: Called with the strategy and the batch's index before each plan.
    """
    rows = tuple(_row(setting, strategy, on_start) for strategy in wanted)
    feasible = [row for row in rows if row.feasible]
    static = [row for row in rows if row.is_planned and row.strategy.is_static]
    return Comparison(
        rows=rows,
        best=_fastest(feasible),
        best_static=_fastest(static),
    )


def selection(setting: Setting, comparison: Comparison) -> SelectionTable:
    """The fastest strategy for each kind of workload among the batches.

    A partitioner must be feasible on all batches of the kind to win; a static scheme is what it
    is.
    """
    kinds = [WorkloadKind.of(batch, setting.cluster) for batch in setting.batches]
    winners = []
    for kind in sorted(set(kinds)):
        mine = [index for index, other in enumerate(kinds) if other == kind]
        times = sorted(
            (sum(_total_s(row.reports[index]) for index in mine), position)
            for position, row in enumerate(comparison.rows)
            if row.is_planned
            and (row.strategy.is_static or all(row.reports[index].feasible for index in mine))
        )
        if not times:
            continue
        fastest, position = times[0]
        origin = comparison.rows[position].plans[mine[0]].origin
        winners.append(
            Winner(
                kind=kind,
                partitioner=origin.partitioner,
                scheduler=origin.scheduler,
                baseline=origin.baseline,
                batches=len(mine),
                lead=times[1][0] / fastest if len(times) > 1 and fastest else 1.0,
            )
        )
    return SelectionTable(winners=tuple(winners))


def _total_s(report: PlanReport) -> float:
    return report.forward_s + report.backward_s


def plan_with(setting: Setting, strategy: Strategy, batch: Batch) -> ExecutionPlan:
    """Plan one batch with one strategy; raises what `dcp.plan` raises."""
    return plan(
        batch,
        setting.spec,
        setting.cluster,
        block_size=setting.block_size,
        partitioner=strategy.partitioner,
        scheduler=strategy.scheduler,
        baseline=strategy.baseline,
        limits=setting.limits,
        seed=setting.seed,
        budget=setting.budget,
        keep_bytes=setting.keep_bytes,
    )


def _row(setting: Setting, strategy: Strategy, on_start: Callable[[Strategy, int], None]) -> Row:
    plans = []
    try:
        plan_with(setting, strategy, Batch([1]))  # loads what it needs, outside planning time
        for index, batch in enumerate(setting.batches):
            on_start(strategy, index)
            plans.append(plan_with(setting, strategy, batch))
        reports = tuple(one.report() for one in plans)
    except MissingPackageError as error:
        return Row(strategy=strategy, status="missing", problem=str(error))
    except DcpError as error:
        refused = strategy.is_static and isinstance(error, SpecError)
        status: Status = "refused" if refused else "failed"
        return Row(strategy=strategy, status=status, problem=str(error))
    except Exception as error:
        # A fault of one backend, ours or a plug-in's, must not hide the rows of the others.
        logger.exception("%s failed", strategy.title)
        problem = f"{type(error).__name__}: {error}"
        return Row(strategy=strategy, status="failed", problem=problem)
    return Row(strategy=strategy, status="planned", plans=tuple(plans), reports=reports)


def _fastest(rows: Sequence[Row]) -> Row | None:
    return min(rows, key=lambda row: row.time_s, default=None)
