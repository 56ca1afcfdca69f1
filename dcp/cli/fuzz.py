"""`dcp fuzz`: random requests, planned, proven and run against the oracle."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dcp.batch import DTYPE_BYTES
from dcp.cli.app import FAULT
from dcp.cli.output import print_json
from dcp.errors import MissingPackageError, SpecError


def fuzz(
    seconds: Annotated[float, typer.Option(help="Stop after this time.")] = 60.0,
    examples: Annotated[
        int | None, typer.Option(help="Stop after this many requests.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds try equal requests.")] = 0,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPE_BYTES)}.")] = "float64",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Plan random requests, prove and run them; show the smallest that does not hold."""
    if not seconds > 0:
        raise SpecError(f"--seconds {seconds:g} was given; give more than 0")
    if examples is not None and examples < 1:
        raise SpecError(f"--examples {examples} was given; give 1 or more")
    result = _fuzz()(
        seconds=seconds,
        examples=examples,
        first_seed=seed,
        dtype=dtype,
    )
    fault = "" if result.error is None else f"{type(result.error).__name__}: {result.error}"
    if json:
        found = {"held": result.examples, "fault": fault or None}
        print_json({**found, "request": None if result.case is None else repr(result.case)})
    elif result.error is None:
        print(f"{result.examples} requests planned, proven and equal to dense attention")
    else:
        request = "none, making one failed" if result.case is None else repr(result.case)
        print(f"{fault}\nrequest: {request}\n{result.examples} requests held before it")
    if result.error is not None:
        raise typer.Exit(FAULT)


def _fuzz() -> Any:
    try:
        import hypothesis  # noqa: F401 - tells a missing package from a fault in our own modules
    except ImportError as error:
        raise MissingPackageError(
            "dcp fuzz needs the package 'hypothesis', which is not installed; run "
            "pip install 'dynamic-context-parallel[dev]'"
        ) from error
    from dcp.verification.fuzz import fuzz

    return fuzz
