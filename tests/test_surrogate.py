"""The output that is made up from delta has delta as its row sums, and is the shortest such."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dcp.kernel_interface import accumulator_dtype
from dcp.kernels.surrogate import surrogate

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def row_sums(gradient: Tensor, out: Tensor) -> Tensor:
    return (gradient.double() * out.double()).sum(-1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e-3, 1.0, 1e4, 1e15])
def test_its_row_sums_with_the_gradient_are_delta(dtype: torch.dtype, size: float) -> None:
    dout = (torch.randn(50, 3, 16, dtype=torch.float64) * size).to(dtype)
    true_out = torch.randn(50, 3, 16, dtype=torch.float64)
    delta = row_sums(dout, true_out).to(accumulator_dtype(dtype))
    gradient, out = surrogate(dout, delta)
    assert torch.equal(gradient, dout)
    error = (row_sums(dout, out) - delta).abs()
    length = dout.double().norm(dim=-1) * true_out.norm(dim=-1)
    assert bool((error <= 2 * torch.finfo(dtype).eps * length).all())
    assert bool((out.double().norm(dim=-1) <= true_out.norm(dim=-1) * (1 + 4e-3)).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 1e20])
def test_where_only_lse_has_a_gradient_one_too_small_to_count_is_made_up(
    dtype: torch.dtype, size: float
) -> None:
    dout = torch.ones(20, 2, 8, dtype=dtype)
    dout[::2] = 0.0
    delta = (torch.randn(20, 2) * size).to(accumulator_dtype(dtype))
    gradient, out = surrogate(dout, delta)
    torch.testing.assert_close(
        row_sums(gradient, out), delta.double(), rtol=2 * torch.finfo(dtype).eps, atol=0.0
    )
    assert bool(out.isfinite().all())
    assert float((gradient.double() - dout.double()).abs().max()) <= max(size, 1.0) * 1e-35


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gradient_that_is_nothing_beside_delta_stays_but_for_an_element(
    dtype: torch.dtype,
) -> None:
    dout = torch.full((1, 1, 4), 1e-30, dtype=dtype)
    delta = torch.full((1, 1), 1e20, dtype=accumulator_dtype(dtype))
    gradient, out = surrogate(dout, delta)
    assert torch.equal(gradient[..., 1:], dout[..., 1:])
    assert float(row_sums(gradient, out)) == pytest.approx(1e20, rel=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_nothing_give_nothing(dtype: torch.dtype) -> None:
    zero = torch.zeros(3, 2, 8, dtype=dtype)
    gradient, out = surrogate(zero, torch.zeros(3, 2, dtype=accumulator_dtype(dtype)))
    assert not gradient.any()
    assert not out.any()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(number: float) -> None:
    dout, delta = torch.ones(2, 1, 4), torch.tensor([[number], [4.0]])
    gradient, out = surrogate(dout, delta)
    assert not row_sums(gradient, out)[0].isfinite()
    assert float(row_sums(gradient, out)[1]) == 4.0


def test_the_callers_gradient_is_left_alone() -> None:
    dout = torch.zeros(2, 1, 4)
    surrogate(dout, torch.ones(2, 1))
    assert not dout.any()


def test_no_device_but_a_cpu_is_asked_anything() -> None:
    """Tensors of the device `meta` have no value to ask for: an attempt raises."""
    dout = torch.empty(6, 2, 8, dtype=torch.bfloat16, device="meta")
    gradient, out = surrogate(dout, torch.empty(6, 2, device="meta"))
    assert (gradient.shape, out.shape) == (dout.shape, dout.shape)
