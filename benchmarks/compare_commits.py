"""Two commits measured by one benchmark script in one run, taking turns.

    python benchmarks/compare_commits.py executor_cpu.py --base HEAD~3 -- --shapes ragged

The script that stands here runs in turns with the library of the commit `--base`, checked out in a
temporary folder, and with that of this working tree. It must write tidy CSV when given `--csv`;
whether the base has such a script, or another one of that name, does not matter. A ratio is the
median with this working tree over the median with the base in the same round: below 1 this
working tree takes less.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from tidy import conditions, quantiles, read_csv

Medians = dict[tuple[tuple[str, str], ...], float]
"""Median by name and parameters."""


def main(
    script: Annotated[Path, typer.Argument(help="with --csv; a name is one of this folder")],
    base: Annotated[str, typer.Option(help="commit to compare with")],
    arguments: Annotated[list[str] | None, typer.Argument(help="for the script")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="runs of each")] = 3,
) -> None:
    """Print the ratio of the working tree to the base for every measurement of the script."""
    script = script if script.exists() else Path(__file__).parent / script
    here = Path(_git(script.resolve().parent, "rev-parse", "--show-toplevel"))
    found: dict[str, list[Medians]] = defaultdict(list)
    with _checkout(here, base) as there:
        sides = {"base": _environment(there), "here": _environment(here)}
        for number, (side, environment) in itertools.product(range(rounds), sides.items()):
            print(f"round {number + 1} of {rounds}: {side}", file=sys.stderr, flush=True)
            found[side].append(_measured(script, arguments or [], environment))
    _print(found["base"], found["here"], base)


@contextmanager
def _checkout(repository: Path, commit: str) -> Iterator[Path]:
    """A commit in a folder of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="dcp-base-") as folder:
        tree = Path(folder, "tree")
        _git(repository, "worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise typer.BadParameter(f"git {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _environment(library: Path) -> dict[str, str]:
    """Ours, with the library of a checkout.

    Raises:
        RuntimeError: another one would be imported.
    """
    environment = {**os.environ, "PYTHONPATH": str(library)}
    command = [sys.executable, "-c", "import dcp; print(dcp.__file__)"]
    done = subprocess.run(
        command, env=environment, cwd=library.parent, capture_output=True, text=True, check=True
    )
    imported = Path(done.stdout.strip()).parents[1]
    if imported.resolve() != library.resolve():
        raise RuntimeError(f"the library of {imported} would be measured instead of {library}")
    return environment


def _measured(script: Path, arguments: list[str], environment: dict[str, str]) -> Medians:
    with tempfile.TemporaryDirectory(prefix="dcp-bench-") as folder:
        file = Path(folder, "measured.csv")
        subprocess.run(
            [sys.executable, str(script), *arguments, "--csv", str(file)],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return {conditions(row): float(row["p50"]) for row in read_csv(file)}


def _print(base: list[Medians], here: list[Medians], title: str) -> None:
    table = Table(title=f"this working tree over {title}, {len(base)} rounds")
    for column in ("measurement", "base", "here", "p20 ratio", "p50", "p80"):
        table.add_column(column, justify="left" if column == "measurement" else "right")
    for what in base[0]:
        (_, name), *parameters = what
        values = ", ".join(value for _, value in parameters if value)
        medians = (quantiles([run[what] for run in side])[1] for side in (base, here))
        ratios = quantiles([own[what] / its[what] for own, its in zip(here, base, strict=True)])
        cells = [f"{median:.4g}" for median in medians] + [f"{ratio:.3f}" for ratio in ratios]
        table.add_row(f"{name}: {values}", *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
