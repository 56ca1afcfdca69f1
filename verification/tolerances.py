"""How far a result may be from the oracle: an error budget instead of hand-tuned tolerances.

float64 results agree to 1e-10 relative. In any other dtype, one-device attention of that dtype on
the same input makes some error; a plan may make at most twice that. An absolute floor covers
inputs on which the one device happens to be exact: the dtype's unit at the largest value, or, for
gradients, at the terms that may cancel in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dcp.batch import AttentionSpec, Batch
from dcp.runtime.dtypes import DTYPES
from dcp.verification.oracle import attention_oracle

FLOAT64_RELATIVE = 1e-10
ONE_DEVICE_FACTOR = 2.0

# torch's fused CPU kernel evaluates exp in float32 to 20 units in the last place (exp_u20), so
# where it is nearer to the truth than that, it is so by luck.
_FLOAT32_UNIT = 20 * torch.finfo(torch.float32).eps / 2


def one_device_attention(
    batch: Batch, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, dout: Tensor
) -> dict[str, Tensor]:
    """Attention by torch's fused kernel on one device, a sequence at a time, in q's dtype.

    Args:
        batch: Lengths and masks.
        spec: Heads and scale.
        q, k, v, dout: As for `attention_oracle`; one dtype for all.
    Returns:
        "out", "dq", "dk" and "dv" in that dtype, 0 in rows without keys; "lse" in the
        accumulator's dtype, -inf there.
    """
    accumulator = DTYPES[spec.accumulator_dtype]
    results = {
        "out": torch.zeros_like(q),
        "lse": torch.full(q.shape[:2], -math.inf, dtype=accumulator),
        "dq": torch.zeros_like(q),
        "dk": torch.zeros_like(k),
        "dv": torch.zeros_like(v),
    }
    q_end = kv_end = 0
    for q_len, kv_len, mask in zip(batch.q_lengths, batch.kv_lengths, batch.masks, strict=True):
        q_start, kv_start = q_end, kv_end
        q_end, kv_end = q_start + q_len, kv_start + kv_len
        allowed = torch.from_numpy(mask.dense(q_len, kv_len))
        rows = torch.nonzero(allowed.any(dim=1)).flatten()
        if len(rows):
            bias = torch.zeros(len(rows), kv_len, dtype=q.dtype)
            bias.masked_fill_(~allowed[rows], -math.inf)
            rows, keys = q_start + rows, slice(kv_start, kv_end)
            q_part, k_part, v_part = (
                x.detach().requires_grad_() for x in (q[rows], k[keys], v[keys])
            )
            out = _fused(q_part, k_part, v_part, bias, spec)
            dq, dk, dv = torch.autograd.grad(out, (q_part, k_part, v_part), dout[rows])
            lse = _fused_lse(q_part.detach(), k_part.detach(), v_part.detach(), bias, spec)
            results["out"][rows], results["lse"][rows], results["dq"][rows] = out.detach(), lse, dq
            results["dk"][keys], results["dv"][keys] = dk, dv
    return results


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, spec: AttentionSpec) -> Tensor:
    q, k, v = _heads_first(q, k, v)
    out = scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=spec.scale)
    return out[0].transpose(0, 1)


def _fused_lse(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, spec: AttentionSpec) -> Tensor:
    """The log-sum-exp that the CPU kernel works with, which the public function keeps."""
    q, k, v = _heads_first(q, k, v)
    _, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=bias, scale=spec.scale
    )
    return cast(Tensor, lse[0].T)


def _heads_first(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """[1, heads, tokens, head_dim] of each, key heads repeated for their query heads."""
    ratio = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(ratio, dim=1), v.repeat_interleave(ratio, dim=1)
    return [x.transpose(0, 1)[None] for x in (q, k, v)]


def require(holds: bool, fault: str) -> None:
    """Assert what suites promise, also where Python leaves assert statements out.

    Raises:
        AssertionError: it does not hold; says what is wrong.
    """
    if not holds:
        raise AssertionError(fault)


def max_error(actual: Tensor, expected: Tensor) -> float:
    """Largest |actual − expected|; inf where one is NaN or not finite and the other differs."""
    if actual.shape != expected.shape:
        raise AssertionError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    actual, expected = actual.detach().to(torch.float64), expected.detach().to(torch.float64)
    error = (actual - expected).abs().masked_fill(actual == expected, 0.0)
    return float(error.nan_to_num(nan=math.inf).max()) if error.numel() else 0.0


def error_budgets(
    batch: Batch, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, dout: Tensor
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Float64 results and the largest error allowed in each: "out", "lse", "dq", "dk", "dv".

    Args:
        batch: Lengths and masks.
        spec: Heads, scale and the dtype whose budget is asked for.
        q, k, v, dout: As for `attention_oracle`, in that dtype.
    """
    expected = attention_oracle(batch, spec, q, k, v, dout).tensors()
    terms = _gradient_terms(spec, expected["out"], q, k, dout)
    budgets = {}
    if q.dtype == torch.float64:
        unit = torch.finfo(torch.float64).eps
        for name, tensor in expected.items():
            floor = 16 * unit * max(terms.get(name, 0.0), 1.0)
            budgets[name] = FLOAT64_RELATIVE * _largest(tensor) + floor
        return expected, budgets
    one_device = one_device_attention(batch, spec, q, k, v, dout)
    for name, tensor in expected.items():
        unit = max(torch.finfo(one_device[name].dtype).eps, _FLOAT32_UNIT)
        floor = unit * max(_largest(tensor), terms.get(name, 0.0))
        budgets[name] = ONE_DEVICE_FACTOR * max_error(one_device[name], tensor) + floor
    return expected, budgets


def _gradient_terms(
    spec: AttentionSpec, out: Tensor, q: Tensor, k: Tensor, dout: Tensor
) -> dict[str, float]:
    """Size of what is subtracted in dQ and dK: scale · rowsum(dO ∘ O) times a key or query."""
    delta = spec.scale * _largest((dout.to(torch.float64) * out).sum(dim=-1))
    return {"dq": delta * _largest(k), "dk": delta * _largest(q)}


def check_within_budget(
    batch: Batch,
    spec: AttentionSpec,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    results: Mapping[str, Tensor],
) -> dict[str, float]:
    """Assert that results are as near to the oracle as the budget asks.

    Args:
        batch: Lengths and masks.
        spec: Heads, scale and dtype.
        inputs: q, k, v and dout, packed in batch order.
        results: Any of "out", "lse", "dq", "dk" and "dv".
    Returns:
        The error measured in each.
    Raises:
        AssertionError: names the tensor, its error and its budget.
    """
    expected, budgets = error_budgets(batch, spec, *inputs)
    errors = {}
    for name, actual in results.items():
        errors[name] = max_error(actual, expected[name])
        if not errors[name] <= budgets[name]:
            raise AssertionError(
                f"{name} ({spec.dtype}) is off by {errors[name]:.3g}, budget {budgets[name]:.3g}, "
                f"largest value {_largest(expected[name]):.3g}: {batch!r}, {spec!r}"
            )
    return errors


def _largest(tensor: Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0
