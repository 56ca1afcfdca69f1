"""One of the processes that run plans side by side: one rank of a gloo group, one thread.

As a program it is one rank: `python executor_ranks.py JOB RANK`. All strategies of a case take
turns, so that what else happens on a machine hits them alike.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from executor_setting import fused_causal, random_tensors

import dcp

REFERENCE = "reference"
_TIMEOUT_S = 300.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Plans for one batch.

    Attributes:
        lengths: Of the batch; rank 0 alone also computes causal attention over them.
        plans: Plan file of each strategy.
    """

    lengths: list[int]
    plans: dict[str, str]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank is told.

    Attributes:
        cases: To run, by name.
        ranks: Size of the group.
        rounds: Turns that count, after one that does not.
        seed: Of the tensors.
    """

    cases: dict[str, Case]
    ranks: int
    rounds: int
    seed: int


class Times(msgspec.Struct, frozen=True):
    """Forward and backward of one strategy, [rounds]: of the slowest rank, and CPU of them all."""

    wall_s: list[float] = msgspec.field(default_factory=list)
    cpu_s: list[float] = msgspec.field(default_factory=list)


Result = dict[str, dict[str, Times]]
"""Times by case and strategy; the reference is one of the strategies."""


def save_plans(folder: Path, plans: Mapping[str, dcp.ExecutionPlan]) -> dict[str, str]:
    """Write plans to a folder; their files by strategy."""
    folder.mkdir()
    files = {name: str(folder / f"{name}.plan") for name in plans}
    for name, plan in plans.items():
        plan.save(files[name])
    return files


def run_ranks(
    job: Job, *, interface: str = "lo", prefix: Callable[[int], Sequence[str]] = lambda rank: ()
) -> Result:
    """Run a job in one process a rank.

    Args:
        job: What to run.
        interface: Network interface to send through.
        prefix: What stands before the command of a rank.
    Raises:
        RuntimeError: a rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="dcp-bench-") as folder:
        file = Path(folder, "job.json")
        file.write_bytes(msgspec.json.encode(job))
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [*prefix(rank), sys.executable, __file__, str(file), str(rank)], env=environment
            )
            for rank in range(job.ranks)
        ]
        _wait(processes)
        return msgspec.json.decode(file.with_suffix(".result").read_bytes(), type=Result)


def _wait(processes: list[subprocess.Popen[bytes]]) -> None:
    try:
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                break
            time.sleep(0.2)
        codes = [process.poll() for process in processes]
        if any(codes):
            raise RuntimeError(f"a rank failed, see above; exit codes by rank: {codes}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _main(job_file: str, rank: str) -> None:
    file = Path(job_file)
    job = msgspec.json.decode(file.read_bytes(), type=Job)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file.with_suffix('.rendezvous')}",
        rank=int(rank),
        world_size=job.ranks,
        timeout=timedelta(seconds=_TIMEOUT_S),
    )
    group = dcp.ContextParallel(timeout_s=_TIMEOUT_S)
    result = {name: _run(group, case, job) for name, case in job.cases.items()}
    if group.rank == 0:
        file.with_suffix(".result").write_bytes(msgspec.json.encode(result))
    dist.destroy_process_group()


def _run(group: dcp.ContextParallel, case: Case, job: Job) -> dict[str, Times]:
    works = {name: _work(group, file, job.seed) for name, file in case.plans.items()}
    works[REFERENCE] = _reference(group, case, job.seed)
    times = {name: Times() for name in works}
    for turn in range(job.rounds + 1):
        for name, work in works.items():
            wall_s, cpu_s = _timed(work)
            if turn:  # the first one compiles calls and connects ranks
                times[name].wall_s.append(wall_s)
                times[name].cpu_s.append(cpu_s)
    return times


def _work(group: dcp.ContextParallel, file: str, seed: int) -> Callable[[], object]:
    plan = dcp.ExecutionPlan.load(file)
    tokens, spec = len(group.local_indices(plan)), plan.spec
    *inputs, dout = random_tensors(tokens, spec.head_dim, spec.dtype, seed=seed + group.rank)
    leaves = [x.requires_grad_() for x in inputs]
    return lambda: torch.autograd.grad(group.attention(plan, *leaves), leaves, dout)


def _reference(group: dcp.ContextParallel, case: Case, seed: int) -> Callable[[], object]:
    if group.rank:
        return lambda: None
    spec = dcp.ExecutionPlan.load(next(iter(case.plans.values()))).spec
    tensors = random_tensors(sum(case.lengths), spec.head_dim, spec.dtype, seed=seed)
    return lambda: fused_causal(case.lengths, tensors)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the slowest rank, and CPU seconds of all."""
    dist.barrier()
    begin, cpu = time.perf_counter(), _cpu_s()
    work()
    wall_s = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    cpu_s = torch.tensor(_cpu_s() - cpu, dtype=torch.float64)
    dist.all_reduce(wall_s, dist.ReduceOp.MAX)
    dist.all_reduce(cpu_s, dist.ReduceOp.SUM)
    return float(wall_s), float(cpu_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    _main(*sys.argv[1:])
