"""Inputs that broke other people's context parallelism, each named after its public report.

Every test states the right value. Reports about masks alone are in test_mask_cases.py, about
merging, processes and shards in test_runtime_cases.py, about balance in test_baselines.py.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dcp
from dcp import masks
from dcp.errors import BatchError, MaskError
from dcp.masks import Mask
from dcp.verification import attention_oracle, check_plan
from dcp.verification.local_run import check_numbers, random_inputs, run_with_gradients
from dcp.verification.tolerances import max_error


def heads(
    query: int, key: int, head_dim: int = 16, dtype: str = "float64", **others: Any
) -> dcp.AttentionSpec:
    return dcp.AttentionSpec(
        num_q_heads=query, num_kv_heads=key, head_dim=head_dim, dtype=dtype, **others
    )


def world(ranks: int) -> dcp.Cluster:
    return dcp.Cluster(devices_per_node=ranks)


def proven(
    batch: dcp.Batch, spec: dcp.AttentionSpec, ranks: int, *, block_size: int = 128, **options: Any
) -> dcp.ExecutionPlan:
    """A plan that is proven, and equal to dense attention forward and backward."""
    plan = dcp.plan(batch, spec, world(ranks), block_size=block_size, **options)
    check_plan(plan)
    check_numbers(batch, plan)
    return plan


def padded(mask: Mask, real: int, length: int) -> Mask:
    """The mask on the first tokens; the rest is padding, which sees and is seen by nothing."""
    dense = np.zeros((length, length), dtype=bool)
    dense[:real, :real] = mask.dense(real)
    return masks.from_dense(dense)


# --- lengths that do not divide ---------------------------------------------------------------


@pytest.mark.parametrize("baseline", ["zigzag", "ring", "ulysses", "usp"])
def test_transformerengine_3331_every_real_row_of_an_uneven_length_is_right(baseline: str) -> None:
    batch = dcp.Batch([698])
    plan = proven(batch, heads(4, 4), 4, baseline=baseline)
    held = [int(plan.blocks.token_length[r.home_blocks].sum()) for r in plan.ranks]
    assert sum(held) == 698
    inputs = random_inputs(batch, plan.spec)
    first, second = (run_with_gradients(plan, inputs) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_transformerengine_3331_padding_rows_are_zero_forward_and_backward() -> None:
    batch = dcp.Batch([704], mask=padded(masks.causal(), 698, 704))
    plan = proven(batch, heads(4, 4), 4, baseline="zigzag")
    results = run_with_gradients(plan, random_inputs(batch, plan.spec))
    for name in ("out", "dq", "dk", "dv"):
        assert not results[name][698:].any(), name
        assert bool(results[name][:698].any()), name


@pytest.mark.parametrize("length", [7, 8, 10])
def test_transformerengine_1930_the_last_token_of_seven_counts(length: int) -> None:
    mask = padded(masks.full(), 7, length)
    spec = heads(1, 1, 8, "float16")
    for baseline in ("zigzag", "ring"):
        plan = proven(dcp.Batch([length], mask=mask), spec, 2, baseline=baseline)
        q, k, v, _ = random_inputs(dcp.Batch([length]), spec)
        alone = attention_oracle(dcp.Batch([7], mask=masks.full()), spec, q[:7], k[:7], v[:7]).out
        assert max_error(dcp.run_local(plan, q, k, v)[:7], alone) < 2e-3


def test_transformerengine_1929_ranks_may_hold_different_numbers_of_tokens() -> None:
    plan = proven(dcp.Batch([7], mask=masks.full()), heads(1, 1), 2, baseline="zigzag")
    held = [int(plan.blocks.token_length[rank.home_blocks].sum()) for rank in plan.ranks]
    assert sorted(held) == [3, 4]


def test_pytorch_153799_one_row_in_the_last_block_has_finite_gradients() -> None:
    spec = heads(1, 1, 64, "bfloat16")
    plan = proven(dcp.Batch([1025]), spec, 2, block_size=128, scheduler="paper")
    assert plan.blocks.token_length.tolist() == [128] * 8 + [1]
    results = run_with_gradients(plan, random_inputs(dcp.Batch([1025]), spec))
    assert all(bool(torch.isfinite(x).all()) for x in results.values())


def test_ring_flash_attention_53_cumulative_lengths_must_end_at_the_tokens() -> None:
    with pytest.raises(BatchError, match=r"cu_seqlens must run from 0 to .* 8192, got .*1024"):
        dcp.Batch.from_cu_seqlens([0, 1024], total_tokens=8192)


# --- masks that must be honoured --------------------------------------------------------------


def test_pytorch_141429_a_full_mask_works_where_a_causal_one_does() -> None:
    spec = heads(1, 1, 64)
    full = proven(dcp.Batch([128], mask=masks.full()), spec, 2, baseline="zigzag")
    causal = proven(dcp.Batch([128]), spec, 2, baseline="zigzag")
    assert np.array_equal(full.placement.token_home, causal.placement.token_home)


@pytest.mark.parametrize("baseline", ["ring", "zigzag", None])
def test_accelerate_4177_a_window_is_not_widened_to_causal(baseline: str | None) -> None:
    spec = heads(2, 2)
    window = masks.causal() & masks.sliding_window(128)
    plan = proven(dcp.Batch([1024], mask=window), spec, 2, baseline=baseline)
    q, k, v, _ = random_inputs(dcp.Batch([1024]), spec)
    causal = attention_oracle(dcp.Batch([1024]), spec, q, k, v).out
    difference = (dcp.run_local(plan, q, k, v) - causal).abs().amax(dim=(1, 2))
    assert float(difference[:128].max()) < 1e-12
    assert float(difference[128:].min()) > 1e-6


def test_pytorch_188322_only_the_selected_blocks_are_computed() -> None:
    selected = [[0, 2], [1, 3], [0, 3], [2, 3]]
    blocks = np.zeros((4, 4), dtype=bool)
    for row, columns in enumerate(selected):
        blocks[row, columns] = True
    mask = masks.from_dense(np.kron(blocks, np.ones((256, 256), dtype=bool)))
    batch = dcp.Batch([1024], mask=mask)
    plan = proven(batch, heads(2, 2, 128), 2, block_size=256, scheduler="paper")
    pairs = set(zip(plan.blocks.comp_q.tolist(), plan.blocks.comp_kv.tolist(), strict=True))
    assert pairs == {(row, column) for row in range(4) for column in selected[row]}
    assert plan.blocks.comp_pairs.sum() == 8 * 256 * 256 * 2


def test_pytorch_103749_a_row_without_keys_is_zero_and_never_nan() -> None:
    allowed = np.tril(np.ones((6, 10), dtype=bool))
    allowed[5] = False
    batch = dcp.Batch([6], [10], mask=masks.from_dense(allowed))
    plan = proven(batch, heads(2, 2, 8), 2, block_size=4)
    results = run_with_gradients(plan, random_inputs(batch, plan.spec))
    assert not results["out"][5].any()
    assert not results["dq"][5].any()
    assert bool((results["lse"][5] == -torch.inf).all())
    assert not any(bool(torch.isnan(x).any()) for x in results.values())


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_transformerengine_2052_an_arbitrary_mask_is_computed_exactly(dtype: str) -> None:
    random = np.random.default_rng(0)
    arbitrary = [masks.from_dense(random.random((n, n)) < 0.3) for n in (300, 500)]
    batch = dcp.Batch([300, 500], mask=arbitrary)
    for options in ({"scheduler": "sequential"}, {"baseline": "zigzag"}):
        proven(batch, heads(2, 1, 16, dtype), 2, **options)


def test_flash_attention_282_queries_that_are_the_tail_of_the_keys_see_up_to_themselves() -> None:
    whole, tail = dcp.Batch([128]), dcp.Batch([64], [128], mask=masks.causal(offset=64))
    spec = heads(2, 2)
    plan = proven(tail, spec, 2, block_size=32)
    q, k, v, _ = random_inputs(whole, spec)
    expected = attention_oracle(whole, spec, q, k, v).out[64:]
    assert max_error(dcp.run_local(plan, q[64:], k, v), expected) < 1e-12


def test_pytorch_136232_a_mask_for_another_length_is_refused() -> None:
    made_for_4096 = masks.from_slices([[0, 4096, 0, 4096, -4096, 0]], 4096)
    with pytest.raises(MaskError, match=r"made for 4096 queries .* not for 4000"):
        dcp.Batch([4000], mask=made_for_4096)


def test_pytorch_136232_the_gradient_through_lse_is_right() -> None:
    batch, spec = dcp.Batch([500]), heads(12, 12, 64)
    plan = dcp.plan(batch, spec, world(2), block_size=128, baseline="zigzag")
    q, k, v, dout = random_inputs(batch, spec)
    dlse = torch.linspace(-1, 1, 500 * 12, dtype=torch.float64).reshape(500, 12)
    expected = attention_oracle(batch, spec, q, k, v, dout, dlse)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = dcp.run_local(plan, *leaves, return_lse=True)
    grads = torch.autograd.grad([out, lse], leaves, [dout, dlse])
    for mine, right in zip(grads, (expected.dq, expected.dk, expected.dv), strict=True):
        assert right is not None
        assert max_error(mine, right) < 1e-11


# --- heads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("query", "key"), [(9, 3), (6, 1), (7, 1), (14, 2), (12, 2)])
def test_pytorch_143117_any_ratio_of_heads_works(query: int, key: int) -> None:
    batch = dcp.Batch([5], mask=masks.full())
    for options in ({"block_size": 2}, {"baseline": "zigzag"}, {"baseline": "usp"}):
        proven(batch, heads(query, key, 64), 2, **options)


def test_prime_rl_3042_gradients_of_replicated_key_heads_are_added_up() -> None:
    plan = proven(dcp.Batch([1024]), heads(8, 2), 4, block_size=256, baseline="ulysses")
    groups = plan.blocks.groups
    assert groups.kv_head.tolist() == [0, 0, 1, 1]
    assert groups.q_count.tolist() == [2, 2, 2, 2]


def test_deepspeed_6392_heads_that_the_ranks_do_not_divide_are_dealt_unevenly() -> None:
    plan = proven(dcp.Batch([512]), heads(7, 7), 4, baseline="ulysses")
    device, group = plan.placement.comp_device, plan.blocks.comp_group
    dealt = [len(set(group[device == rank].tolist())) for rank in range(4)]
    assert dealt == [2, 2, 2, 1]


def test_torchtitan_3206_keys_are_gathered_along_tokens() -> None:
    batch = dcp.Batch([512])
    for baseline in ("allgather", "ring", "ulysses"):
        proven(batch, heads(4, 4, 24), 2, baseline=baseline)
        proven(batch, heads(6, 2, 24), 2, baseline=baseline)


# --- backward ---------------------------------------------------------------------------------


def test_transformerengine_1031_backward_runs_for_the_full_mask() -> None:
    proven(dcp.Batch([1024], mask=masks.full()), heads(2, 2), 2, baseline="ring")


@pytest.mark.parametrize("name", ["dropout", "dropout_p"])
def test_ring_flash_attention_36_dropout_is_refused(name: str) -> None:
    """It is no part of any interface, so nobody can believe that it is on."""
    plan = dcp.plan(dcp.Batch([4]), heads(1, 1), world(2))
    q, k, v, _ = random_inputs(dcp.Batch([4]), plan.spec)
    with pytest.raises(TypeError, match=name):
        dcp.run_local(plan, q, k, v, **{name: 0.1})
    with pytest.raises(TypeError, match=name):
        heads(1, 1, **{name: 0.1})


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 1e-2), ("float32", 1e-5)])
def test_megatron_lm_1464_gradients_equal_those_of_one_process(dtype: str, most: float) -> None:
    batch, spec = dcp.Batch([1024]), heads(16, 16, 64, dtype)
    inputs = random_inputs(batch, spec)
    expected = attention_oracle(batch, spec, *inputs).tensors()
    for baseline in ("zigzag", "ring"):
        plan = dcp.plan(batch, spec, world(2), block_size=256, baseline=baseline)
        results = run_with_gradients(plan, inputs)
        for name in ("dq", "dk", "dv"):
            assert relative(results[name], expected[name]) <= most, name


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("baseline", ["allgather", "zigzag"])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_ring_flash_attention_82_key_gradients_come_back_in_order(
    key_heads: int, baseline: str
) -> None:
    """The ranks hold head and tail chunks, and keys are gathered a head group at a time."""
    proven(dcp.Batch([512, 256]), heads(8, key_heads), 2, baseline=baseline)


def test_diffusers_14265_key_gradients_hold_every_ranks_queries() -> None:
    """The gradient of one rank's keys, from the queries of each rank alone and of all."""
    batch, spec = dcp.Batch([512], mask=masks.full()), heads(2, 2)
    plan = proven(batch, spec, 2, baseline="ring")
    q, k, v, dout = random_inputs(batch, spec)
    halves = [slice(0, 256), slice(256, 512)]
    whole = run_with_gradients(plan, (q, k, v, dout))
    for keys in halves:
        parts = []
        for queries in halves:
            only = torch.zeros_like(dout)
            only[queries] = dout[queries]
            parts.append(run_with_gradients(plan, (q, k, v, only))["dk"][keys])
            assert float(parts[-1].abs().max()) > 1e-3
        assert max_error(parts[0] + parts[1], whole["dk"][keys]) < 1e-12


# --- planning ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "block_size"), [(96_000, 1024), (1_000_000, 8192)])
def test_pytorch_134756_planning_needs_memory_by_blocks_not_by_pairs(
    length: int, block_size: int
) -> None:
    tracemalloc.start()
    plan = dcp.plan(
        dcp.Batch([length]),
        heads(1, 1, 128, "bfloat16"),
        world(1),
        block_size=block_size,
        scheduler="sequential",
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan.blocks.comp_pairs.sum() == length * (length + 1) // 2
    assert peak < 32e6


def test_transformerengine_3487_equal_values_give_equal_plans() -> None:
    def digest(lengths: Any) -> str:
        return dcp.plan(dcp.Batch(lengths), heads(2, 2), world(2), block_size=128).digest

    lengths = [512, 512]
    assert (
        len({digest(lengths), digest(lengths[:]), digest((512, 512)), digest(np.array(lengths))})
        == 1
    )


def test_pytorch_195563_the_block_size_that_is_asked_for_is_kept() -> None:
    plan = dcp.plan(
        dcp.Batch([4096]), heads(8, 8, 128), world(2), block_size=256, scheduler="paper"
    )
    assert plan.blocks.block_size == 256
    assert set(plan.blocks.token_length.tolist()) == {256}
