"""Single blocks of attention for the conformance suite of kernels, and how exact they must be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dcp import masks
from dcp.batch import AttentionSpec, Batch
from dcp.kernel_interface import BlockMask, Kernel, accumulator_dtype
from dcp.masks import Mask
from dcp.runtime.dtypes import DTYPES
from dcp.verification.tolerances import error_budgets, max_error, require

Tensors = tuple[Tensor, ...]

_ACCUMULATOR_ULPS = 8  # units of the last place that any order of summation may cost
_LSE_SHARE = 1 / 64  # of the dtype's rounding
_CANCELLED_SHARE = 1 / 8  # of the rounding of terms that cancel


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block to compute; its content follows from the numbers.

    Attributes:
        mask: Allowed pairs; None passes no mask to the kernel.
        spread: Standard deviation of queries, keys and values.
    """

    q_len: int
    kv_len: int
    dtype: str
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 24
    mask: Mask | None = None
    scale: float = 0.3
    spread: float = 1.0

    @property
    def batch(self) -> Batch:
        """The block as a batch of one sequence."""
        return Batch([self.q_len], [self.kv_len], mask=self.mask or masks.full())

    @property
    def spec(self) -> AttentionSpec:
        """The block's heads."""
        return AttentionSpec(
            num_q_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            softmax_scale=self.scale,
        )

    @property
    def block_mask(self) -> BlockMask | None:
        """The mask as kernels take it."""
        return (
            None if self.mask is None else BlockMask.of(self.mask.slices(self.q_len, self.kv_len))
        )

    def tensors(self) -> Tensors:
        """q, k, v and dout on the CPU."""
        generator = torch.Generator().manual_seed(self.q_len * 1009 + self.kv_len)
        sides = ((self.q_len, self.heads), *[(self.kv_len, self.kv_heads)] * 2)
        return tuple(
            (self.spread * torch.randn(*side, self.head_dim, generator=generator)).to(
                DTYPES[self.dtype]
            )
            for side in (*sides, sides[0])
        )


def forward_backward(kernel: Kernel, block: Block, tensors: Tensors) -> Tensors:
    """out, lse, dq, dk and dv of a block, from q, k, v and dout."""
    q, k, v, dout = tensors
    out, lse = kernel.forward(q, k, v, block.block_mask, block.scale)
    delta = row_sums(dout, out)
    return out, lse, *kernel.backward(q, k, v, dout, lse, delta, block.block_mask, block.scale)


def row_sums(dout: Tensor, out: Tensor) -> Tensor:
    """Delta: the row sums of dO ∘ O, in the accumulator dtype."""
    accumulator = accumulator_dtype(dout.dtype)
    return (dout.to(accumulator) * out.to(accumulator)).sum(-1)


def assert_result(block: Block, like: Tensor, result: Tensor) -> None:
    """Assert that a result has the shape of a tensor, and its dtype or that of its accumulator."""
    legal = (like.dtype, accumulator_dtype(like.dtype))
    require(result.shape == like.shape, f"{tuple(result.shape)}, not {tuple(like.shape)}: {block}")
    require(result.dtype in legal, f"{result.dtype} is none of {legal}: {block}")


def assert_within_budget(block: Block, inputs: Tensors, results: dict[str, Tensor]) -> None:
    """Assert that results err from float64 attention by no more than their budgets and floors."""
    expected, budgets = error_budgets(block.batch, block.spec, *inputs)
    floors = _floors(block, *inputs)
    for name, result in results.items():
        budget = budgets[name] + floors[name]
        error = max_error(result.cpu(), expected[name])
        require(error <= budget, f"{name} is off by {error:.3g}, budget {budget:.3g}: {block}")


def _floors(block: Block, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> dict[str, float]:
    """Errors that do no harm although the one device may not make them.

    Rounding is relative to the terms of a sum, which may cancel. dQ and dK are made of
    differences of dP and delta, of which the dtype's rounding leaves something. An error of lse
    scales the output by as much.
    """
    eps, exact = torch.finfo(q.dtype).eps, torch.finfo(accumulator_dtype(q.dtype)).eps
    ulps = _ACCUMULATOR_ULPS * exact
    score = block.scale * _largest_row(q) * _largest_row(k)
    dscore = block.scale * _largest_row(dout) * _largest_row(v)
    cancelled = (ulps + _CANCELLED_SHARE * eps) * dscore
    return {
        "out": ulps * _largest(v),
        "lse": ulps * score + _LSE_SHARE * eps,
        "dq": cancelled * _largest(k),
        "dk": cancelled * _largest(q),
        "dv": ulps * _largest(dout),
    }


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _largest_row(x: Tensor) -> float:
    return float(x.double().norm(dim=-1).max()) if x.numel() else 0.0
