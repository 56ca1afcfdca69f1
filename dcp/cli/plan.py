"""`dcp plan`: one batch, one strategy, saved to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dcp.cli import export, options, plan_source, tables
from dcp.cli.option_groups import with_groups
from dcp.cli.output import check_writable, print_json, stdout
from dcp.comparison import plan_with


@with_groups
def plan(
    *,
    out: Annotated[
        Path | None, typer.Option(help="Plan file to write; `dcp check` proves it.")
    ] = None,
    choice: plan_source.StrategyOptions,
    request: options.Request,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Plan one batch (the input's first) with one strategy, report on it and save it."""
    check_writable(out)
    workload, setting = request.resolve(options.DEFAULTS)
    made = plan_with(setting, choice.strategy, setting.batches[0])
    report = made.report()
    if out is not None:
        made.save(out)
    if json:
        document = {
            "version": export.JSON_VERSION,
            "workload": export.workload_json(workload, setting),
            **export.setting_json(setting),
            "plan": export.plan_json(made, report),
            "file": None if out is None else str(out),
        }
        print_json(document)
        return
    console = stdout()
    console.print(tables.heading(workload, setting))
    console.print(tables.plan_report(made, report))
    if out is not None:
        console.print(f"saved to {out}")
