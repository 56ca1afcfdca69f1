"""torch's fused attention operators behind one signature, on CPU and on CUDA.

Tensors are [count, heads, tokens, head_dim] with as many key heads as query heads, lse is
[count, heads, tokens]. `bias` is None or an additive mask [q_len, kv_len] in the tensors' dtype.

The CUDA half has never run on a GPU; its tests see shapes only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dcp.errors import DtypeError, ShapeError

aten = torch.ops.aten

_LSE_ALIGNMENT = 32  # efficient attention wants rows of lse padded to a multiple of this
_HALF = (torch.float16, torch.bfloat16)


class Shape(NamedTuple):
    """How a block's mask is handed to the operators."""

    causal: bool
    bias: Tensor | None
    scale: float


def forward(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return out [count, heads, q_len, head_dim] and lse [count, heads, q_len]."""
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, shape.causal, attn_mask=shape.bias, scale=shape.scale
        )
        return out, lse
    if _cuda_flash_fits(q, shape):
        out, lse, *_ = aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, shape.causal, False, scale=shape.scale
        )
        return out, lse
    out, lse, *_ = aten._scaled_dot_product_efficient_attention(
        q, k, v, _expanded(shape.bias, q), True, 0.0, shape.causal, scale=shape.scale
    )
    return out, lse.narrow(-1, 0, q.shape[2])


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, dout: Tensor, lse: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dv, like q, k and v; lse is finite everywhere."""
    if q.device.type == "cpu":
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, shape.causal, attn_mask=shape.bias, scale=shape.scale
        )
        return dq, dk, dv
    # Without dropout neither operator reads its random state.
    state = torch.zeros((), dtype=torch.int64, device=q.device)
    if _cuda_flash_fits(q, shape):
        lengths = q.shape[2], k.shape[2]
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse.contiguous(), None, None, *lengths, 0.0, shape.causal,
            state, state, scale=shape.scale,
        )  # fmt: skip
        return dq, dk, dv
    padding = -lse.shape[2] % _LSE_ALIGNMENT
    lse = F.pad(lse, (0, padding), value=torch.inf)
    bias = _expanded(shape.bias, q)
    dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
        dout, q, k, v, bias, out, lse, state, state, 0.0, [True, True, True, False],
        shape.causal, scale=shape.scale,
    )  # fmt: skip
    return dq, dk, dv


def _cuda_flash_fits(q: Tensor, shape: Shape) -> bool:
    """Whether flash attention serves this block; if not, efficient attention has to.

    Raises:
        DtypeError: neither has code for the dtype.
        ShapeError: neither has code for the head_dim.
    """
    head_dim, element = q.shape[-1], q.element_size()
    if q.dtype == torch.float64:
        raise DtypeError(
            "torch has no fused float64 attention on CUDA; use float32 or less there, "
            "or move the tensors to the CPU"
        )
    if head_dim * element % 16:
        raise ShapeError(
            f"head_dim {head_dim} in {q.dtype} is {head_dim * element} bytes; torch's CUDA "
            "attention needs a multiple of 16 bytes: pad head_dim"
        )
    return q.dtype in _HALF and shape.bias is None and head_dim <= 256


def _expanded(bias: Tensor | None, q: Tensor) -> Tensor | None:
    return None if bias is None else bias.expand(*q.shape[:2], *bias.shape)
