"""The `torch` kernel: torch's fused attention operators, block by block.

What the operators do not do is done here:

* Blocks of length 0 never reach them (the CPU one kills the process), and rows without keys get
  0 and -inf whatever they answer.
* Key heads are expanded to query heads and their gradients added in the accumulator dtype; the
  operators' own sum over heads rounds to bfloat16 after every head.
* float16 is computed in float32 on CPUs, where torch's own float16 code is several times slower
  and less exact.
* They want the output in backward, where a plan sends delta instead; see `surrogate_out`.

On CUDA float16 and bfloat16 without a mask, or with a causal one, run flash attention; float32
and other masks run memory-efficient attention. That code has never run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dcp.kernel_interface import BlockMask, Kernel, accumulator_dtype
from dcp.kernels import torch_masks, torch_ops


@dataclass(frozen=True, kw_only=True)
class TorchFlash(Kernel):
    """Blockwise attention by torch's fused operators; no options."""

    name: ClassVar[str] = "torch"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        if not (len(q) and len(k)):
            no_lse = q.new_full(q.shape[:2], -torch.inf, dtype=accumulator_dtype(q.dtype))
            return torch.zeros_like(q), no_lse
        q, k, v = _working(q, k, v)
        heads = q.shape[1]
        shape = _shape(q, k, mask, scale)
        out, lse = torch_ops.forward(
            _heads_first(q, heads), _heads_first(k, heads), _heads_first(v, heads), shape
        )
        out, lse = _tokens_first(out), lse[0].T
        if mask is not None and not shape.causal:
            empty = torch_masks.rows_without_key(mask, len(q), q.device)
            out.index_fill_(0, empty, 0.0)
            lse.index_fill_(0, empty, -torch.inf)
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
        """See `Kernel.backward`.

        Checks on the host whether a surrogate output exists, which on a GPU waits for delta.
        """
        if not (len(q) and len(k)):
            return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        q, k, v, dout = _working(q, k, v, dout)
        # A row without any key has lse -inf, and exp(-inf - -inf) is NaN; with 0 it is 0.
        lse = lse.masked_fill(lse == -torch.inf, 0.0)
        out, exists = surrogate_out(dout, delta)
        if not exists:
            return _dense_backward(q, k, v, dout, lse, delta, mask, scale)
        heads, kv_heads = q.shape[1], k.shape[1]
        shape = _shape(q, k, mask, scale)
        q, k, v, out, dout = (_heads_first(x, heads) for x in (q, k, v, out, dout))
        dq, dk, dv = torch_ops.backward(q, k, v, out, dout, lse.T[None], shape)
        return _tokens_first(dq), _sum_heads(dk, kv_heads), _sum_heads(dv, kv_heads)


def surrogate_out(dout: Tensor, delta: Tensor) -> tuple[Tensor, bool]:
    """Make up an output whose row sums with dout are delta.

    Backward formulas use the output in delta = rowsum(dout ∘ out) only, and plans send delta,
    which is head_dim times smaller. Any output with the right row sums serves the operators; the
    one along dout is the shortest, so no longer than the true one, and its sum adds terms of one
    sign, so rounding it to half precision harms delta less than rounding the true one does. With
    m = rowmax |dout| and u = dout / m it is u · (delta / m) / rowsum(u²), where nothing overflows
    that the true output would not.

    Args:
        dout: [tokens, heads, head_dim].
        delta: [tokens, heads], accumulator dtype.

    Returns:
        out like dout, and whether it exists: where the gradient of lse is part of delta, a row
        may have dout 0 and delta other than 0.
    """
    gradient = dout.to(delta.dtype)
    largest = gradient.abs().amax(dim=-1)
    zero = largest == 0
    unit = gradient / largest.masked_fill(zero, 1.0)[..., None]
    factor = (delta / largest / unit.square().sum(dim=-1)).masked_fill(zero, 0.0)
    exists = (delta.masked_fill(~zero, 0.0) == 0) & (factor.abs() <= torch.finfo(dout.dtype).max)
    return (unit * factor[..., None]).to(dout.dtype), bool(exists.all())


def _dense_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    lse: Tensor,
    delta: Tensor,
    mask: BlockMask | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients as `Kernel.backward` writes them, in the accumulator dtype."""
    heads, kv_heads = q.shape[1], k.shape[1]
    q, k, v, dout = (_heads_first(x.to(lse.dtype), heads) for x in (q, k, v, dout))
    scores = scale * (q @ k.mT)
    if mask is not None:
        scores += torch_masks.additive(mask, q.shape[2], k.shape[2], lse.dtype, q.device)
    weights = torch.exp(scores - lse.T[None, ..., None])
    dscores = scale * weights * (dout @ v.mT - delta.T[None, ..., None])
    dk, dv = dscores.mT @ q, weights.mT @ dout
    return _tokens_first(dscores @ k), _sum_heads(dk, kv_heads), _sum_heads(dv, kv_heads)


def _working(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to the dtype to compute in."""
    if tensors[0].dtype == torch.float16 and tensors[0].device.type == "cpu":
        return tuple(x.float() for x in tensors)
    return tensors


def _shape(q: Tensor, k: Tensor, mask: BlockMask | None, scale: float) -> torch_ops.Shape:
    if mask is None:
        return torch_ops.Shape(False, None, scale)
    if mask.is_causal_square(len(q), len(k)):
        return torch_ops.Shape(True, None, scale)
    bias = torch_masks.additive(mask, len(q), len(k), q.dtype, q.device)
    return torch_ops.Shape(False, bias, scale)


def _heads_first(x: Tensor, heads: int) -> Tensor:
    """View [tokens, some heads, head_dim] as [1, heads, tokens, head_dim], heads repeated."""
    tokens, some, head_dim = x.shape
    repeated = x[:, :, None].expand(tokens, some, heads // some, head_dim)
    return repeated.reshape(tokens, heads, head_dim).transpose(0, 1)[None]


def _tokens_first(x: Tensor) -> Tensor:
    return x[0].transpose(0, 1)


def _sum_heads(x: Tensor, kv_heads: int) -> Tensor:
    """Add [1, heads, tokens, head_dim] over the query heads of each key head, tokens first."""
    _, heads, tokens, head_dim = x.shape
    if heads == kv_heads:
        return _tokens_first(x)
    grouped = x[0].view(kv_heads, heads // kv_heads, tokens, head_dim)
    return grouped.sum(dim=1, dtype=accumulator_dtype(x.dtype)).transpose(0, 1)
