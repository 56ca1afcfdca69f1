"""Proves every plan of a comparison and executes it on local processes, all in one group."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from dcp.cli.execution import TENSORS, Execution, Executions
from dcp.cli.local_processes import MAX_PROCESSES, local_processes
from dcp.cli.output import Steps, steps
from dcp.cli.run_ranks import Job, Result, run_rank
from dcp.comparison import Comparison, Setting
from dcp.errors import PlanCheckError, SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.verification.local_run import random_inputs
from dcp.verification.plan_checker import check_plan
from dcp.verification.tolerances import error_budgets

_DENSE_BYTES_PER_PAIR = 48  # matrices of float64 that the oracle holds at once


@dataclass(frozen=True, kw_only=True)
class _Oracle:
    """Float64 results of one batch, in files, and the errors allowed."""

    files: list[str]
    budgets: dict[str, float]
    seed: int


def check_size(setting: Setting) -> None:
    """Refuse what local processes cannot execute, before anything is planned.

    Raises:
        SpecError: too many devices, or sequences too long for dense attention in this memory.
    """
    devices = setting.cluster.num_devices
    if devices > MAX_PROCESSES:
        raise SpecError(
            f"--run starts one process a device: {devices}; give a --cluster of at most "
            f"{MAX_PROCESSES} devices"
        )
    longest = max(max(batch.q_lengths) for batch in setting.batches)
    needed = _DENSE_BYTES_PER_PAIR * longest**2
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise SpecError(
            f"--run compares with dense attention, which takes {needed / 2**30:.0f} GiB for a "
            f"sequence of {longest} tokens; this machine has {memory / 2**30:.0f} GiB: give "
            "--tokens, or shorter --lengths"
        )


def execute_all(setting: Setting, comparison: Comparison) -> Executions:
    """Prove and execute every plan; what goes wrong with one of them hides no other."""
    planned = [row for row in comparison.rows if row.is_planned]
    count = len(setting.batches)
    with (
        tempfile.TemporaryDirectory(prefix="dcp-run-") as folder,
        steps(count + 2 * count * len(planned)) as progress,
    ):
        oracles = [_oracle(setting, index, folder, progress) for index in range(count)]
        runs = [
            _Run(
                title=row.strategy.title,
                plan=plan,
                oracle=oracle,
                file=Path(folder, f"{number}-{batch}"),
            )
            for number, row in enumerate(planned)
            for batch, (plan, oracle) in enumerate(zip(row.plans, oracles, strict=True))
        ]
        done = _executed(runs, setting.cluster.num_devices, progress)
    return {
        row.strategy.title: tuple(done[number * count : (number + 1) * count])
        for number, row in enumerate(planned)
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """One plan to prove and to execute."""

    title: str
    plan: ExecutionPlan
    oracle: _Oracle
    file: Path

    def job(self) -> Job:
        """What the ranks are told."""
        return Job(
            plan=str(self.file.with_suffix(".plan")),
            expected=self.oracle.files,
            seed=self.oracle.seed,
            result=str(self.file.with_suffix(".json")),
        )

    @property
    def is_finished(self) -> bool:
        """Whether rank 0 has written the result."""
        return self.file.with_suffix(".json").exists()


def _oracle(setting: Setting, index: int, folder: str, progress: Steps) -> _Oracle:
    progress.begin("dense attention in float64")
    batch, seed = setting.batches[index], setting.seed + index
    inputs = random_inputs(batch, setting.spec, seed=seed)
    q, k, v, dout = inputs
    expected, budgets = error_budgets(batch, setting.spec, q, k, v, dout)
    files = [str(Path(folder, f"batch-{index}-{name}.npy")) for name in TENSORS]
    for name, path in zip(TENSORS, files, strict=True):
        np.save(path, expected[name].numpy())
    return _Oracle(files=files, budgets=budgets, seed=seed)


def _executed(runs: list[_Run], world_size: int, progress: Steps) -> list[Execution]:
    """Executions in the order of the runs; a plan with a fault is not executed."""
    done: dict[int, Execution] = {}
    for number, run in enumerate(runs):
        progress.begin(f"proving: {run.title}")
        done[number] = _proof(run)
    waiting = [number for number in range(len(runs)) if done[number].proven]
    while waiting:
        problem = _spawn([runs[number] for number in waiting], world_size, progress)
        for number in waiting:
            if runs[number].is_finished:
                done[number] = _with_result(done[number], runs[number])
        unfinished = [number for number in waiting if not runs[number].is_finished]
        if unfinished:
            # Ranks work in order, so the first unfinished one broke the group.
            done[unfinished[0]] = replace(done[unfinished[0]], problem=problem)
        waiting = unfinished[1:]
    return [done[number] for number in range(len(runs))]


def _proof(run: _Run) -> Execution:
    try:
        check_plan(run.plan)
    except PlanCheckError as fault:
        return Execution(proven=False, problem=f"not proven, so not executed: {fault}")
    run.plan.save(run.file.with_suffix(".plan"))
    return Execution(proven=True, budgets=run.oracle.budgets)


def _with_result(execution: Execution, run: _Run) -> Execution:
    content = run.file.with_suffix(".json").read_bytes()
    result = msgspec.json.decode(content, type=Result)
    return replace(execution, measured_s=result.measured_s, errors=result.errors)


def _spawn(runs: list[_Run], world_size: int, progress: Steps) -> str:
    """Execute runs on a fresh group until one breaks it; what broke it, or an empty text."""
    rendezvous = runs[0].file.with_suffix(".rendezvous")
    jobs = [run.job() for run in runs]
    with local_processes(run_rank, world_size, str(rendezvous), jobs) as context:
        waiting = iter(runs)
        current = next(waiting)
        progress.begin(f"executing: {current.title}")
        try:
            while not context.join(timeout=0.1):
                while current.is_finished and (following := next(waiting, None)):
                    current = following
                    progress.begin(f"executing: {current.title}")
        except (ProcessRaisedException, ProcessExitedException) as error:
            return str(error).strip().splitlines()[-1]
    return ""
