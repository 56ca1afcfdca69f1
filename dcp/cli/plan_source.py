"""The plan of `dcp profile` and `dcp simulate`: from a file, or from the inputs of `dcp plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dcp.cli import options
from dcp.comparison import Strategy, plan_with
from dcp.errors import SpecError
from dcp.execution_plan import ExecutionPlan


def plan_argument(remark: str = "") -> Any:
    """The plan file, which may be left out."""
    return typer.Argument(
        help="Plan file; without one the options below say what to plan, as for `dcp plan`."
        + remark,
        exists=True,
        dir_okay=False,
        show_default=False,
    )


Partitioner = Annotated[
    str, typer.Option(help="NAME, NAME:OPTION=VALUE,... or auto: the fastest of all.")
]
Scheduler = Annotated[str, typer.Option(help="In the same way.")]
Baseline = Annotated[str | None, typer.Option(help="A static scheme instead.", show_default=False)]
TITLE = "plan"

NOTHING_ASKED = options.Request(
    lengths=None,
    text=None,
    tokenizer=None,
    tokens=None,
    batches=1,
    seed=0,
    mask="causal",
    heads="8/2",
    head_dim=None,
    dtype=None,
    cluster=None,
    block_size=None,
    limits=options.DEFAULT_LIMITS,
    budget=1.0,
)
"""The request of a command line without options."""


def plan_from(
    file: Path | None,
    request: options.Request,
    strategy: Strategy,
    defaults: options.Defaults,
) -> ExecutionPlan:
    """Load a plan, or make one.

    Raises:
        SpecError: a file was given together with what to plan.
        DcpError: the file holds no plan, or the request cannot be planned.
    """
    if file is None:
        _, setting = request.resolve(defaults)
        return plan_with(setting, strategy, setting.batches[0])
    if request != NOTHING_ASKED or strategy != Strategy(title=TITLE):
        raise SpecError(
            f"the plan file {file} was given together with options that say what to plan; give "
            "one or the other"
        )
    return ExecutionPlan.load(file)
