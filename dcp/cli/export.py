"""Comparisons for other programs: one JSON document, or tidy CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dcp.cli.execution import Execution, Executions
from dcp.comparison import Comparison, Row, Setting
from dcp.execution_plan import ExecutionPlan
from dcp.report import PlanReport
from dcp.selection import SelectionTable
from dcp.workloads import Workload

JSON_VERSION = 1

_MEANS = (
    "comm_bytes",
    "inter_node_bytes",
    "backward_comm_bytes",
    "backward_inter_node_bytes",
    "volume_bytes",
    "volume_inter_node_bytes",
    "lower_bound_bytes",
    "planning_s",
    "forward_s",
    "backward_s",
    "exposed_comm_s",
    "overlapped_comm_s",
    "idle_s",
)
_LARGEST = ("compute_imbalance", "token_imbalance", "buffer_bytes")


def comparison_json(
    workload: Workload,
    setting: Setting,
    comparison: Comparison,
    executions: Executions,
    table: SelectionTable | None,
) -> dict[str, Any]:
    """The whole comparison; figures of a row are means over batches, balance the largest."""
    return {
        "version": JSON_VERSION,
        "workload": workload_json(workload, setting),
        **setting_json(setting),
        "best": _title(comparison.best),
        "best_static": _title(comparison.best_static),
        "rows": [_row(comparison, row, executions) for row in comparison.rows],
        "winners": None if table is None else msgspec.to_builtins(table.winners),
    }


def workload_json(workload: Workload, setting: Setting) -> dict[str, Any]:
    """What was read, and the batches with their masks."""
    return {
        "source": workload.source,
        "token_rule": workload.token_rule,
        "notes": list(workload.notes),
        "batches": [
            {"lengths": list(batch.q_lengths), "masks": sorted({str(mask) for mask in batch.masks})}
            for batch in setting.batches
        ],
    }


def setting_json(setting: Setting) -> dict[str, Any]:
    """What every strategy planned for."""
    builtins = msgspec.to_builtins
    return {
        "heads": builtins(setting.spec),
        "cluster": builtins(setting.cluster),
        "block_size": setting.block_size,
        "limits": builtins(setting.limits),
        "seed": setting.seed,
        "budget": setting.budget,
        "keep_bytes": setting.keep_bytes,
    }


def plan_json(plan: ExecutionPlan, report: PlanReport) -> dict[str, Any]:
    """Who made a plan, its digest and its report."""
    return {
        **msgspec.to_builtins(plan.origin),
        "digest": plan.digest,
        **msgspec.to_builtins(report),
    }


def _title(row: Row | None) -> str | None:
    return None if row is None else row.strategy.title


def _row(comparison: Comparison, row: Row, executions: Executions) -> dict[str, Any]:
    found: dict[str, Any] = {
        "strategy": row.strategy.title,
        "kind": "static" if row.strategy.is_static else "planned",
        "status": row.status,
        "problem": row.problem or None,
        "feasible": row.feasible,
        "violations": list(row.violations),
    }
    if row.is_planned:
        found |= {name: row.mean(name) for name in _MEANS}
        found |= {name: row.largest(name) for name in _LARGEST}
        found["time_vs_best_static"] = comparison.time_ratio(row)
        found["bytes_vs_best_static"] = comparison.bytes_ratio(row)
    found["plans"] = [
        plan_json(plan, report) for plan, report in zip(row.plans, row.reports, strict=True)
    ]
    for document, execution in zip(
        found["plans"], executions.get(row.strategy.title, ()), strict=False
    ):
        document["execution"] = execution_json(execution)
    return found


def execution_json(execution: Execution) -> dict[str, Any]:
    """Measured time and errors; infinite errors are null."""
    return {
        "proven": execution.proven,
        "equal_to_dense": execution.equal,
        "measured_s": execution.measured_s,
        "errors": _finite(execution.errors),
        "error_budgets": _finite(execution.budgets),
        "problem": execution.problem or None,
    }


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def comparison_csv(comparison: Comparison, executions: Executions) -> str:
    """One line for every strategy and batch, below a line of names."""
    lines = [line for row in comparison.rows for line in _lines(row, executions)]
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _lines(row: Row, executions: Executions) -> Sequence[dict[str, Any]]:
    """Lines of one strategy; one without a batch where it has no plans."""
    head = {
        "strategy": row.strategy.title,
        "kind": "static" if row.strategy.is_static else "planned",
        "status": row.status,
    }
    if not row.is_planned:
        return [{**head, "problem": row.problem}]
    lines = []
    for batch, report in enumerate(row.reports):
        line = {**head, "problem": "", "batch": batch, **msgspec.to_builtins(report)}
        line["violations"] = "; ".join(report.violations)
        lines.append(line)
    for line, execution in zip(lines, executions.get(row.strategy.title, ()), strict=False):
        line |= {"proven": execution.proven, "equal_to_dense": execution.equal}
        line |= {"measured_s": execution.measured_s, "problem": execution.problem}
        line |= {f"error_{name}": value for name, value in execution.errors.items()}
    return lines
