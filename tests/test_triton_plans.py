"""Whole plans on interpreted Triton kernels are exact."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from attention_runs import random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from program_memory import contents, memory
from torch import Tensor

import dcp
from dcp.execution_plan import ExecutionPlan
from dcp.instructions import CommLaunch, Copy, Program, Reduce
from dcp.kernels.torch_flash import TorchFlash
from dcp.kernels.triton_attention import TritonAttention
from dcp.runtime.buffers import has_replicas
from dcp.runtime.messages import ProgramMessages
from dcp.verification.local_run import check_numbers, run_with_gradients
from dcp.verification.strategies import cases

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="TRITON_INTERPRET=1 is not set"
    ),
]

KERNEL = TritonAttention(tile_q=16, tile_k=16)
SPEC = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=16, dtype="float32")
BATCH = dcp.Batch([21, 0, 10, 1])
RANDOM = dcp.masks.from_dense(np.random.default_rng(2).random((24, 24)) < 0.5)


def planned(
    batch: dcp.Batch = BATCH, ranks: int = 2, spec: dcp.AttentionSpec = SPEC, **how: Any
) -> ExecutionPlan:
    cluster = dcp.Cluster(devices_per_node=ranks)
    return dcp.plan(batch, spec, cluster, block_size=8, **(how or {"baseline": "zigzag"}))


PLANNED: dict[str, Any] = {"partitioner": "greedy", "scheduler": "overlap"}
CASES: dict[str, tuple[dcp.Batch, int, dict[str, Any], dict[str, Any]]] = {
    "ring": (BATCH, 3, {}, {"baseline": "ring"}),
    "zigzag-bfloat16": (BATCH, 2, {"dtype": "bfloat16"}, {"baseline": "zigzag"}),
    "planned-bfloat16": (BATCH, 3, {"dtype": "bfloat16"}, PLANNED),
    "planned-odd-head-dim": (BATCH, 2, {"dtype": "float16", "head_dim": 5}, PLANNED),
    "usp-head-dim-24": (
        BATCH,
        4,
        {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 24, "dtype": "bfloat16"},
        {"baseline": "usp"},
    ),
    "ulysses-that-shares-a-key-head": (BATCH, 2, {"dtype": "bfloat16"}, {"baseline": "ulysses"}),
    "float32-partials": (BATCH, 2, {"dtype": "bfloat16", "float32_partials": True}, PLANNED),
    "lambda": (dcp.Batch([33], mask=dcp.masks.lambda_mask(3, 9)), 2, {}, PLANNED),
    "many-slices": (dcp.Batch([24], mask=RANDOM), 2, {}, {"baseline": "ring"}),
    "cross": (dcp.Batch([9, 0, 13], [4, 8, 20], mask=dcp.masks.full()), 2, {}, PLANNED),
    "kept-for-backward": (BATCH, 3, {"dtype": "bfloat16"}, {**PLANNED, "keep_bytes": None}),
    "sequential": (BATCH, 2, {}, {"partitioner": "greedy", "scheduler": "sequential"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_within_its_error_budget(name: str) -> None:
    batch, ranks, heads, how = CASES[name]
    plan = planned(batch, ranks, replace(SPEC, **heads), **how)
    assert has_replicas(plan.blocks.groups) == (name == "ulysses-that-shares-a-key-head")
    check_numbers(batch, plan, kernel=KERNEL)


@settings(max_examples=8)  # several seconds each, interpreted
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_any_plan_is_within_its_error_budget(data: st.DataObject, seed: int) -> None:
    dtype = data.draw(st.sampled_from(["float32", "bfloat16", "float16"]))
    case = data.draw(cases(dtype).filter(lambda case: len(case.plan().blocks.comp_q) <= 60))
    check_numbers(case.batch, case.plan(), seed=seed, kernel=KERNEL)


def messages(plan: ExecutionPlan, program: Program) -> dict[int, Tensor]:
    """Buffers for the sends and the receives of every launch, full of small numbers."""
    layout = ProgramMessages.of(plan.blocks, program)
    launches = [one for one in program.instructions if isinstance(one, CommLaunch)]
    sides = [items for one in launches for items in (one.sends, one.receives)]
    sizes = [layout.of_items(items).nbytes for items in sides]
    return {
        id(items): torch.arange(size).remainder(64).to(torch.uint8)
        for items, size in zip(sides, sizes, strict=True)
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("baseline", ["ulysses", "zigzag"])
def test_messages_and_copies_have_the_bits_that_torch_gives(dtype: str, baseline: str) -> None:
    spec = replace(SPEC, head_dim=5, dtype=dtype)  # numbers of rows stand at odd places
    plan = planned(spec=spec, baseline=baseline)
    for rank in range(2):
        results: list[list[Tensor]] = []
        for maker in (KERNEL, TorchFlash()):
            results.append([])
            for program, buffers in memory(BATCH, plan, rank):
                kernel, data = maker.bind(plan.blocks, program, buffers), messages(plan, program)
                for one in program.instructions:
                    if isinstance(one, Copy):
                        kernel.copy(one)
                    elif isinstance(one, CommLaunch):
                        kernel.pack(one, data[id(one.sends)])
                        kernel.unpack(one, data[id(one.receives)])
                results[-1] += [*data.values(), *contents(buffers)]
        assert all(map(torch.equal, *results))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reductions_equal_those_of_torch(dtype: str) -> None:
    plan = planned(ranks=3, spec=replace(SPEC, dtype=dtype), **PLANNED)
    reduced = 0
    for rank in range(3):
        results: list[list[Tensor]] = []
        for maker in (KERNEL, TorchFlash()):
            results.append([])
            for program, buffers in memory(BATCH, plan, rank):
                kernel = maker.bind(plan.blocks, program, buffers)
                for one in program.instructions:
                    if isinstance(one, Reduce):
                        kernel.reduce(one)
                        reduced += 1
                results[-1] += contents(buffers)
        for ours, torchs in zip(*results, strict=True):
            torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)
    assert reduced


def test_two_runs_give_the_same_bits() -> None:
    plan, inputs = planned(), random_inputs(BATCH, SPEC)
    first, again = (run_with_gradients(plan, inputs, kernel=KERNEL) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_views_of_one_fused_tensor_give_the_bits_of_contiguous_copies() -> None:
    plan = planned(ranks=1)
    fused = torch.cat(random_inputs(BATCH, SPEC)[:3], dim=1)
    views = fused[:, :2], fused[:, 2:3], fused[:, 3:]
    cp = dcp.ContextParallel(kernel=KERNEL)
    out = cp.attention(plan, *views)
    assert torch.equal(out, cp.attention(plan, *(view.contiguous() for view in views)))
