"""Decomposed timelines as tables that can be read at 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from dcp.cli.output import counted, number
from dcp.cli.tables import new_table
from dcp.execution_plan import ExecutionPlan
from dcp.profiling.accuracy import Accuracy
from dcp.profiling.decomposition import PARTS, Decomposition, Parts

LEGEND = """\
Milliseconds; a row adds up to the time until the slowest rank has ended.
exposed: waiting for messages.
overlapped: attention while a message to the rank is under way. alone: the rest.
other: reduce, copy, launch, setup and what lies between instructions.
idle: before the rank begins or after it has ended, while others are at work."""


def plan_line(plan: ExecutionPlan) -> str:
    """Which plan it is."""
    return f"plan {plan.digest[:12]} by {plan.origin}, {counted(len(plan.ranks), 'rank')}"


def written(trace: Path) -> str:
    """Where the trace is, and what opens it."""
    return f"trace written to {trace}; open it at https://ui.perfetto.dev"


def parts_table(found: Decomposition, width: int) -> Table:
    """A row a rank, and their mean."""
    table = new_table(
        width,
        f"{found.phase}\nrank",
        "exposed\ncomm.",
        "overlapped\ncomm.",
        "attention\nalone",
        "\nother",
        "\nidle",
        "\ntotal",
    )
    for rank, parts in enumerate(found.ranks):
        table.add_row(str(rank), *_cells(parts))
    table.add_row("mean", *_cells(found.mean), style="bold")
    return table


def _cells(parts: Parts) -> Iterator[str]:
    for name in PARTS:
        yield number(getattr(parts, name) * 1e3)
    yield number(parts.total_s * 1e3)


def accuracy_table(found: Sequence[Accuracy], width: int) -> Table:
    """Measured and simulated time side by side, a row a kind of instruction."""
    table = new_table(width, "phase, kind", "measured ms", "simulated ms", "error")
    for one in found:
        table.add_row(
            f"{one.phase} {'in all' if one.kind == 'phase' else one.kind}",
            number(one.measured_s * 1e3),
            number(one.simulated_s * 1e3),
            "-" if one.error is None else f"{one.error:+.0%}",
            style="bold" if one.kind == "phase" else "",
        )
    return table


def parts_json(found: Sequence[Decomposition]) -> dict[str, Any]:
    """By phase: seconds of every rank and their means."""
    return {
        one.phase: {
            "runs": one.runs,
            "ranks": [_parts_json(parts) for parts in one.ranks],
            "mean": _parts_json(one.mean),
        }
        for one in found
    }


def _parts_json(parts: Parts) -> dict[str, float]:
    return {**msgspec.to_builtins(parts), "total_s": parts.total_s}
