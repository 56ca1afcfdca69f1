"""A rank's program of one phase, ready to run."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from dcp.blocks import Kind
from dcp.execution_plan import ExecutionPlan
from dcp.kernel_interface import Kernel
from dcp.runtime import tracing
from dcp.runtime.autograd import kept_arenas
from dcp.runtime.buffers import Planes
from dcp.runtime.executor import Executor
from dcp.runtime.transports import Transport
from dcp.scheduling import Phase


def start_rank(
    plan: ExecutionPlan,
    rank: int,
    phase: Phase,
    inputs: dict[Kind, Planes],
    kept: Iterator[Tensor],
    *,
    kernel: Kernel,
    transport: Transport,
) -> tuple[Executor, Iterator[int]]:
    """Set up a rank's executor, under what watches it.

    Args:
        plan: The plan.
        rank: Whose program.
        phase: Which of its programs.
        inputs: Its home tensors.
        kept: What ranks have kept from forward; this one's part is taken from it.
        kernel: What computes.
        transport: What sends.

    Returns:
        The executor, and its run: a step whenever the rank has to wait for one.
    """
    program = plan.ranks[rank].program(phase)
    watch = tracing.watch(plan, rank, phase, inputs[Kind.Q][0].device)
    with watch.setup():
        executor = Executor(
            plan.blocks,
            program,
            inputs,
            kept=kept_arenas(program, kept),
            kernel=kernel,
            transport=transport,
            watch=watch,
        )
    return executor, watch.turns(executor.run())
