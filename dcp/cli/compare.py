"""`dcp compare`: one table, a row a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dcp.cli import export, options, tables
from dcp.cli.app import FAULT
from dcp.cli.execution import Executions
from dcp.cli.option_groups import with_groups
from dcp.cli.output import check_writable, print_json, stdout, steps
from dcp.cli.strategies import chosen
from dcp.comparison import Comparison, Setting, Strategy, selection
from dcp.comparison import compare as plan_all
from dcp.errors import SpecError
from dcp.workloads import Workload

_STRATEGIES = "Strategies"

Batches = Annotated[
    int | None,
    typer.Option(
        help="Most batches; by default 1, or all that a file holds already.",
        rich_help_panel=options.INPUT,
        show_default=False,
    ),
]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        help="Static scheme, NAME or NAME:OPTION=VALUE,...; repeatable; 'none' for none. "
        "Default: every one.",
        rich_help_panel=_STRATEGIES,
        show_default=False,
    ),
]
Partitioners = Annotated[
    list[str] | None,
    typer.Option(
        "--partitioner",
        help="Partitioner, in the same way. Default: every one.",
        rich_help_panel=_STRATEGIES,
        show_default=False,
    ),
]
Schedulers = Annotated[
    list[str] | None,
    typer.Option(
        "--scheduler",
        help="Scheduler for the partitioners; repeatable. Default: auto, which is overlap.",
        rich_help_panel=_STRATEGIES,
        show_default=False,
    ),
]


@with_groups
def compare(
    *,
    request: options.Request,
    batches: Batches = None,
    baseline: Baselines = None,
    partitioner: Partitioners = None,
    scheduler: Schedulers = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Also execute every plan on local processes, one a device: measured time, and "
            "error against dense attention in float64. Other defaults are then small: "
            f"{options.in_words(options.RUN_DEFAULTS)}.",
        ),
    ] = False,
    select: Annotated[
        Path | None,
        typer.Option(
            "--select",
            help="Also say which strategy wins for which kind of workload, and write the table "
            "to this file, for dcp.plan(selection=...) to start from.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print a line a strategy and batch.")] = False,
) -> None:
    """Plan the same batches with every strategy and compare: bytes, balance, time."""
    if json and csv:
        raise SpecError("both --json and --csv were given; give one of them")
    check_writable(select)
    defaults = options.RUN_DEFAULTS if run else options.DEFAULTS
    wanted = chosen(baseline, partitioner, scheduler)
    workload, setting = request.resolve(defaults, batches)
    if run:
        _check_size(setting)
    comparison = _planned(setting, wanted)
    executions = _executed(setting, comparison) if run else {}
    table = selection(setting, comparison) if select else None
    if select and table:
        table.save(select)
    if json:
        print_json(export.comparison_json(workload, setting, comparison, executions, table))
    elif csv:
        print(export.comparison_csv(comparison, executions), end="")
    else:
        remark = request.filled_in(defaults) if run else ""
        _print_tables(workload, setting, comparison, executions, remark)
        if table:
            console = stdout()
            console.print(tables.winners(table, console.width))
    asked_for = {*(baseline or ()), *(partitioner or ())}
    if _is_faulty(comparison, executions, asked_for):
        raise typer.Exit(FAULT)


def _planned(setting: Setting, wanted: list[Strategy]) -> Comparison:
    count = len(setting.batches)
    with steps(len(wanted) * count) as progress:

        def on_start(strategy: Strategy, batch: int) -> None:
            which = f", batch {batch + 1} of {count}" if count > 1 else ""
            progress.begin(f"planning: {strategy.title}{which}")

        return plan_all(setting, wanted, on_start)


def _check_size(setting: Setting) -> None:
    from dcp.cli.local_run import check_size  # loads torch

    check_size(setting)


def _executed(setting: Setting, comparison: Comparison) -> Executions:
    from dcp.cli.local_run import execute_all  # loads torch

    return execute_all(setting, comparison)


def _print_tables(
    workload: Workload,
    setting: Setting,
    comparison: Comparison,
    executions: Executions,
    remark: str,
) -> None:
    console = stdout()
    console.print(tables.heading(workload, setting))
    console.print(tables.figures(comparison, console.width))
    console.print(tables.legend(comparison, len(setting.batches)))
    if executions:
        console.print(tables.executed(comparison, executions, console.width))
        console.print(tables.executed_legend(setting, executions, remark))


def _is_faulty(comparison: Comparison, executions: Executions, asked_for: set[str]) -> bool:
    """Whether something failed, or what was asked for by name could not be planned."""
    rows = comparison.rows
    failed = any(row.status == "failed" for row in rows)
    not_served = any(not row.is_planned and row.strategy.request in asked_for for row in rows)
    wrong = any(not one.equal for each in executions.values() for one in each)
    return failed or not_served or wrong
