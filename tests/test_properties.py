"""Whatever is asked for, its plan is proven right and its numbers equal dense attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp.verification import attention_oracle, check_plan
from dcp.verification.fuzz import check_case
from dcp.verification.local_run import random_inputs, run_with_gradients
from dcp.verification.strategies import Case, available, cases
from dcp.verification.tolerances import max_error

pytestmark = pytest.mark.property

SEEDS = st.integers(0, 2**16)
PARTITIONERS = available("partitioners")
SCHEDULERS = ("sequential", "paper:divisions=3", "overlap")
BASELINES = (
    "ring",
    "zigzag",
    "ulysses",
    "usp",
    "usp:layout=ring_inner",
    "usp:ring=contiguous,ulysses_degree=1",
    "allgather",
)


def fewer(factor: int) -> settings:
    """A part of the examples that the profile asks for."""
    return settings(max_examples=max(1, settings.default.max_examples // factor))


@given(case=cases(), seed=SEEDS)
@settings(max_examples=3 * settings.default.max_examples)
def test_any_plan_is_proven_and_equals_dense_attention(case: Case, seed: int) -> None:
    check_case(case, seed)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_every_partitioner_with_every_scheduler(partitioner: str, scheduler: str) -> None:
    # KaHyPar starts a process of its own for every problem.
    @given(case=cases(), seed=SEEDS)
    @fewer(15 if partitioner == "kahypar" else 4)
    def holds(case: Case, seed: int) -> None:
        options = {"partitioner": partitioner, "scheduler": scheduler}
        check_case(replace(case, options=options), seed)

    holds()


@pytest.mark.parametrize("baseline", BASELINES)
def test_every_baseline(baseline: str) -> None:
    @given(case=cases(), seed=SEEDS)
    @fewer(3)
    def holds(case: Case, seed: int) -> None:
        spec = case.spec
        if baseline == "ulysses" and spec.num_q_heads < case.cluster.num_devices:
            spec = replace(spec, num_q_heads=6, num_kv_heads=2)
        check_case(replace(case, spec=spec, options={"baseline": baseline}), seed)

    holds()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_lower_precision_stays_within_its_error_budget(dtype: str) -> None:
    @given(case=cases(dtype), seed=SEEDS)
    def holds(case: Case, seed: int) -> None:
        check_case(case, seed)

    holds()


@given(case=cases(), seed=SEEDS)
@fewer(2)
def test_gradients_flow_through_the_log_sum_exp_too(case: Case, seed: int) -> None:
    plan, spec = case.plan(), case.spec
    q, k, v, dout = random_inputs(case.batch, spec, seed=seed)
    dlse = random_inputs(case.batch, spec, seed=seed + 1)[0][:, :, 0]
    expected = attention_oracle(case.batch, spec, q, k, v, dout, dlse)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = dcp.run_local(plan, *leaves, return_lse=True)
    grads = torch.autograd.grad((out, lse), leaves, (dout, dlse))
    for name, grad in zip(("dq", "dk", "dv"), grads, strict=True):
        wanted = expected.tensors()[name]
        size = float(wanted.abs().max()) if wanted.numel() else 0.0
        assert max_error(grad, wanted) <= 1e-10 * size + 1e-13, name


@given(case=cases("bfloat16"), seed=SEEDS)
@fewer(2)
def test_two_runs_give_the_same_bits(case: Case, seed: int) -> None:
    plan = case.plan()
    inputs = random_inputs(case.batch, case.spec, seed=seed)
    first, second = (run_with_gradients(plan, inputs) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@given(case=cases())
@fewer(2)
def test_equal_requests_give_equal_plans(case: Case) -> None:
    again: Any = dcp.Batch(
        list(case.batch.q_lengths),
        list(case.batch.kv_lengths) if case.batch.is_cross else None,
        mask=list(case.batch.masks),
    )
    assert replace(case, batch=again).plan().digest == case.plan().digest


@given(case=cases())
@fewer(2)
def test_a_plan_that_was_saved_is_proven_like_the_original(case: Case) -> None:
    plan = case.plan()
    loaded = dcp.ExecutionPlan.from_bytes(plan.to_bytes())
    assert loaded.digest == plan.digest
    assert check_plan(loaded) == check_plan(plan)
