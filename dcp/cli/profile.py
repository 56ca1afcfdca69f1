"""`dcp profile`: a plan, run and taken apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dcp import registry
from dcp.cli import export as export_json
from dcp.cli import options, plan_source
from dcp.cli.option_groups import with_groups
from dcp.cli.output import check_writable, counted, print_json, stdout, steps
from dcp.cli.profile_tables import (
    LEGEND,
    accuracy_table,
    parts_json,
    parts_table,
    plan_line,
    written,
)
from dcp.cluster import Cluster
from dcp.errors import SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.profiling.accuracy import Accuracy, compare_traces
from dcp.profiling.chrome import write_chrome_trace
from dcp.profiling.decomposition import Decomposition, decompose
from dcp.profiling.trace import Trace

_ITERATIONS = 5
_KERNEL = "torch"

BOUND = """\
A message counts as under way until it is waited for, so overlapped is an upper
bound where ranks were processes, and exact where NCCL's kernels were seen."""


@with_groups
def profile(
    *,
    plan: Annotated[
        Path | None,
        plan_source.plan_argument(
            f" Their defaults are small here: {options.in_words(options.RUN_DEFAULTS)}."
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            help=f"Forward and backward passes, after one to warm up. Default: {_ITERATIONS}.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[Path, typer.Option(help="Chrome trace to write, for Perfetto.")] = Path(
        "dcp-profile.json"
    ),
    kernel: Annotated[
        str | None,
        typer.Option(
            help=f"Kernel, NAME or NAME:OPTION=VALUE,... Default: {_KERNEL}.", show_default=False
        ),
    ] = None,
    nsys: Annotated[
        bool, typer.Option("--nsys", help="Run under Nsight Systems, and read what it has seen.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Run nothing: read this SQLite export of Nsight Systems, of a run of PLAN.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="'simulation': set beside it what the cost model says of the preset local.",
            show_default=False,
        ),
    ] = None,
    choice: plan_source.StrategyOptions,
    request: options.Request,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a plan on local processes, one a device, and show where the time goes."""
    check_writable(trace)
    if export is not None:
        _check_export(plan, iterations, kernel, nsys)
    iterations = _ITERATIONS if iterations is None else iterations
    kernel = _KERNEL if kernel is None else kernel
    _check(iterations, against)
    if export is None:
        registry.create("kernels", kernel)  # refuses in one line what every rank would refuse
    chosen = plan_source.plan_from(plan, request, choice, options.RUN_DEFAULTS)
    measured = _measured(chosen, iterations, kernel, nsys, export)
    found = decompose(measured, len(chosen.ranks))
    traces, accuracy = {"measured": measured}, list[Accuracy]()
    if against is not None:
        traces["simulated"] = _simulated(chosen)
        accuracy = compare_traces(measured, traces["simulated"], len(chosen.ranks))
    write_chrome_trace(trace, traces)
    if json:
        print_json(_document(chosen, found, accuracy, trace))
    else:
        _print(chosen, found, accuracy, trace, _how(chosen, iterations, nsys, export))


def _check_export(
    plan: Path | None, iterations: int | None, kernel: str | None, nsys: bool
) -> None:
    given = {"--iterations": iterations is not None, "--kernel": kernel is not None, "--nsys": nsys}
    idle = [name for name, is_given in given.items() if is_given]
    if plan is None or idle:
        leave = f", and leave {' and '.join(idle)} out" if idle else ""
        raise SpecError(f"--export reads a run that is over: give the plan file that ran{leave}")


def _check(iterations: int, against: str | None) -> None:
    if iterations < 1:
        raise SpecError(f"--iterations {iterations} was given; give 1 or more")
    if against not in (None, "simulation"):
        raise SpecError(f"--against {against} was given; legal: simulation")


def _measured(
    plan: ExecutionPlan, iterations: int, kernel: str, nsys: bool, export: Path | None
) -> Trace:
    if export is not None:
        from dcp.profiling.nsight import read_export

        return read_export(export, plan)
    from dcp.cli.profile_run import profile_plan, profile_plan_under_nsys  # loads torch

    with steps(1) as progress:
        progress.begin("running the plan")
        return (profile_plan_under_nsys if nsys else profile_plan)(plan, iterations, kernel)


def _simulated(plan: ExecutionPlan) -> Trace:
    """The plan on the preset `local`, whatever cluster it is made for."""
    from dcp.profiling.simulated import simulated_trace
    from dcp.simulator import simulate_plan

    made_for = plan.cluster
    local = Cluster.preset(
        "local", nodes=made_for.nodes, devices_per_node=made_for.devices_per_node
    )
    return simulated_trace(plan, simulate_plan(plan, local))


def _how(plan: ExecutionPlan, iterations: int, nsys: bool, export: Path | None) -> str:
    if export is not None:
        return f"read from {export}"
    processes = counted(len(plan.ranks), "local process", "local processes")
    under = " under Nsight Systems" if nsys else ""
    return (
        f"{counted(iterations, 'iteration')} on {processes}{under} (gloo, a CPU thread each) "
        f"on {counted(os.cpu_count() or 1, 'core')}"
    )


def _print(
    plan: ExecutionPlan,
    found: list[Decomposition],
    accuracy: list[Accuracy],
    trace: Path,
    how: str,
) -> None:
    console = stdout()
    console.print(plan_line(plan))
    console.print(how)
    for one in found:
        console.print(parts_table(one, console.width))
    console.print(f"{LEGEND}\n{BOUND}")
    if accuracy:
        console.print(accuracy_table(accuracy, console.width))
        console.print("Means over iterations and ranks; simulated on the cluster preset local.")
    console.print(written(trace), soft_wrap=True)


def _document(
    plan: ExecutionPlan, found: list[Decomposition], accuracy: list[Accuracy], trace: Path
) -> dict[str, object]:
    return {
        "version": export_json.JSON_VERSION,
        "digest": plan.digest,
        "made_by": str(plan.origin),
        "measured": parts_json(found),
        "against_simulation": msgspec.to_builtins(accuracy),
        "trace": str(trace),
    }
