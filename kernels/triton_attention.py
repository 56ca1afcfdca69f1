"""The `triton` kernel: blockwise attention, reduction and copy on GPUs, written in Triton.

Package: triton (extra `triton`; CUDA builds of torch bring it). Source: Tillet, Kung and Cox,
"Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations", MAPL 2019;
algorithms of Dao et al. 2022 (FlashAttention) and Dao 2023 (FlashAttention-2).

With TRITON_INTERPRET=1 in the environment before Python starts, Triton's interpreter runs the
kernels on the CPU: slow, for tests. It cannot compute with bfloat16, so there such numbers are
cast to float32 as they are loaded. The kernels have been compiled for sm_80 and sm_90, but have
never run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dcp.backend import Availability
from dcp.blocks import BlockGraph
from dcp.checks import shown
from dcp.errors import SpecError
from dcp.instructions import Buffer, Program
from dcp.kernel_interface import BlockMask, Kernel
from dcp.kernels import triton_blocks, triton_launch
from dcp.kernels.triton_blocks import strides
from dcp.kernels.triton_launch import check, launch
from dcp.kernels.triton_program import TritonProgram
from dcp.kernels.triton_tiling import (
    MERGE,
    Tiling,
    attention_constants,
    merge_constants,
    tiling,
)
from dcp.runtime.buffers import Buffers


@dataclass(frozen=True, kw_only=True)
class TritonAttention(Kernel):
    """Blockwise attention in Triton; deterministic, without atomics.

    Args:
        tile_q, tile_k: Queries and keys of a tile, powers of two of 16 or more; None chooses by
            dtype and head dimension.

    Raises:
        SpecError: an illegal tile.
    """

    name: ClassVar[str] = "triton"

    tile_q: int | None = None
    tile_k: int | None = None

    def __post_init__(self) -> None:
        for name, tile in (("tile_q", self.tile_q), ("tile_k", self.tile_k)):
            if tile is None or (type(tile) is int and tile >= 16 and tile & (tile - 1) == 0):
                continue
            raise SpecError(f"{name} is {shown(tile)}; legal: powers of two of 16 or more, or None")

    @classmethod
    def availability(cls) -> Availability:
        """Whether triton is installed, and a GPU or the interpreter is there."""
        return triton_launch.availability()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`; out is float32."""
        check(q, k, v)
        out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        lse = out.new_full(q.shape[:2], -torch.inf)
        if not (len(q) and len(k)):
            return out, lse
        tile, heads = self._tiling(q, backward=False), q.shape[1]
        table = triton_blocks.attention(
            len(q),
            heads,
            heads // k.shape[1],
            strides(q, out),
            strides(lse),
            strides(k, v),
            (),
            mask,
            (len(q), len(k)),
            tile.queries,
            q.device,
        )
        launch(
            "forward",
            table,
            tile,
            (q, q, k, k, v, v, out, lse),
            **attention_constants(tile, q.shape[2], scale),
        )
        return out, lse

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
        """See `Kernel.backward`; the gradients are float32."""
        check(q, k, v, dout)
        dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v))
        if not (len(q) and len(k)):
            return dq, dk, dv
        tile, (_, heads, head_dim) = self._tiling(q, backward=True), q.shape
        kv_heads, block = k.shape[1], (len(q), len(k))
        ratio = heads // kv_heads
        inputs = (q, q, k, k, v, v, dout, dout, lse, lse, delta, delta)
        keys, queries, sums = strides(k, v), strides(q, dout), strides(lse, delta)
        of_queries = triton_blocks.attention(
            len(q),
            heads,
            ratio,
            (*queries, *strides(dq)),
            sums,
            keys,
            (),
            mask,
            block,
            tile.queries,
            q.device,
        )
        of_keys = triton_blocks.attention(
            len(k),
            kv_heads,
            ratio,
            (*keys, *strides(dk, dv)),
            (),
            queries,
            sums,
            mask,
            block,
            tile.keys,
            q.device,
        )
        for name, table, results in (
            ("backward_dq", of_queries, (dq,)),
            ("backward_dkv", of_keys, (dk, dv)),
        ):
            constants = attention_constants(tile, head_dim, scale)
            launch(name, table, tile, (*inputs, *results), scale=scale, **constants)
        return dq, dk, dv

    def merge(self, out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> None:
        """See `Kernel.merge`."""
        check(out, new_out)
        if not len(out):
            return
        table = triton_blocks.reduction(
            len(out),
            out.shape[1],
            strides(out, lse),
            strides(new_out, new_lse),
            MERGE.queries,
            out.device,
        )
        tensors = out, lse, new_out, new_lse
        launch("merge", table, MERGE, tensors, **merge_constants(out.shape[2]))

    def bind(self, blocks: BlockGraph, program: Program, buffers: Buffers) -> TritonProgram:
        """See `Kernel.bind`; an attention instruction is one launch, or two in backward."""
        (q,) = buffers.planes(Buffer.Q)
        check(q)
        tiles = (self._tiling(q, backward=backward) for backward in (False, True))
        return TritonProgram(blocks, program, buffers, *tiles)

    def _tiling(self, q: Tensor, *, backward: bool) -> Tiling:
        chosen = tiling(q.dtype, q.shape[-1], backward=backward)
        return chosen._replace(
            queries=self.tile_q or chosen.queries, keys=self.tile_k or chosen.keys
        )
