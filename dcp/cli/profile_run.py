"""Runs a plan on local processes and comes back with its trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

import dcp
from dcp.cli.local_processes import MAX_PROCESSES, local_processes
from dcp.cli.profile_ranks import WARM_UP, ProfileJob, profile_rank
from dcp.errors import BackendError, ProfileError, SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.profiling.flights import measured_trace
from dcp.profiling.nsight import read_export
from dcp.profiling.trace import Span, Trace


def profile_plan(plan: ExecutionPlan, iterations: int, kernel: str) -> Trace:
    """Run a plan with the recorder.

    Raises:
        SpecError: a plan for more ranks than processes are started for.
        BackendError: a rank failed.
    """
    with _job(plan, iterations, kernel) as (job, rendezvous):
        try:
            with local_processes(profile_rank, len(plan.ranks), rendezvous, job) as context:
                while not context.join():
                    pass
        except (ProcessRaisedException, ProcessExitedException) as error:
            reason = str(error).strip().splitlines()[-1]
            raise BackendError(f"the plan did not run to its end: {reason}") from error
        spans = [
            span for file in sorted(Path(job.folder).glob("rank-*.json")) for span in _read(file)
        ]
    return measured_trace(plan, spans)


def profile_plan_under_nsys(plan: ExecutionPlan, iterations: int, kernel: str) -> Trace:
    """Run a plan under Nsight Systems and read what that has seen.

    Raises:
        ProfileError: there is no `nsys` in PATH, or its export lacks what is needed.
        BackendError: a rank or `nsys` failed.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise ProfileError(
            "--nsys needs the program `nsys` in PATH, which is not there; install NVIDIA Nsight "
            "Systems, or leave --nsys out for the recorder of dcp"
        )
    with _job(plan, iterations, kernel) as (job, rendezvous):
        job_file = Path(job.folder, "job.json")
        job_file.write_bytes(msgspec.json.encode(job))
        output = Path(job.folder, "profile")
        ranks = [sys.executable, "-m", "dcp.cli.profile_ranks"]
        done = subprocess.run(
            [nsys, "profile", "--trace=nvtx,cuda", "--sample=none", "--cpuctxsw=none",
             "--export=sqlite", "--force-overwrite=true", f"--output={output}",
             *ranks, str(job_file), str(len(plan.ranks)), rendezvous],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )  # fmt: skip
        export = output.with_suffix(".sqlite")
        if done.returncode or not export.exists():
            said = " ".join(done.stdout.split())[-400:]
            raise BackendError(f"nsys ended with {done.returncode} and no export: {said}")
        return read_export(export, plan, skip_runs=WARM_UP)


@contextmanager
def _job(plan: ExecutionPlan, iterations: int, kernel: str) -> Iterator[tuple[ProfileJob, str]]:
    """What ranks are told, in a folder that is gone afterwards, and their rendezvous."""
    if len(plan.ranks) > MAX_PROCESSES:
        raise SpecError(
            f"dcp profile starts one process a device: {len(plan.ranks)}; give a plan for at most "
            f"{MAX_PROCESSES} devices"
        )
    with tempfile.TemporaryDirectory(prefix="dcp-profile-") as folder:
        plan_file = Path(folder, "profiled.plan")
        plan.save(plan_file)
        job = ProfileJob(plan=str(plan_file), kernel=kernel, iterations=iterations, folder=folder)
        yield job, str(Path(folder, "rendezvous"))


def _read(file: Path) -> list[Span]:
    return msgspec.json.decode(file.read_bytes(), type=list[Span])


def _environment() -> dict[str, str]:
    """Ours, with this very package to be found in it, installed or not."""
    home = Path(dcp.__file__).parents[1]
    paths = [str(home), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
