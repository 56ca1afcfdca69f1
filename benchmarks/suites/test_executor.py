"""Plans run with all their ranks in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_setting import SHAPES, planned, random_tensors, spec_of

import dcp

Benchmark = Callable[..., Any]

HEAD_DIM, DTYPE = 64, "float32"


@pytest.fixture(scope="module", params=("one-4k", "varlen-4k", "lambda-2k"))
def shape(request: pytest.FixtureRequest) -> Any:
    return SHAPES[request.param]


@pytest.fixture(scope="module", params=("ours", "zigzag"))
def plan(request: pytest.FixtureRequest, shape: Any) -> dcp.ExecutionPlan:
    cluster = dcp.Cluster.preset("local")
    return planned(shape, request.param, spec_of(HEAD_DIM, DTYPE), cluster, seed=0)


@pytest.fixture
def tensors(shape: Any) -> tuple[torch.Tensor, ...]:
    """q, k and v with gradients, and dout."""
    *inputs, dout = random_tensors(sum(shape.lengths), HEAD_DIM, DTYPE, seed=0)
    return (*(x.requires_grad_() for x in inputs), dout)


def test_forward(
    benchmark: Benchmark, plan: dcp.ExecutionPlan, tensors: tuple[torch.Tensor, ...]
) -> None:
    q, k, v, _ = (x.detach() for x in tensors)
    assert benchmark(dcp.run_local, plan, q, k, v).shape == q.shape


def test_backward(
    benchmark: Benchmark, plan: dcp.ExecutionPlan, tensors: tuple[torch.Tensor, ...]
) -> None:
    *inputs, dout = tensors
    out = dcp.run_local(plan, *inputs)
    gradients = benchmark(torch.autograd.grad, out, inputs, dout, retain_graph=True)
    assert [x.shape for x in gradients] == [x.shape for x in inputs]
