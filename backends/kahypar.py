"""The `kahypar` partitioner: KaHyPar (GPL-3), in a process of its own.

Package: kahypar (extra `kahypar`). The library ends the process where it does not like its
input, so it never runs in this one. Source: Schlag, Heuer, Gottesbüren, Akhremtsev, Schulz and
Sanders, "High-Quality Hypergraph Partitioning", ACM Journal of Experimental Algorithmics 2023.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import msgspec

from dcp import errors
from dcp.arrays import IntArray
from dcp.backend import Availability
from dcp.backends.hypergraph import place_with
from dcp.backends.kahypar_worker import Answer, Job, from_wire
from dcp.checks import check_number
from dcp.errors import BackendError
from dcp.placement import Assignment, Partitioner, PlacementProblem

WORKER = (sys.executable, "-m", "dcp.backends.kahypar_worker")
_TAIL_CHARACTERS = 2000
_LONGEST_S = 1e6  # waiting takes milliseconds in 32 bits


@dataclass(frozen=True, kw_only=True)
class KaHyPar(Partitioner):
    """Hierarchical hypergraph partitioning by KaHyPar, deterministic for a seed.

    Each solve of the whole hierarchy is one process, ended when its time is up.

    Args:
        timeout_s: Wall-clock seconds that a process may take.
    Raises:
        SpecError: a time that is not positive, or more than 1e6 seconds.
    """

    name: ClassVar[str] = "kahypar"

    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_number("timeout_s", self.timeout_s, positive=True, most=_LONGEST_S)

    @classmethod
    def availability(cls) -> Availability:
        """Whether the package is installed; does not import it."""
        if find_spec("kahypar") is None:
            return Availability(False, "install dynamic-context-parallel[kahypar]")
        return Availability(True)

    def place(self, problem: PlacementProblem) -> Assignment:
        """Split over nodes, then devices, then repair.

        Raises:
            BackendError: the process crashed, exited, answered nonsense or ran out of time.
        """
        return place_with(problem, lambda one: solve_in_worker(one, WORKER, self.timeout_s))


def solve_in_worker(
    problem: PlacementProblem, command: Sequence[str], timeout_s: float
) -> Assignment:
    """Have a worker process solve a problem.

    Args:
        problem: What to place.
        command: Program and arguments; reads a `Job` from stdin, writes an `Answer` to stdout.
        timeout_s: Wall-clock seconds until it is killed.
    Raises:
        BackendError: no valid answer in time; says why, with the end of the worker's stderr.
    """
    size = f"{len(problem.token_tokens)} token blocks and {len(problem.comp_q)} computations"
    try:
        done = subprocess.run(
            command,
            input=msgspec.msgpack.encode(Job.of(problem)),
            capture_output=True,
            timeout=timeout_s,
            env=_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise BackendError(
            f"kahypar had no answer after {timeout_s:g} s for {size}; allow more with "
            f"kahypar:timeout_s=..., use larger blocks or another partitioner"
            f"{_said(expired.stderr)}"
        ) from expired
    if done.returncode:
        raise BackendError(
            f"kahypar ended with {_ending(done.returncode)} on {size}; "
            f"use another partitioner{_said(done.stderr)}"
        )
    return _checked_answer(problem, done.stdout, done.stderr)


def _checked_answer(problem: PlacementProblem, data: bytes, stderr: bytes) -> Assignment:
    try:
        answer = msgspec.msgpack.decode(data, type=Answer)
        home, device = from_wire(answer.token_home), from_wire(answer.comp_device)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BackendError(f"kahypar's answer cannot be read: {error}{_said(stderr)}") from error
    devices = problem.cluster.num_devices
    if not (
        _are_devices(home, len(problem.token_tokens), devices)
        and _are_devices(device, len(problem.comp_q), devices)
    ):
        raise BackendError(
            f"kahypar answered {len(home)} homes and {len(device)} devices for "
            f"{len(problem.token_tokens)} token blocks and {len(problem.comp_q)} computations "
            f"on devices 0 … {devices - 1}{_said(stderr)}"
        )
    return Assignment(home, device)


def _are_devices(values: IntArray, count: int, devices: int) -> bool:
    return len(values) == count and bool(((values >= 0) & (values < devices)).all())


def _environment() -> dict[str, str]:
    """This environment, with the package that runs here first on the worker's path."""
    root = str(Path(errors.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def _ending(returncode: int) -> str:
    if returncode > 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"


def _said(stderr: bytes | None) -> str:
    tail = (stderr or b"").decode(errors="replace").strip()[-_TAIL_CHARACTERS:]
    return f"; it said:\n{tail}" if tail else "; it said nothing"
