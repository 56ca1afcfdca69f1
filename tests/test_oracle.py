"""The float64 oracle is attention: by autograd, by torch's own kernel, by finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import dcp
from dcp import masks
from dcp.errors import ShapeError
from dcp.runtime.dtypes import DTYPES
from dcp.verification.oracle import attention_oracle
from dcp.verification.tolerances import (
    check_within_budget,
    error_budgets,
    max_error,
    one_device_attention,
)

SPEC = dcp.AttentionSpec(num_q_heads=6, num_kv_heads=2, head_dim=5, dtype="float64")
BATCHES = {
    "causal": dcp.Batch([7, 1, 0, 12]),
    "mixed masks": dcp.Batch([9, 6], mask=[masks.sliding_window(3), masks.full()]),
    "cross-attention": dcp.Batch([4, 0, 6, 3], [9, 5, 0, 2], mask=masks.full()),
    "rows without keys": dcp.Batch([5, 3], [8, 2], mask=[masks.causal(-2), ~masks.full()]),
}


def inputs(batch: dcp.Batch, spec: dcp.AttentionSpec, seed: int = 0) -> tuple[Tensor, ...]:
    """q, k, v and dout of standard normal values, in float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [
        (batch.num_q_tokens, spec.num_q_heads, spec.head_dim),
        (batch.num_kv_tokens, spec.num_kv_heads, spec.head_dim),
        (batch.num_kv_tokens, spec.num_kv_heads, spec.head_dim),
        (batch.num_q_tokens, spec.num_q_heads, spec.head_dim),
    ]
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)


def naive_attention(
    batch: dcp.Batch, spec: dcp.AttentionSpec, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """One softmax over all tokens of the batch, with one block-diagonal mask; out and lse."""
    mask = np.zeros((batch.num_q_tokens, batch.num_kv_tokens), dtype=bool)
    row = column = 0
    for q_len, kv_len, one in zip(batch.q_lengths, batch.kv_lengths, batch.masks, strict=True):
        mask[row : row + q_len, column : column + kv_len] = one.dense(q_len, kv_len)
        row, column = row + q_len, column + kv_len
    allowed = torch.from_numpy(mask)
    ratio = spec.num_q_heads // spec.num_kv_heads
    k, v = k.repeat_interleave(ratio, dim=1), v.repeat_interleave(ratio, dim=1)
    scores = torch.einsum("qhd,khd->qhk", q, k) * spec.scale
    exponentials = torch.exp(scores) * allowed[:, None, :]
    total = exponentials.sum(dim=2)
    safe = total + (total == 0)
    lse = safe.log().masked_fill(total == 0, -math.inf)
    return torch.einsum("qhk,khd->qhd", exponentials / safe[:, :, None], v), lse


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_it_equals_autograd_of_a_naive_softmax(batch: dcp.Batch) -> None:
    q, k, v, dout = inputs(batch, SPEC)
    dlse = inputs(batch, SPEC, seed=1)[0][:, :, 0]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out, lse = naive_attention(batch, SPEC, *leaves)
    has_key = torch.isfinite(lse)
    loss = (out * dout).sum() + (lse * dlse)[has_key].sum()
    grads = torch.autograd.grad(loss, leaves)

    oracle = attention_oracle(batch, SPEC, q, k, v, dout, dlse)
    assert max_error(oracle.out, out) < 1e-13
    assert max_error(oracle.lse, lse) < 1e-13
    for mine, theirs in zip((oracle.dq, oracle.dk, oracle.dv), grads, strict=True):
        assert mine is not None
        assert max_error(mine, theirs) < 1e-12


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_it_equals_torchs_own_kernel(batch: dcp.Batch) -> None:
    q, k, v, dout = inputs(batch, SPEC)
    one_device = one_device_attention(batch, SPEC, q, k, v, dout)
    for name, tensor in attention_oracle(batch, SPEC, q, k, v, dout).tensors().items():
        assert max_error(one_device[name], tensor) < 1e-12, name


def test_rows_without_keys_give_zero_and_minus_infinity_and_no_gradient() -> None:
    batch = dcp.Batch([4], mask=masks.causal(-2))
    oracle = attention_oracle(batch, SPEC, *inputs(batch, SPEC))
    assert oracle.dq is not None
    assert torch.equal(oracle.out[:2], torch.zeros_like(oracle.out[:2]))
    assert bool((oracle.lse[:2] == -math.inf).all())
    assert torch.equal(oracle.dq[:2], torch.zeros_like(oracle.dq[:2]))
    assert bool(torch.isfinite(oracle.lse[2:]).all())
    assert not any(bool(torch.isnan(x).any()) for x in oracle.tensors().values())


def test_a_query_head_reads_the_key_head_of_its_group() -> None:
    batch = dcp.Batch([3], mask=masks.full())
    q, k, v, _ = inputs(batch, SPEC)
    v[:, 0], v[:, 1] = 1.0, 2.0
    out = attention_oracle(batch, SPEC, q, k, v).out
    assert out.mean(dim=(0, 2)).tolist() == pytest.approx([1, 1, 1, 2, 2, 2])


def test_scores_far_from_zero_neither_overflow_nor_lose_the_sum() -> None:
    batch = dcp.Batch([4])
    spec = dcp.AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=2, softmax_scale=1.0)
    q = torch.full((4, 1, 2), 30.0)
    k = torch.tensor([-50.0, 0.0, 20.0, 20.0])[:, None, None].expand(4, 1, 2)
    oracle = attention_oracle(batch, spec, q, k, torch.ones(4, 1, 2), torch.ones(4, 1, 2))
    expected = [-3000.0, 0.0, 1200.0, 1200 + math.log(2)]
    assert oracle.lse[:, 0].tolist() == pytest.approx(expected)
    assert torch.allclose(oracle.out, torch.ones_like(oracle.out))


def test_no_gradients_are_worked_out_unasked() -> None:
    batch = dcp.Batch([3])
    oracle = attention_oracle(batch, SPEC, *inputs(batch, SPEC)[:3])
    assert list(oracle.tensors()) == ["out", "lse"]


def test_a_tensor_that_does_not_fit_is_refused_with_both_shapes() -> None:
    batch = dcp.Batch([3])
    q, k, v, _ = inputs(batch, SPEC)
    with pytest.raises(ShapeError, match=r"k has shape \(2, 2, 5\).*need \(3, 2, 5\)"):
        attention_oracle(batch, SPEC, q, k[:2], v)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_one_device_is_within_its_own_budget(dtype: str) -> None:
    batch = BATCHES["mixed masks"]
    spec = dcp.AttentionSpec(num_q_heads=6, num_kv_heads=2, head_dim=5, dtype=dtype)
    q, k, v, dout = (x.to(DTYPES[dtype]) for x in inputs(batch, spec))
    results = one_device_attention(batch, spec, q, k, v, dout)
    errors = check_within_budget(batch, spec, (q, k, v, dout), results)
    assert set(errors) == {"out", "lse", "dq", "dk", "dv"}


@pytest.mark.parametrize(
    ("dtype", "too_much"),
    [("float64", 1e-8), ("float32", 1e-4), ("bfloat16", 0.3), ("float16", 0.05)],
)
@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
def test_an_error_beyond_the_budget_is_named(dtype: str, too_much: float, name: str) -> None:
    batch = BATCHES["causal"]
    spec = dcp.AttentionSpec(num_q_heads=6, num_kv_heads=2, head_dim=5, dtype=dtype)
    q, k, v, dout = (x.to(DTYPES[dtype]) for x in inputs(batch, spec))
    expected, budgets = error_budgets(batch, spec, q, k, v, dout)
    wrong = expected[name].clone()
    wrong[3, 1, 2] += too_much
    assert budgets[name] < too_much
    with pytest.raises(AssertionError, match=rf"{name} \({dtype}\) is off by .* budget"):
        check_within_budget(batch, spec, (q, k, v, dout), {name: wrong})


def test_nan_is_an_infinite_error_and_equal_infinities_are_none() -> None:
    assert max_error(torch.tensor([math.nan]), torch.tensor([0.0])) == math.inf
    assert max_error(torch.tensor([-math.inf, 1.0]), torch.tensor([-math.inf, 1.0])) == 0.0
    assert max_error(torch.zeros(0), torch.zeros(0)) == 0.0
