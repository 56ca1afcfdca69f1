"""Runs the `dcp` command on small requests, and backends that cannot serve any."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

from typer.testing import CliRunner, Result

from dcp.backend import Availability
from dcp.cli import app
from dcp.errors import BackendError
from dcp.placement import Assignment, Partitioner, PlacementProblem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Absent(Partitioner):
    name: ClassVar[str] = "absent"

    @classmethod
    def availability(cls) -> Availability:
        return Availability(False, "run pip install absent")

    def place(self, problem: PlacementProblem) -> Assignment:
        raise AssertionError("cannot run")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken(Partitioner):
    name: ClassVar[str] = "broken"
    expected: bool = True

    def place(self, problem: PlacementProblem) -> Assignment:
        raise BackendError("the solver crashed") if self.expected else ZeroDivisionError("surprise")


def run(*arguments: object, columns: int = 80) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": str(columns)})


def run_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


ABSENT, BROKEN = f"{__name__}:Absent", f"{__name__}:Broken"
SMALL = ("--cluster", "2x2", "--block-size", "64", "--head-dim", "16")
FEW = ("--baseline", "zigzag", "--partitioner", "greedy")
