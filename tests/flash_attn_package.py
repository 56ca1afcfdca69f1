"""A module with the functions of the flash-attn package that the kernel calls, in plain torch.

Signatures and layouts as in flash_attn/flash_attn_interface.py of flash-attn 2.7.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ends: list[tuple[int, int, bool]] = []  # queries, keys and causal of every call


def _scores(
    q: Tensor, k: Tensor, softmax_scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads first in float32, and scores with -inf above the diagonal that ends in the corner."""
    ratio = q.shape[1] // k.shape[1]
    q_heads, k_heads = q.float().transpose(0, 1), k.float().transpose(0, 1)
    k_heads = k_heads.repeat_interleave(ratio, dim=0)
    scores = softmax_scale * q_heads @ k_heads.mT
    if causal:
        allowed = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(k) - len(q))
        scores = scores.masked_fill(~allowed, -torch.inf)
    return q_heads, k_heads, scores


def _check(*tensors: Tensor, **lengths: Any) -> None:
    q, k = tensors[:2]
    assert all(x.dtype in (torch.float16, torch.bfloat16) for x in tensors)
    assert all(x.shape[-1] % 8 == 0 and x.shape[-1] <= 256 for x in tensors)
    assert all(x.stride(-1) == 1 for x in tensors)
    for x, side in ((q, "q"), (k, "k")):
        cu_seqlens = lengths[f"cu_seqlens_{side}"]
        assert cu_seqlens.dtype == torch.int32
        assert cu_seqlens.tolist() == [0, len(x)]
        assert lengths[f"max_seqlen_{side}"] == len(x) > 0


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    _check(q, k, v, **lengths, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    assert dropout_p == 0.0
    ends.append((len(q), len(k), causal))
    _, _, scores = _scores(q, k, softmax_scale, causal)
    lse = scores.logsumexp(dim=-1)
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # rows without keys
    weights = torch.exp(scores - lse[..., None])
    values = v.float().transpose(0, 1).repeat_interleave(q.shape[1] // k.shape[1], dim=0)
    out = (weights @ values).transpose(0, 1).to(q.dtype)
    return out.contiguous(), lse, q.new_empty(0), torch.empty(2, dtype=torch.int64)


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    _check(q, k, v, out, dout, **lengths, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    assert (window_size_left, window_size_right, softcap, dropout_p) == (-1, -1, 0.0, 0.0)
    assert deterministic
    assert softmax_lse.shape == (q.shape[1], len(q))
    assert softmax_lse.is_contiguous()
    assert not (softmax_lse == -torch.inf).any()
    assert dq is not None
    assert dk is not None
    assert dv is not None
    ends.append((len(q), len(k), causal))
    kv_heads = k.shape[1]
    q_heads, k_heads, scores = _scores(q, k, softmax_scale, causal)
    v_heads = v.float().transpose(0, 1).repeat_interleave(q.shape[1] // kv_heads, dim=0)
    dout_heads = dout.float().transpose(0, 1)
    delta = (dout_heads * out.float().transpose(0, 1)).sum(-1)
    weights = torch.exp(scores - softmax_lse[..., None])
    dscores = softmax_scale * weights * (dout_heads @ v_heads.mT - delta[..., None])
    dq.copy_((dscores @ k_heads).transpose(0, 1))
    for target, grad in ((dk, dscores.mT @ q_heads), (dv, weights.mT @ dout_heads)):
        target.copy_(grad.unflatten(0, (kv_heads, -1)).sum(1).transpose(0, 1))
    return delta
