"""The two collectives: gathering bytes to compare, and tokens of uneven shards."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dcp.errors import TransportError
from dcp.execution_plan import ExecutionPlan
from dcp.runtime.sharding import TokenSide, local_indices, shard_for, unshard_from
from dcp.runtime.torch_transport import wait_for


def gather_bytes(
    mine: bytes, group: dist.ProcessGroup, device: torch.device, timeout_s: float, what: str
) -> list[bytes]:
    """Gather as many bytes of every rank.

    Args:
        mine: This rank's.
        group: The context-parallel group.
        device: Where the group's backend wants its tensors.
        timeout_s: Longest wait.
        what: What is being done, for the error.

    Raises:
        TransportError: a rank did not answer in time.
    """
    sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
    return [bytes(theirs.tolist()) for theirs in _all_gather(sent, group, timeout_s, what)]


def gather_tokens(
    plan: ExecutionPlan, x: Tensor, side: TokenSide, group: dist.ProcessGroup, timeout_s: float
) -> Tensor:
    """Gather [local tokens, ...] of all ranks into batch order; each keeps its own gradient."""
    gathered: Tensor = _GatherTokens.apply(  # type: ignore[no-untyped-call]
        x, plan, side, group, timeout_s
    )
    return gathered


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        plan: ExecutionPlan,
        side: TokenSide,
        group: dist.ProcessGroup,
        timeout_s: float,
    ) -> Tensor:
        ctx.plan, ctx.side, ctx.rank = plan, side, dist.get_rank(group)
        counts = [len(local_indices(plan, each.rank, side)) for each in plan.ranks]
        padded = x.new_zeros(max(counts), *x.shape[1:])
        padded[: len(x)] = x
        what = f"rank {ctx.rank} gathers the tokens of all ranks"
        # As bytes, so that every dtype passes through every backend.
        rows = _all_gather(padded.view(-1).view(torch.uint8), group, timeout_s, what)
        parts = [row.view(x.dtype).view(padded.shape) for row in rows]
        return unshard_from(plan, [part[:n] for part, n in zip(parts, counts, strict=True)], side)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return shard_for(ctx.plan, grad, ctx.rank, ctx.side), None, None, None, None


def _all_gather(
    mine: Tensor, group: dist.ProcessGroup, timeout_s: float, what: str
) -> list[Tensor]:
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    try:
        work = dist.all_gather(everyone, mine, group=group, async_op=True)
    except RuntimeError as error:
        raise TransportError(f"{what}: cannot start: {error}") from error
    wait_for(work, mine.device, timeout_s, what)
    return everyone
