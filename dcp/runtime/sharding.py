"""Which tokens a rank holds, and tensors cut accordingly.

A rank's local tensors hold the tokens of its home blocks, block after block. In self-attention
queries and keys are the same tokens; in cross-attention each side has its own blocks.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dcp.arrays import IntArray
from dcp.errors import DtypeError, ShapeError, SpecError
from dcp.execution_plan import ExecutionPlan

TokenSide = Literal["q", "kv"]


def num_tokens(plan: ExecutionPlan, side: TokenSide = "q") -> int:
    """Tokens of the whole batch on one side.

    Raises:
        SpecError: side is neither "q" nor "kv".
    """
    _check_side(side)
    blocks = plan.blocks
    return int((blocks.q_lengths if side == "q" else blocks.kv_lengths).sum())


def local_indices(plan: ExecutionPlan, rank: int, side: TokenSide = "q") -> IntArray:
    """Positions in the packed batch of the tokens that a rank holds, in local order.

    Loaders that read only what their rank needs use these instead of cutting a whole tensor.

    Args:
        plan: The plan.
        rank: Rank in the context-parallel group.
        side: "q" for query tokens, "kv" for key tokens; the same in self-attention.

    Returns:
        [local tokens].
    """
    offset, length = _runs(plan, rank, side)
    first_local = np.cumsum(length) - length
    shift: IntArray = np.repeat(offset - first_local, length)
    return np.arange(len(shift)) + shift


def shard_for(plan: ExecutionPlan, x: Tensor, rank: int, side: TokenSide = "q") -> Tensor:
    """Cut out a rank's tokens: [tokens, ...] to [local tokens, ...]; differentiable.

    Raises:
        DtypeError: x is not a tensor.
        ShapeError: x has not one row a token of the batch.
    """
    total = num_tokens(plan, side)
    _check_rows(x, total, f"x must hold the {total} {side} tokens of the plan's batch")
    return x.index_select(0, _index(local_indices(plan, rank, side), x.device))


def unshard_from(plan: ExecutionPlan, parts: list[Tensor], side: TokenSide = "q") -> Tensor:
    """Put every rank's local tensor, [local tokens, ...], back into batch order."""
    placed: list[tuple[int, Tensor]] = []
    for rank, part in enumerate(parts):
        offset, length = _runs(plan, rank, side)
        placed += zip(offset.tolist(), torch.split(part, length.tolist()), strict=True)
    placed.sort(key=lambda each: each[0])  # every token has one home
    return torch.cat([parts[0][:0], *(run for _, run in placed)])


def check_local(plan: ExecutionPlan, x: Tensor, rank: int, side: TokenSide = "q") -> None:
    """Check that x has one row for each of a rank's tokens.

    Raises:
        DtypeError: x is not a tensor.
        ShapeError: it has not.
    """
    count = len(local_indices(plan, rank, side))
    _check_rows(x, count, f"rank {rank} holds {count} {side} tokens in this plan")


def _runs(plan: ExecutionPlan, rank: int, side: TokenSide) -> tuple[IntArray, IntArray]:
    """Where the runs that a rank holds begin in the packed batch, and their lengths."""
    _check_side(side)
    blocks = plan.blocks
    carries, offset = (
        (blocks.has_q, blocks.q_offset) if side == "q" else (blocks.has_kv, blocks.kv_offset)
    )
    home = plan.ranks[rank].home_blocks
    home = home[carries[home]]
    return offset[home], blocks.token_length[home]


def _check_side(side: str) -> None:
    if side not in ("q", "kv"):
        raise SpecError(f'side is {side!r}; legal: "q" and "kv"')


def _check_rows(x: Tensor, count: int, rule: str) -> None:
    if not isinstance(x, Tensor):
        raise DtypeError(f"got {type(x).__name__}; {rule} in a torch.Tensor")
    if x.dim() == 0 or len(x) != count:
        raise ShapeError(f"got shape {tuple(x.shape)}; {rule}, so [{count}, ...]")


def _index(values: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)
