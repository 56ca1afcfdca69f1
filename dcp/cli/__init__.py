"""The `dcp` command. Commands import what plans and executes only when they run."""

from __future__ import annotations

import typer

from dcp.cli.app import CleanErrors, before_command
from dcp.cli.backends import backends
from dcp.cli.check import check
from dcp.cli.compare import compare
from dcp.cli.fuzz import fuzz
from dcp.cli.plan import plan
from dcp.cli.profile import profile
from dcp.cli.simulate import simulate

app = typer.Typer(
    name="dcp",
    cls=CleanErrors,
    help="Dynamic context parallelism: plan attention over many devices for every batch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(before_command)
app.command()(compare)
app.command()(plan)
app.command()(check)
app.command()(fuzz)
app.command()(profile)
app.command()(simulate)
app.command()(backends)
