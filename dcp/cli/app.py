"""The frame of all commands: errors as one line without a traceback, and the version."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dcp
from dcp.errors import (
    BackendError,
    DcpError,
    DigestMismatchError,
    PlacementError,
    PlanCheckError,
    ScheduleError,
    TransportError,
)

FAULT = 1
"""Exit code where a backend failed, a plan is wrong or a result is not equal to dense attention."""
BAD_INPUT = 2
"""Exit code of illegal input, as for unknown options."""

_FAULTS = (
    BackendError,
    DigestMismatchError,
    PlacementError,
    PlanCheckError,
    ScheduleError,
    TransportError,
)


class CleanErrors(TyperGroup):
    """Prints what dcp raises on purpose as one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except (DcpError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise  # the reader of our output has left; typer ends quietly
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(FAULT if isinstance(error, _FAULTS) else BAD_INPUT) from error


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    version = getattr(dcp, "__version__", None)
    print(f"dcp {version}" if version else "dcp, run from a checkout that is not installed")
    raise typer.Exit


def before_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command; they have ended it where there are any."""
