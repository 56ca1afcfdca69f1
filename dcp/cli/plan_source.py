"""One plan: made as `dcp plan` is asked to, or for `dcp profile` and `dcp simulate` from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dcp.cli import options
from dcp.comparison import Strategy, plan_with
from dcp.errors import PlanFormatError, SpecError
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


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """The options that choose one strategy."""

    partitioner: Annotated[
        str,
        typer.Option(
            help="NAME, NAME:OPTION=VALUE,... or auto: local_search and greedy against the static "
            "schemes; the least simulated time wins."
        ),
    ] = "auto"
    scheduler: Annotated[
        str, typer.Option(help="In the same way; auto is overlap, and the schemes' own.")
    ] = "auto"
    baseline: Annotated[
        str | None, typer.Option(help="A static scheme instead.", show_default=False)
    ] = None

    @property
    def strategy(self) -> Strategy:
        """What is asked for."""
        return Strategy(
            partitioner=self.partitioner,
            scheduler=self.scheduler,
            baseline=self.baseline,
            title="plan",
        )


def plan_from(
    file: Path | None,
    request: options.Request,
    choice: StrategyOptions,
    defaults: options.Defaults,
) -> ExecutionPlan:
    """Load a plan, or make one.

    Raises:
        SpecError: a file was given together with what to plan.
        PlanFormatError: the file holds no plan.
        DcpError: the request cannot be planned.
    """
    if file is None:
        _, setting = request.resolve(defaults)
        return plan_with(setting, choice.strategy, setting.batches[0])
    if request != options.Request() or choice != StrategyOptions():
        raise SpecError(
            f"the plan file {file} was given together with options that say what to plan; give "
            "one or the other"
        )
    try:
        return ExecutionPlan.load(file)
    except PlanFormatError as error:
        raise PlanFormatError(f"{file}: {error}") from error
