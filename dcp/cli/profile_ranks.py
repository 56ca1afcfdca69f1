"""One of the local processes that run a plan to be profiled.

As a program it starts them all: `python -m dcp.cli.profile_ranks JOB WORLD_SIZE RENDEZVOUS`, which
a profiler can be put in front of.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from dcp.cli.local_processes import TIMEOUT_S, join_group, local_processes
from dcp.execution_plan import ExecutionPlan
from dcp.runtime import tracing
from dcp.runtime.clocks import clock_offset_ns
from dcp.runtime.context_parallel import ContextParallel
from dcp.runtime.dtypes import DTYPES

WARM_UP = 1
"""Iterations before those that count."""


class ProfileJob(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank is told.

    Attributes:
        plan: Plan file.
        kernel: Request of the kernel.
        iterations: Forward and backward passes to profile.
        folder: Where every rank leaves its spans, as `rank-R.json`.
    """

    plan: str
    kernel: str
    iterations: int
    folder: str


def profile_rank(rank: int, world_size: int, rendezvous: str, job: ProfileJob) -> None:
    """Run the plan as one rank, and leave its spans on the clock of rank 0."""
    join_group(rank, world_size, rendezvous)
    plan = ExecutionPlan.load(job.plan)
    group = ContextParallel(kernel=job.kernel, timeout_s=TIMEOUT_S)
    inputs = _inputs(group, plan)
    for _ in range(WARM_UP):
        _iteration(group, plan, inputs)
    offset = clock_offset_ns()
    with tracing.record() as recorder:
        for _ in range(job.iterations):
            _iteration(group, plan, inputs)
    spans = [
        msgspec.structs.replace(span, begin_ns=span.begin_ns - offset, end_ns=span.end_ns - offset)
        for span in recorder.spans(plan.digest)
    ]
    Path(job.folder, f"rank-{rank}.json").write_bytes(msgspec.json.encode(spans))
    dist.destroy_process_group()


def _inputs(group: ContextParallel, plan: ExecutionPlan) -> tuple[Tensor, ...]:
    """This rank's q, k, v and dout, standard normal."""
    spec, generator = plan.spec, torch.Generator().manual_seed(group.rank)
    queries = (len(group.local_indices(plan, "q")), spec.num_q_heads, spec.head_dim)
    keys = (len(group.local_indices(plan, "kv")), spec.num_kv_heads, spec.head_dim)
    return tuple(
        torch.randn(shape, generator=generator).to(DTYPES[spec.dtype])
        for shape in (queries, keys, keys, queries)
    )


def _iteration(group: ContextParallel, plan: ExecutionPlan, inputs: tuple[Tensor, ...]) -> None:
    """Forward and backward; all ranks begin each together."""
    q, k, v = (tensor.clone().requires_grad_() for tensor in inputs[:3])
    dist.barrier()
    out = group.attention(plan, q, k, v)
    dist.barrier()
    torch.autograd.grad(out, (q, k, v), inputs[3])


def _main(job_file: str, world_size: str, rendezvous: str) -> None:
    job = msgspec.json.decode(Path(job_file).read_bytes(), type=ProfileJob)
    # Profilers follow processes that are started, not those that are forked and stay.
    with local_processes(
        profile_rank, int(world_size), rendezvous, job, start_method="spawn"
    ) as context:
        while not context.join():
            pass


if __name__ == "__main__":
    _main(*sys.argv[1:])
