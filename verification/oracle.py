"""Dense attention in float64: what every plan must equal.

Written from the definition, sequence by sequence and head by head, and independent of the block
model: the mask as a dense matrix, the softmax spelled out, the gradients by their formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dcp.batch import AttentionSpec, Batch
from dcp.checks import check_kind
from dcp.errors import ShapeError


@dataclass(frozen=True, kw_only=True, eq=False)
class OracleResult:
    """Float64 results in batch order; the gradients are None where no dout was given.

    Attributes:
        out: [query tokens, q_heads, head_dim]; 0 in rows without keys.
        lse: Natural-log sums, [query tokens, q_heads]; -inf in rows without keys.
        dq: [query tokens, q_heads, head_dim].
        dk, dv: [key tokens, kv_heads, head_dim].
    """

    out: Tensor
    lse: Tensor
    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Results that there are, by name."""
        named = {"out": self.out, "lse": self.lse, "dq": self.dq, "dk": self.dk, "dv": self.dv}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def attention_oracle(
    batch: Batch,
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor | None = None,
    dlse: Tensor | None = None,
) -> OracleResult:
    """Dense attention of a packed batch, and its gradients.

    Args:
        batch: Lengths and masks.
        spec: Heads and scale; its dtype plays no part.
        q: [query tokens, q_heads, head_dim], any float dtype.
        k, v: [key tokens, kv_heads, head_dim].
        dout: Gradient of out, as q; None for no gradients.
        dlse: Gradient of lse, [query tokens, q_heads]; None for 0.
    Raises:
        ShapeError: a tensor does not fit the batch and the spec; the message shows both shapes.
        SpecError: no batch, no spec or no tensor.
    Source: Dao et al. 2022, appendix B.
    """
    check_kind("batch", batch, Batch)
    check_kind("spec", spec, AttentionSpec)
    q_shape = (batch.num_q_tokens, spec.num_q_heads, spec.head_dim)
    kv_shape = (batch.num_kv_tokens, spec.num_kv_heads, spec.head_dim)
    lse_shape = q_shape[:2]
    q, k, v = _double("q", q, q_shape), _double("k", k, kv_shape), _double("v", v, kv_shape)
    out, lse = torch.zeros_like(q), q.new_full(lse_shape, -math.inf)
    for head, kv_head, rows, columns, mask in _parts(batch, spec):
        weights, lse[rows, head] = _softmax(q[rows, head], k[columns, kv_head], mask, spec.scale)
        out[rows, head] = weights @ v[columns, kv_head]
    if dout is None:
        return OracleResult(out=out, lse=lse)

    dout = _double("dout", dout, q_shape)
    dlse = torch.zeros_like(lse) if dlse is None else _double("dlse", dlse, lse_shape)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for head, kv_head, rows, columns, mask in _parts(batch, spec):
        queries, keys, values = q[rows, head], k[columns, kv_head], v[columns, kv_head]
        weights, _ = _softmax(queries, keys, mask, spec.scale)
        grad = dout[rows, head]
        delta = (grad * out[rows, head]).sum(dim=1)
        dscores = weights * (grad @ values.T + (dlse[rows, head] - delta)[:, None])
        dq[rows, head] = spec.scale * dscores @ keys
        dk[columns, kv_head] += spec.scale * dscores.T @ queries
        dv[columns, kv_head] += weights.T @ grad
    return OracleResult(out=out, lse=lse, dq=dq, dk=dk, dv=dv)


def _parts(batch: Batch, spec: AttentionSpec) -> Iterator[tuple[int, int, slice, slice, Tensor]]:
    """Every (query head, its key head, query rows, key rows, mask) of the packed batch."""
    ratio = spec.num_q_heads // spec.num_kv_heads
    q_end = kv_end = 0
    for q_len, kv_len, mask in zip(batch.q_lengths, batch.kv_lengths, batch.masks, strict=True):
        q_start, kv_start = q_end, kv_end
        q_end, kv_end = q_start + q_len, kv_start + kv_len
        allowed = torch.from_numpy(mask.dense(q_len, kv_len))
        for head in range(spec.num_q_heads):
            rows, columns = slice(q_start, q_end), slice(kv_start, kv_end)
            yield head, head // ratio, rows, columns, allowed


def _softmax(q: Tensor, k: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Probabilities [rows, keys], 0 in rows without keys, and lse [rows], -inf there."""
    scores = (scale * q @ k.T).masked_fill(~mask, -math.inf)
    has_key = mask.any(dim=1)
    if not has_key.any():
        return torch.zeros_like(scores), scores.new_full((len(scores),), -math.inf)
    largest = scores.amax(dim=1).masked_fill(~has_key, 0)
    weights = (scores - largest[:, None]).exp()
    total = weights.sum(dim=1)
    return weights / total.masked_fill(~has_key, 1)[:, None], largest + total.log()


def _double(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    check_kind(name, tensor, Tensor)
    if tensor.shape != shape:
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)}; this batch and spec need {shape}"
        )
    return tensor.detach().to(device="cpu", dtype=torch.float64)
