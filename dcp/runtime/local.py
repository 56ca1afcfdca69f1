"""Every rank of a plan in this process: no network, the same executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, overload

from torch import Tensor

from dcp.blocks import Kind
from dcp.checks import check_kind
from dcp.errors import TransportError
from dcp.execution_plan import ExecutionPlan
from dcp.kernel_interface import Kernel
from dcp.runtime.arguments import check_attention_inputs, resolve_kernel
from dcp.runtime.autograd import (
    Runner,
    attend,
    backward_inputs,
    forward_inputs,
    kept_planes,
)
from dcp.runtime.buffers import Planes
from dcp.runtime.compilation import uncompiled
from dcp.runtime.executor import Executor
from dcp.runtime.rank_start import start_rank
from dcp.runtime.sharding import TokenSide, num_tokens, shard_for, unshard_from
from dcp.runtime.transports import LocalTransport, Mailboxes, describe
from dcp.scheduling import Phase


@overload
def run_local(
    plan: ExecutionPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: str | Kernel = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...


@overload
def run_local(
    plan: ExecutionPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: str | Kernel = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@uncompiled
def run_local(
    plan: ExecutionPlan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: str | Kernel = "torch",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Execute a plan with all its ranks in this process; differentiable once.

    Args:
        plan: The plan.
        q: Queries of the batch, sequence after sequence, [q tokens, num_q_heads, head_dim], of
            the plan's dtype.
        k: Keys, [key tokens, num_kv_heads, head_dim].
        v: Values, like k.
        kernel: Name, "name:option=value,…", or an instance.
        return_lse: Also return the log-sum-exp of the scores.

    Returns:
        out like q; with return_lse also lse [q tokens, num_q_heads] in float32, or float64 for
        float64. A row that may see no key gives 0 and -inf.

    Raises:
        ShapeError, DtypeError: a tensor does not fit the plan.
        SpecError: no plan, or no kernel.
        TransportError: the ranks of a damaged plan wait for each other.
    """
    check_kind("plan", plan, ExecutionPlan)
    tokens = num_tokens(plan, "q"), num_tokens(plan, "kv")
    check_attention_inputs(plan.spec, q, k, v, *tokens)
    runner = _LocalRunner(plan=plan, kernel=resolve_kernel(kernel))
    out, lse = attend(runner, q, k, v)
    return (out, lse) if return_lse else out


@dataclass(frozen=True, kw_only=True, eq=False)
class _LocalRunner(Runner):
    plan: ExecutionPlan
    kernel: Kernel

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Planes]:
        def inputs(rank: int) -> dict[Kind, Planes]:
            return forward_inputs(*self._shards(rank, q, k, v))

        executors = self._run("forward", inputs, iter(()))
        out, lse = self._gathered(executors, Kind.O, "q")
        kept = [
            plane
            for executor, each in zip(executors, self.plan.ranks, strict=True)
            for plane in kept_planes(executor, each.backward)
        ]
        return out, lse, tuple(kept)

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dout: Tensor,
        lse: Tensor,
        delta: Tensor,
        kept: Planes,
    ) -> tuple[Tensor, Tensor, Tensor]:
        def inputs(rank: int) -> dict[Kind, Planes]:
            rows = (shard_for(self.plan, x, rank, "q") for x in (dout, lse, delta))
            return backward_inputs(*self._shards(rank, q, k, v), *rows)

        executors = self._run("backward", inputs, iter(kept))
        (dq,) = self._gathered(executors, Kind.DQ, "q")
        dk, dv = self._gathered(executors, Kind.DKV, "kv")
        return dq, dk, dv

    def _shards(self, rank: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        plan = self.plan
        return (
            shard_for(plan, q, rank, "q"),
            shard_for(plan, k, rank, "kv"),
            shard_for(plan, v, rank, "kv"),
        )

    def _run(
        self, phase: Phase, inputs: Callable[[int], dict[Kind, Planes]], kept: Iterator[Tensor]
    ) -> list[Executor]:
        mailboxes = Mailboxes()
        executors, transports, runs = [], [], []
        for each in self.plan.ranks:
            transport = LocalTransport(mailboxes, each.rank)
            executor, turns = start_rank(
                self.plan,
                each.rank,
                phase,
                inputs(each.rank),
                kept,
                kernel=self.kernel,
                transport=transport,
            )
            executors.append(executor)
            transports.append(transport)
            runs.append(turns)
        take_turns(runs, transports)
        if mailboxes.held:
            source, target, step = min(mailboxes.held)
            raise TransportError(
                f"rank {source} sent rank {target} a message of step {step} that nobody received"
            )
        return executors

    def _gathered(self, executors: list[Executor], kind: Kind, side: TokenSide) -> Planes:
        outputs = [executor.output(kind) for executor in executors]
        return tuple(
            unshard_from(self.plan, list(parts), side) for parts in zip(*outputs, strict=True)
        )


def take_turns(runs: list[Iterator[int]], transports: list[LocalTransport]) -> None:
    """Drive ranks in turn, each until it has to wait.

    Raises:
        TransportError: all ranks that still run wait for each other.
    """
    waits: dict[int, int] = {}  # rank: step that it waits for
    able = list(range(len(runs)))
    while able:
        for rank in able:
            step = next(runs[rank], None)
            if step is None:
                waits.pop(rank, None)
            else:
                waits[rank] = step
        able = [rank for rank, step in waits.items() if transports[rank].ready(step)]
    for rank, step in waits.items():
        missing = transports[rank].missing(step)[0]
        raise TransportError(f"deadlock: {describe(rank, missing, step)}, which never comes")
