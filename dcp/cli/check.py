"""`dcp check`: prove plan files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dcp.cli.app import FAULT
from dcp.cli.output import print_json, steps
from dcp.errors import PlanCheckError, PlanFormatError
from dcp.execution_plan import ExecutionPlan


def check(
    plans: Annotated[list[Path], typer.Argument(help="Plan files.", exists=True, dir_okay=False)],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Prove that plans compute dense attention, without running them.

    Every allowed pair is computed once, every result ends at its home made of exactly its
    contributions, nothing is read before it has arrived or after its slot was reused, every
    message meets its receive, and no rank can wait forever.
    """
    with steps(len(plans)) as progress:
        found = []
        for path in plans:
            progress.begin(f"proving {path.name}")
            found.append(_proof(path))
    if json:
        print_json(found)
    else:
        for one in found:
            print(_line(one))
    if not all(one["proven"] for one in found):
        raise typer.Exit(FAULT)


def _proof(path: Path) -> dict[str, Any]:
    from dcp.verification.plan_checker import check_plan

    try:
        plan = ExecutionPlan.load(path)
        proof = check_plan(plan)
    except (PlanCheckError, PlanFormatError) as fault:
        return {"file": str(path), "proven": False, "fault": str(fault)}
    return {
        "file": str(path),
        "proven": True,
        "digest": plan.digest,
        "made_by": str(plan.origin),
        "proof": str(proof),
    }


def _line(found: dict[str, Any]) -> str:
    if found["proven"]:
        return f"{found['file']}: proven ({found['made_by']}): {found['proof']}"
    return f"{found['file']}: NOT PROVEN: {found['fault']}"
