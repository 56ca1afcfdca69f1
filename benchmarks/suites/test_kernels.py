"""One call of a kernel, forward and backward, by mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dcp
from dcp import registry
from dcp.kernel_interface import BlockMask, Kernel

Benchmark = Callable[..., Any]

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 2048, 4, 1, 128
MASKS = {
    "full": None,
    "causal": BlockMask.of(dcp.masks.causal().slices(TOKENS, TOKENS)),
    "band": BlockMask.of(dcp.masks.sliding_window(512).slices(TOKENS, TOKENS)),
}


@pytest.fixture(params=MASKS)
def mask(request: pytest.FixtureRequest) -> BlockMask | None:
    return MASKS[request.param]


@pytest.fixture(params=("float32", "bfloat16"))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = getattr(torch, request.param)
    return found


@pytest.fixture(params=registry.BUILT_IN["kernels"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    if request.param != "torch" and not torch.cuda.is_available():
        pytest.skip(f"no CUDA device, and {request.param} is only of interest on one")
    available, reason = registry.load("kernels", request.param).availability()
    if not available:
        pytest.skip(reason)
    created: Kernel = registry.create("kernels", request.param)
    return created


def _block(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k, v and dout."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return tuple(torch.randn(TOKENS, each, HEAD_DIM, device=device).to(dtype) for each in heads)


def _finished(function: Callable[..., Any], *arguments: Any) -> Any:
    result = function(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result


def test_forward(
    benchmark: Benchmark, kernel: Kernel, dtype: torch.dtype, mask: BlockMask | None
) -> None:
    q, k, v, _ = _block(dtype)
    out, _ = benchmark(_finished, kernel.forward, q, k, v, mask, HEAD_DIM**-0.5)
    assert out.shape == q.shape


def test_backward(
    benchmark: Benchmark, kernel: Kernel, dtype: torch.dtype, mask: BlockMask | None
) -> None:
    q, k, v, dout = _block(dtype)
    out, lse = kernel.forward(q, k, v, mask, HEAD_DIM**-0.5)
    delta = (dout.float() * out.float()).sum(dim=-1)
    arguments = (q, k, v, dout, lse, delta, mask, HEAD_DIM**-0.5)
    dq, _, _ = benchmark(_finished, kernel.backward, *arguments)
    assert dq.shape == q.shape


def test_merge(benchmark: Benchmark, kernel: Kernel, dtype: torch.dtype) -> None:
    q, k, v, _ = _block(dtype)
    out, lse = kernel.forward(q, k, v, None, HEAD_DIM**-0.5)
    benchmark(_finished, kernel.merge, out.float(), lse, out, lse.clone())
