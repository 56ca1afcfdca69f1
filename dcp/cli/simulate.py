"""`dcp simulate`: a finished plan, played through the cost model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dcp.cli import export, options, plan_source
from dcp.cli.option_groups import with_groups
from dcp.cli.output import check_writable, print_json, stdout
from dcp.cli.profile_tables import LEGEND, parts_json, parts_table, plan_line, written
from dcp.cli.tables import cluster_text
from dcp.profiling.chrome import write_chrome_trace
from dcp.profiling.decomposition import decompose
from dcp.profiling.simulated import simulated_trace
from dcp.simulator import simulate_plan


@with_groups
def simulate(
    *,
    plan: Annotated[Path | None, plan_source.plan_argument()] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Chrome trace to write, for Perfetto.", show_default=False)
    ] = None,
    choice: plan_source.StrategyOptions,
    request: options.Request,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Play a plan's programs through the cost model, instruction by instruction."""
    check_writable(trace)
    chosen = plan_source.plan_from(plan, request, choice, options.DEFAULTS)
    timeline = simulated_trace(chosen, simulate_plan(chosen))
    found = decompose(timeline, len(chosen.ranks))
    if trace is not None:
        write_chrome_trace(trace, {"simulated": timeline})
    if json:
        document = {
            "version": export.JSON_VERSION,
            "digest": chosen.digest,
            "made_by": str(chosen.origin),
            "simulated": parts_json(found),
            "trace": None if trace is None else str(trace),
        }
        print_json(document)
        return
    console = stdout()
    console.print(plan_line(chosen))
    console.print(cluster_text(chosen.cluster))
    for one in found:
        console.print(parts_table(one, console.width))
    console.print(LEGEND)
    if trace is not None:
        console.print(written(trace), soft_wrap=True)
