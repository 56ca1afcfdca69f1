"""One of the local processes that execute plans: one rank of a gloo group, all plans in turn."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dcp.batch import Batch
from dcp.cli.execution import ITERATIONS, TENSORS
from dcp.cli.local_processes import TIMEOUT_S, join_group
from dcp.execution_plan import ExecutionPlan
from dcp.runtime.context_parallel import ContextParallel
from dcp.verification.local_run import random_inputs
from dcp.verification.tolerances import max_error


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One plan to execute.

    Attributes:
        plan: Plan file.
        expected: Files of the float64 results, [TENSORS].
        seed: Of the random inputs.
        result: File to write the `Result` to.
    """

    plan: str
    expected: list[str]
    seed: int
    result: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Forward and backward time in seconds, and errors of out, dq, dk and dv."""

    measured_s: float
    errors: dict[str, float]


def run_rank(rank: int, world_size: int, rendezvous: str, jobs: list[Job]) -> None:
    """Execute all jobs as one rank; rank 0 writes the results."""
    join_group(rank, world_size, rendezvous)
    group = ContextParallel(timeout_s=TIMEOUT_S)
    for job in jobs:
        result = _execute(group, job)
        if rank == 0:
            unfinished = Path(f"{job.result}.part")
            unfinished.write_bytes(msgspec.json.encode(result))
            unfinished.rename(job.result)  # whoever sees the file sees all of it
    dist.destroy_process_group()


def _execute(group: ContextParallel, job: Job) -> Result:
    plan = ExecutionPlan.load(job.plan)
    lengths = Batch(plan.blocks.q_lengths.tolist())
    inputs = random_inputs(lengths, plan.spec, seed=job.seed)
    q, k, v, dout = (group.shard(plan, tensor) for tensor in inputs)
    times = []
    for iteration in range(ITERATIONS + 1):
        results, seconds = _iteration(group, plan, (q, k, v), dout)
        if iteration:  # the first one warms up
            times.append(seconds)
    errors = {}
    for name, tensor, path in zip(TENSORS, results, job.expected, strict=True):
        whole = group.unshard(plan, tensor)
        errors[name] = max_error(whole, torch.from_numpy(np.load(path)))
    return Result(measured_s=statistics.median(times), errors=errors)


def _iteration(
    group: ContextParallel, plan: ExecutionPlan, inputs: tuple[Tensor, ...], dout: Tensor
) -> tuple[tuple[Tensor, ...], float]:
    """out, dq, dk and dv of this rank's tokens, and the slowest rank's seconds."""
    q, k, v = (tensor.clone().requires_grad_() for tensor in inputs)
    dist.barrier()
    started = time.perf_counter()
    out = group.attention(plan, q, k, v)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    seconds = torch.tensor(time.perf_counter() - started)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return (out.detach(), *grads), float(seconds)
