"""Activation checkpointing and torch.compile around planned attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attention_runs import random_inputs
from distributed_ranks import run_ranks
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dcp

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="float32")
BATCH = dcp.Batch([70, 0, 33, 1])

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


def plan_of(ranks: int = 3) -> dcp.ExecutionPlan:
    cluster = dcp.Cluster(devices_per_node=ranks)
    return dcp.plan(BATCH, SPEC, cluster, block_size=16, baseline="zigzag")


def layer_of(plan: dcp.ExecutionPlan) -> Layer:
    """Attention with token-wise operators around it, as in a model."""

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.relu(dcp.run_local(plan, q * 1.5, torch.sin(k), v)) + q

    return layer


def gradients(layer: Layer) -> tuple[Tensor, ...]:
    """Output and gradients of a layer on fixed inputs."""
    *tensors, dout = random_inputs(BATCH, SPEC)
    inputs = [x.requires_grad_() for x in tensors]
    out = layer(*inputs)
    return out.detach(), *torch.autograd.grad(out, inputs, dout)


def with_checkpoint(layer: Layer, use_reentrant: bool) -> Layer:
    return lambda *inputs: checkpoint(layer, *inputs, use_reentrant=use_reentrant)


def saved_bytes(layer: Layer) -> int:
    """Bytes of the tensors that autograd keeps for backward."""
    saved = 0

    def pack(x: Tensor) -> Tensor:
        nonlocal saved
        saved += x.nbytes
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        layer(*(x.requires_grad_() for x in random_inputs(BATCH, SPEC)[:3]))
    return saved


def test_checkpointing_without_reentrance_gives_the_same_bits() -> None:
    layer = layer_of(plan_of())
    again = gradients(with_checkpoint(layer, use_reentrant=False))
    assert all(map(torch.equal, gradients(layer), again))


def test_reentrant_checkpointing_gives_the_same_bits() -> None:
    layer = layer_of(plan_of())
    *tensors, dout = random_inputs(BATCH, SPEC)
    inputs = [x.requires_grad_() for x in tensors]
    out = with_checkpoint(layer, use_reentrant=True)(*inputs)
    out.backward(dout)  # this kind refuses torch.autograd.grad
    results = out.detach(), *(x.grad for x in inputs)
    assert all(map(torch.equal, gradients(layer), results))


def test_checkpointing_keeps_inputs_only() -> None:
    layer = layer_of(plan_of())
    assert saved_bytes(with_checkpoint(layer, use_reentrant=True)) < saved_bytes(layer)


def check_ranks(rank: int, world_size: int, folder: Path) -> None:
    cp, plan = dcp.ContextParallel(timeout_s=30), plan_of(world_size)
    q, k, v, dout = random_inputs(BATCH, SPEC)
    results = []
    for how in (None, False, True):
        inputs = [
            cp.shard(plan, x.detach(), side).requires_grad_()
            for x, side in ((q, "q"), (k, "kv"), (v, "kv"))
        ]

        def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return cp.attention(plan, q * 1.5, torch.sin(k), v) + q

        out = layer(*inputs) if how is None else with_checkpoint(layer, how)(*inputs)
        out.backward(cp.shard(plan, dout))
        results.append((out.detach(), *(x.grad for x in inputs)))
    for result in results[1:]:
        assert all(map(torch.equal, results[0], result))


@pytest.mark.distributed
def test_ranks_recompute_together(tmp_path: Path) -> None:
    run_ranks(check_ranks, 2, tmp_path)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_layer_gives_the_results_of_the_layer(backend: str) -> None:
    torch._dynamo.reset()
    layer = layer_of(plan_of())
    compiled = torch.compile(layer, backend=backend)
    for actual, wanted in zip(gradients(compiled), gradients(layer), strict=True):
        torch.testing.assert_close(actual, wanted)


def test_attention_is_a_graph_break_with_compiled_graphs_on_both_sides() -> None:
    torch._dynamo.reset()
    *tensors, _ = random_inputs(BATCH, SPEC)
    explanation = torch._dynamo.explain(layer_of(plan_of()))(*tensors)
    assert explanation.graph_count == 2
    assert explanation.graph_break_count >= 1


def test_a_change_of_plan_compiles_nothing_again() -> None:
    torch._dynamo.reset()
    compilations = []

    def counting(module: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        compilations.append(module)
        return module.forward

    @torch.compile(backend=counting)
    def layer(plan: dcp.ExecutionPlan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.relu(dcp.run_local(plan, q * 1.5, torch.sin(k), v)) + q

    *tensors, _ = random_inputs(BATCH, SPEC)
    layer(plan_of(3), *tensors)
    count = len(compilations)
    layer(plan_of(2), *tensors)
    assert len(compilations) == count
