"""Where output goes: results to stdout, progress to stderr and only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dcp.errors import SpecError

_CREATE = os.W_OK | os.X_OK
"""What creating a file needs of its folder."""


def stdout() -> Console:
    """Console for tables; without colours and markup where stdout is no terminal."""
    return Console(highlight=False, markup=False, emoji=False)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, allow_nan=False))


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be written, before work is done for it; None for no file.

    Raises:
        SpecError: a folder has that name, its own folder is not there, or it may not be written.
    """
    why = None if path is None else _obstacle(path)
    if why:
        raise SpecError(
            f"cannot write {path}: {why}; give a file in a folder that is there and that you may "
            "write to"
        )


def _obstacle(path: Path) -> str | None:
    """Why a file cannot be written; None where nothing speaks against it."""
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    allowed = os.access(path, os.W_OK) if path.exists() else os.access(path.parent, _CREATE)
    return None if allowed else "permission is denied"


class Steps:
    """A progress bar that is told what comes next."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)
        self._begun = 0

    def begin(self, what: str) -> None:
        """Say what is being done; everything begun before counts as done."""
        self._progress.update(self._task, description=what, completed=self._begun)
        self._begun += 1


@contextmanager
def steps(total: int) -> Iterator[Steps]:
    """A progress bar of so many steps, gone when it ends; nothing where stderr is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, markup=False)
    shown = sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        yield Steps(progress, total)


def number(value: float) -> str:
    """Three digits or more, few enough for a narrow column."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 batch`, `2 batches`; the plural takes an s unless given."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
