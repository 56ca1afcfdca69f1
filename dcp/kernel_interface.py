"""The interface of kernels: what the executor needs of blockwise attention, forward and backward.

A kernel computes single blocks. How it runs the instructions of a program is its own choice: block
by block, as it does if nothing else is said, or a whole instruction at once.

A partial result of attention over some of a row's keys is (out, lse): the softmax-weighted mean
of the values, and the natural logarithm of the sum of exponentials. Two partials of one row merge
exactly, so blocks may be computed anywhere and in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dcp import slices as slice_ops
from dcp.arrays import BoolArray, IntArray
from dcp.backend import Backend

if TYPE_CHECKING:
    from dcp.blocks import BlockGraph
    from dcp.instructions import Attention, CommLaunch, Copy, Program, Reduce
    from dcp.runtime.buffers import Buffers

MaskRow = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class BlockMask:
    """Which pairs of a block are allowed: disjoint canonical slices in its own coordinates.

    Each row is (q0, q1, k0, k1, lo, hi). Hashable, so that kernels can cache what they derive
    from it. A block in which every pair is allowed has no BlockMask; kernels are given None for it.
    """

    rows: tuple[MaskRow, ...]

    @classmethod
    def of(cls, slices: IntArray) -> BlockMask:
        """From an array of slices, [n, 6]."""
        return cls(tuple(tuple(row) for row in slices.tolist()))

    @cached_property
    def slices(self) -> IntArray:
        """The slices as an array, [n, 6]."""
        return slice_ops.as_slices(self.rows)

    def is_causal_square(self, q_len: int, kv_len: int) -> bool:
        """Whether query i of a square block sees exactly keys 0 … i."""
        return q_len == kv_len and self.rows == ((0, q_len, 0, q_len, 1 - q_len, 0),)

    def dense(self, q_len: int, kv_len: int) -> BoolArray:
        """True where the pair is allowed, [q_len, kv_len]."""
        return slice_ops.to_dense(self.slices, q_len, kv_len)

    def rows_without_key(self, q_len: int) -> IntArray:
        """Query rows that see no key of the block, ascending."""
        return np.flatnonzero(~slice_ops.row_has_key(self.slices, q_len))


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype in which partial results of tensors of a dtype accumulate."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class ProgramKernel(ABC):
    """A kernel at work on one run of a program, in the memory of that run.

    Each method does all of one instruction. What the instruction adds up is added up in the order
    of its items, so that two runs give the same bits. Kernels should not wait for a GPU here.
    """

    @abstractmethod
    def attend(self, instruction: Attention) -> None:
        """Compute attention, and bring the results into their accumulators."""

    @abstractmethod
    def reduce(self, instruction: Reduce) -> None:
        """Bring partial results that came from others into their accumulators."""

    @abstractmethod
    def copy(self, instruction: Copy) -> None:
        """Copy final results home; head groups that share a key head add up their gradients."""

    @abstractmethod
    def pack(self, launch: CommLaunch, data: Tensor) -> None:
        """Write what a launch sends into its messages, bytes laid out as in `messages`."""

    @abstractmethod
    def unpack(self, launch: CommLaunch, data: Tensor) -> None:
        """Write the messages that came for a launch into their slots."""


class Kernel(Backend):
    """Attention over blocks.

    Tensors are token-major, [tokens, heads, head_dim]; only their last dimension is contiguous,
    because a head group is a strided view of its caller's tensor. Query head i reads key head
    i // (query heads ÷ key heads). "Accumulator dtype" is float64 for float64 and float32
    otherwise.
    """

    @abstractmethod
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attention of one block of queries over one block of keys.

        Args:
            q: Queries, [q_len, heads, head_dim]; q_len may be 0.
            k: Keys, [kv_len, kv_heads, head_dim]; kv_len may be 0.
            v: Values, like k.
            mask: Allowed pairs; None where all are.
            scale: Factor on the scores.

        Returns:
            out [q_len, heads, head_dim], in q's dtype or the accumulator dtype, and lse
            [q_len, heads] in the accumulator dtype; a row without keys gives 0 and -inf.

        Raises:
            DtypeError: the kernel has no code for this dtype on this device.
        """

    @abstractmethod
    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dout: Tensor,
        lse: Tensor,
        delta: Tensor,
        mask: BlockMask | None,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients that one block contributes.

        With P = exp(scale · q kᵀ − lse), which is 0 where the mask forbids:
        dV = Pᵀ dout, dS = P ∘ (dout vᵀ − delta), dQ = scale · dS k, dK = scale · dSᵀ q.

        Args:
            q: Queries, [q_len, heads, head_dim].
            k: Keys, [kv_len, kv_heads, head_dim].
            v: Values, like k.
            dout: Gradient of the final output, like q.
            lse: Log-sum-exp over all keys of the row, not only this block's, [q_len, heads],
                accumulator dtype; -inf where the row has none.
            delta: rowsum(dout ∘ final out), less the gradient of lse where it has one,
                [q_len, heads], accumulator dtype.
            mask: Allowed pairs; None where all are.
            scale: Factor on the scores.

        Returns:
            dq like q, dk and dv like k, each in q's dtype or the accumulator dtype.

        Raises:
            DtypeError: the kernel has no code for this dtype on this device.

        Source: Dao 2023 (FlashAttention-2), algorithm 2.
        """

    def merge(self, out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> None:
        """Merge a partial result into accumulators, in place.

        The new result's share is the logistic function of the difference of the two lse, so
        nothing overflows however far they are apart; an empty one has none, also of two empty.

        Args:
            out: Accumulated output, [tokens, heads, head_dim], accumulator dtype.
            lse: Accumulated log-sum-exp, [tokens, heads], accumulator dtype.
            new_out: Output to merge in, like out, of any float dtype.
            new_lse: Log-sum-exp to merge in, like lse.

        Source: Dao et al. 2022 (FlashAttention), section 3.1.
        """
        share = torch.sigmoid(new_lse - lse).masked_fill_(new_lse == -torch.inf, 0.0)
        out.lerp_(new_out.to(out.dtype), share[..., None])
        torch.logaddexp(lse, new_lse, out=lse)

    def bind(self, blocks: BlockGraph, program: Program, buffers: Buffers) -> ProgramKernel:
        """Prepare to run a program's instructions in its memory; see `ProgramKernel`.

        Args:
            blocks: The plan's blocks.
            program: One rank's program of one phase.
            buffers: The memory of this run.
        """
        from dcp.runtime.block_by_block import BlockByBlock  # which is made of this interface

        return BlockByBlock(self, blocks, program, buffers)
