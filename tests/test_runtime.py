"""Executing plans in one process: results, gradients, refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from attention_runs import random_inputs, run_both_ways
from torch import Tensor

import dcp
from dcp.blocks import Kind
from dcp.errors import (
    BackendError,
    DtypeError,
    ShapeError,
    SpecError,
    TransportError,
    UnknownBackendError,
)
from dcp.instructions import CommLaunch
from dcp.kernels.torch_flash import TorchFlash
from dcp.runtime import messages, sharding
from dcp.runtime.buffers import PlaneDtypes
from dcp.traffic import item_bytes
from dcp.verification import attention_oracle, check_within_budget

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="float32")
BATCH = dcp.Batch([70, 0, 33, 1])
CROSS = dcp.Batch([40, 0, 25], [30, 10, 55], mask=dcp.masks.full())
SCHEMES = ("ring", "zigzag", "ulysses", "usp")


def plan_of(
    batch: dcp.Batch = BATCH,
    spec: dcp.AttentionSpec = SPEC,
    *,
    ranks: int = 4,
    baseline: str = "ring",
) -> dcp.ExecutionPlan:
    cluster = dcp.Cluster(devices_per_node=ranks)
    return dcp.plan(batch, spec, cluster, block_size=16, baseline=baseline)


def inputs_of(batch: dcp.Batch = BATCH, spec: dcp.AttentionSpec = SPEC) -> tuple[Tensor, ...]:
    return tuple(x.requires_grad_() for x in random_inputs(batch, spec)[:3])


@contextmanager
def nan_in_fresh_memory() -> Iterator[None]:
    """Fill what torch.empty returns with NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class TestResults:
    """Outputs and gradients."""

    @pytest.mark.parametrize("baseline", SCHEMES)
    @pytest.mark.parametrize("batch", [BATCH, CROSS], ids=["self", "cross"])
    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
    def test_equal_dense_attention_and_never_read_unwritten_memory(
        self, baseline: str, batch: dcp.Batch, dtype: str
    ) -> None:
        spec = replace(SPEC, dtype=dtype)
        inputs = random_inputs(batch, spec)
        with nan_in_fresh_memory():
            results = run_both_ways(plan_of(batch, spec, baseline=baseline), inputs)
        check_within_budget(batch, spec, inputs, results)

    @pytest.mark.parametrize("num_kv_heads", [1, 2])
    def test_replicas_of_a_key_head_add_up_their_gradients(self, num_kv_heads: int) -> None:
        """prime-rl#3042: more ranks than key heads in Ulysses."""
        spec = replace(SPEC, num_kv_heads=num_kv_heads, dtype="bfloat16")
        inputs = random_inputs(BATCH, spec)
        plan = plan_of(BATCH, spec, baseline="ulysses")
        assert len(plan.blocks.groups) > num_kv_heads
        check_within_budget(BATCH, spec, inputs, run_both_ways(plan, inputs))

    @pytest.mark.parametrize("ranks", [1, 2, 9, 30])
    def test_any_number_of_ranks_also_more_than_blocks(self, ranks: int) -> None:
        spec = replace(SPEC, dtype="float64")
        inputs = random_inputs(BATCH, spec)
        check_within_budget(
            BATCH, spec, inputs, run_both_ways(plan_of(BATCH, spec, ranks=ranks), inputs)
        )

    def test_a_batch_without_tokens_gives_empty_tensors(self) -> None:
        batch = dcp.Batch([0, 0])
        results = run_both_ways(plan_of(batch), random_inputs(batch, SPEC))
        assert [len(result) for result in results.values()] == [0, 0, 0, 0]

    def test_the_result_has_the_dtype_and_shape_of_q(self) -> None:
        spec = replace(SPEC, dtype="bfloat16")
        q, k, v = inputs_of(spec=spec)
        out, lse = dcp.run_local(plan_of(spec=spec), q, k, v, return_lse=True)
        assert (out.dtype, out.shape) == (q.dtype, q.shape)
        assert (lse.dtype, lse.shape) == (torch.float32, q.shape[:2])

    def test_two_runs_give_the_same_bits(self) -> None:
        plan, inputs = plan_of(baseline="usp"), random_inputs(BATCH, SPEC)
        first, second = (run_both_ways(plan, inputs) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_partials_may_travel_in_float32(self) -> None:
        errors = []
        for float32_partials in (False, True):
            spec = replace(SPEC, dtype="bfloat16", float32_partials=float32_partials)
            inputs = random_inputs(BATCH, spec)
            results = run_both_ways(plan_of(BATCH, spec), inputs)
            check_within_budget(BATCH, spec, inputs, results)
            exact = attention_oracle(BATCH, spec, *inputs)
            errors.append(float((results["dv"].double() - exact.dv).norm()))
        assert errors[1] < errors[0]

    def test_the_scale_of_the_spec_is_used(self) -> None:
        spec = replace(SPEC, dtype="float64", softmax_scale=0.7)
        inputs = random_inputs(BATCH, spec)
        check_within_budget(BATCH, spec, inputs, run_both_ways(plan_of(BATCH, spec), inputs))


class TestGradients:
    """How autograd sees attention."""

    def test_flow_through_lse_too(self) -> None:
        spec = replace(SPEC, dtype="float64")
        batch = dcp.Batch([40, 9], mask=dcp.masks.sliding_window(7))
        q, k, v = inputs_of(batch, spec)
        out, lse = dcp.run_local(plan_of(batch, spec), q, k, v, return_lse=True)
        dout, dlse = torch.randn_like(out), torch.randn_like(lse)
        torch.autograd.backward((out, lse), (dout, dlse))
        exact = attention_oracle(batch, spec, q, k, v, dout, dlse)
        for actual, expected in ((q, exact.dq), (k, exact.dk), (v, exact.dv)):
            torch.testing.assert_close(actual.grad, expected, rtol=1e-10, atol=1e-12)

    def test_of_lse_alone_are_exact_and_leave_v_next_to_nothing(self) -> None:
        spec = replace(SPEC, dtype="bfloat16")
        q, k, v = inputs_of(spec=spec)
        _, lse = dcp.run_local(plan_of(spec=spec), q, k, v, return_lse=True)
        lse.sum().backward()
        zeros = torch.zeros_like(q)
        exact = attention_oracle(BATCH, spec, q, k, v, zeros, torch.ones_like(lse))
        assert v.grad is not None
        assert float(v.grad.abs().max()) < 1e-30  # of made-up gradients, see kernels/surrogate.py
        for actual, expected in ((q.grad, exact.dq), (k.grad, exact.dk)):
            assert actual is not None
            torch.testing.assert_close(actual.double(), expected, rtol=2e-2, atol=2e-2)

    def test_of_lse_in_rows_without_keys_are_zero(self) -> None:
        batch = dcp.Batch([0, 5], [4, 0], mask=dcp.masks.full())
        q, k, v = inputs_of(batch)
        out, lse = dcp.run_local(plan_of(batch), q, k, v, return_lse=True)
        assert bool((lse == -math.inf).all())
        (out.sum() + lse.sum()).backward()
        assert all(x.grad is not None and not x.grad.any() for x in (q, k, v))

    def test_only_those_asked_for_are_returned(self) -> None:
        q, k, v = (x.detach() for x in inputs_of())
        v.requires_grad_()
        dcp.run_local(plan_of(), q, k, v).sum().backward()
        assert q.grad is None
        assert k.grad is None
        assert v.grad is not None

    def test_are_the_same_under_autocast_and_out_without_autograd(self) -> None:
        plan = plan_of()
        q, k, v = inputs_of()
        out, lse = dcp.run_local(plan, q, k, v, return_lse=True)
        expected = torch.autograd.grad(lse.sum(), (q, k))
        with torch.autocast("cpu", torch.bfloat16):
            again, lse = dcp.run_local(plan, q, k, v, return_lse=True)
            grads = torch.autograd.grad(lse.sum(), (q, k))
        assert torch.equal(again, out)
        assert all(map(torch.equal, grads, expected))
        with torch.inference_mode():
            assert torch.equal(dcp.run_local(plan, q, k, v), out)

    def test_second_derivatives_are_refused(self) -> None:
        q, k, v = inputs_of()
        out = dcp.run_local(plan_of(), q, k, v)
        for loss in (out.square().sum(), out.sum()):
            with pytest.raises(BackendError, match="without create_graph=True"):
                torch.autograd.grad(loss, q, create_graph=True, retain_graph=True)

    def test_inputs_need_not_be_contiguous(self) -> None:
        plan = plan_of()
        q, k, v, dout = random_inputs(BATCH, SPEC)

        def scattered(x: Tensor) -> Tensor:
            return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)

        inputs = tuple(map(scattered, (q, k, v, dout)))
        assert not any(x.is_contiguous() for x in inputs)
        expected = run_both_ways(plan, (q, k, v, dout))
        results = run_both_ways(plan, inputs)  # type: ignore[arg-type]
        assert all(torch.equal(results[name], expected[name]) for name in expected)


class TestRefusals:
    """Bad input is named before anything runs."""

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            (lambda q, k, v: (q[:-1], k, v), ShapeError, r"q has shape \(103, .* \(104, 4, 16\)"),
            (lambda q, k, v: (q, k, v.mT), ShapeError, r"v has shape .*needs \(104, 2, 16\)"),
            (lambda q, k, v: (q[None], k, v), ShapeError, "q has shape"),
            (lambda q, k, v: (q, k.double(), v), DtypeError, "k is torch.float64; .*float32"),
            (lambda q, k, v: (q, k.tolist(), v), DtypeError, "k is a list"),
            (lambda q, k, v: (q.numpy(), k, v), DtypeError, "q is a ndarray"),
            (lambda q, k, v: (q, k, v.to("meta")), ShapeError, "v is on meta but q is on cpu"),
        ],
    )
    def test_of_tensors(self, change: Any, error: type[Exception], message: str) -> None:
        inputs = change(*random_inputs(BATCH, SPEC)[:3])
        with pytest.raises(error, match=message):
            dcp.run_local(plan_of(), *inputs)

    def test_of_kernels(self) -> None:
        inputs = random_inputs(BATCH, SPEC)[:3]
        with pytest.raises(
            UnknownBackendError, match="no kernel is named 'nope'; there are: torch"
        ):
            dcp.run_local(plan_of(), *inputs, kernel="nope")
        with pytest.raises(SpecError, match="kernel is 3"):
            dcp.run_local(plan_of(), *inputs, kernel=3)  # type: ignore[call-overload]

    def test_of_a_plan_whose_ranks_wait_for_each_other(self) -> None:
        plan = plan_of(ranks=2)
        damaged = without_sends(plan, rank=1)
        block = int(np.flatnonzero(plan.placement.token_home == 1)[0])
        with pytest.raises(
            TransportError,
            match=rf"deadlock: rank 0 waits for rank 1, .* block {block}, before division 1",
        ):
            dcp.run_local(damaged, *random_inputs(BATCH, SPEC)[:3])

    def test_of_a_plan_whose_message_nobody_receives(self) -> None:
        damaged = without_receives(plan_of(ranks=2, baseline="ring"), rank=1)
        with pytest.raises(TransportError, match=r"rank 0 sent rank 1 .* step 1 .* nobody"):
            dcp.run_local(damaged, *random_inputs(BATCH, SPEC)[:3])


def without_sends(plan: dcp.ExecutionPlan, rank: int) -> dcp.ExecutionPlan:
    return with_launches(plan, rank, lambda old: CommLaunch(old.step, old.sends[:0], old.receives))


def without_receives(plan: dcp.ExecutionPlan, rank: int) -> dcp.ExecutionPlan:
    """The rank neither launches its receives nor waits for them."""
    changed = with_launches(
        plan, rank, lambda old: CommLaunch(old.step, old.sends, old.receives[:0])
    )
    forward = changed.ranks[rank].forward
    kept = [each for each in forward.instructions if type(each).__name__ != "CommWait"]
    return with_forward(changed, rank, kept)


def with_launches(plan: dcp.ExecutionPlan, rank: int, change: Any) -> dcp.ExecutionPlan:
    instructions = [
        change(each) if isinstance(each, CommLaunch) else each
        for each in plan.ranks[rank].forward.instructions
    ]
    return with_forward(plan, rank, instructions)


def with_forward(plan: dcp.ExecutionPlan, rank: int, instructions: Any) -> dcp.ExecutionPlan:
    mine = plan.ranks[rank]
    forward = msgspec.structs.replace(mine.forward, instructions=instructions)
    ranks = list(plan.ranks)
    ranks[rank] = msgspec.structs.replace(mine, forward=forward)
    return replace(plan, content=msgspec.structs.replace(plan.content, ranks=ranks))


@dataclass(frozen=True, kw_only=True)
class CountingKernel(TorchFlash):
    """Counts its forward calls."""

    calls: list[int]

    def forward(self, q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        self.calls.append(len(q))
        return super().forward(q, *rest)


def test_a_kernel_may_be_given_as_an_instance() -> None:
    plan, kernel = plan_of(), CountingKernel(calls=[])
    dcp.run_local(plan, *random_inputs(BATCH, SPEC)[:3], kernel=kernel)
    assert sum(kernel.calls) >= len(plan.blocks.groups) * sum(BATCH.q_lengths)


class TestSharding:
    """Cutting tensors into local ones and putting them together."""

    @pytest.mark.parametrize(("batch", "side"), [(BATCH, "q"), (CROSS, "q"), (CROSS, "kv")])
    def test_unshard_is_the_inverse_of_shard(
        self, batch: dcp.Batch, side: sharding.TokenSide
    ) -> None:
        plan = plan_of(batch, baseline="zigzag")
        x = torch.randn(sharding.num_tokens(plan, side), 3, 5)
        parts = [sharding.shard_for(plan, x, rank, side) for rank in range(4)]
        assert torch.equal(sharding.unshard_from(plan, parts, side), x)

    def test_every_token_has_one_place(self) -> None:
        plan = plan_of(baseline="zigzag")
        indices = [sharding.local_indices(plan, rank) for rank in range(4)]
        assert sorted(np.concatenate(indices).tolist()) == list(range(104))

    def test_is_differentiable(self) -> None:
        plan = plan_of()
        x = torch.randn(104, 2, requires_grad=True)
        sharding.shard_for(plan, x, 1).sum().backward()
        assert x.grad is not None
        assert np.flatnonzero(x.grad[:, 0]).tolist() == sharding.local_indices(plan, 1).tolist()

    def test_refuses_other_numbers_of_tokens(self) -> None:
        with pytest.raises(ShapeError, match=r"got shape \(1,\); .* 104 q tokens"):
            sharding.shard_for(plan_of(), torch.ones(1), 0)
        with pytest.raises(ShapeError, match=r"got shape \(\)"):
            sharding.shard_for(plan_of(), torch.tensor(1.0), 0)

    def test_refuses_unknown_sides(self) -> None:
        with pytest.raises(SpecError, match='side is \'k\'; legal: "q" and "kv"'):
            sharding.shard_for(plan_of(), torch.ones(104), 0, "k")  # type: ignore[arg-type]


class TestMessages:
    """Packing planes into bytes."""

    def test_planes_of_odd_sizes_come_back_bit_for_bit(self) -> None:
        generator = torch.Generator().manual_seed(0)
        out = torch.randn(3, 1, 5, generator=generator, dtype=torch.float64)
        lse = torch.randn(3, 2, generator=generator)[:, :1]
        data = torch.empty(15 * 2 + 3 * 4, dtype=torch.uint8)
        for begin_out, begin_lse in ((12, 0), (0, 30)):  # at 30 no float32 can start
            messages.write(out, data, begin_out, torch.bfloat16)
            messages.write(lse, data, begin_lse, torch.float32)
            target = torch.empty(3, 1, 5, dtype=torch.bfloat16), torch.empty(3, 1)
            messages.read(target[0], data, begin_out)
            messages.read(target[1], data, begin_lse)
            assert torch.equal(target[0], out.bfloat16())
            assert torch.equal(target[1], lse)

    def test_of_a_step_begin_where_nccl_moves_words_and_do_not_overlap(self) -> None:
        spec = dcp.AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=5, dtype="bfloat16")
        cluster = dcp.Cluster(devices_per_node=4)
        plan = dcp.plan(dcp.Batch([31, 9]), spec, cluster, block_size=3, baseline="allgather")
        several = padded = 0
        for program in (each for mine in plan.ranks for each in (mine.forward, mine.backward)):
            layout = messages.ProgramMessages.of(plan.blocks, program)
            for launch in program.instructions:
                if not isinstance(launch, CommLaunch):
                    continue
                step = layout.of_items(launch.sends)
                sizes = item_bytes(plan.blocks, program, launch.sends)
                end = 0
                for one in step.messages:
                    to_peer = launch.sends["peer"] == one.peer
                    assert one.begin % 16 == 0
                    assert 0 <= one.begin - end < 16
                    assert one.end - one.begin == sizes[to_peer].sum()
                    assert one.block == launch.sends["block"][to_peer][0]
                    padded += one.begin != end
                    end = one.end
                assert 0 <= step.nbytes - end < 16
                several += len(step.messages) > 1
        assert several
        assert padded

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
    @pytest.mark.parametrize("float32_partials", [False, True])
    def test_have_the_bytes_that_plans_report(self, dtype: str, float32_partials: bool) -> None:
        spec = replace(SPEC, dtype=dtype, float32_partials=float32_partials)
        blocks = plan_of(spec=spec).blocks
        dtypes = PlaneDtypes.of(spec)
        tokens, heads = int(blocks.token_length[0]), int(blocks.groups.q_count[0])
        for kind in Kind:
            rows = tokens * (1 if kind in (Kind.KV, Kind.DKV) else heads)
            narrow = {Kind.O: 1, Kind.DO: 2}.get(kind, 0)
            planes = dtypes.wire(kind)
            wide = len(planes) - narrow
            sizes = [spec.head_dim] * wide + [1] * narrow
            total = sum(
                rows * size * plane.itemsize for size, plane in zip(sizes, planes, strict=True)
            )
            assert total == blocks.data_bytes[kind, 0, 0]
