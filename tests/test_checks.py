"""Numbers that make no sense are refused by a named error, wherever they are given."""

import pytest

import dcp
from dcp import registry
from dcp.backends.greedy import Greedy
from dcp.backends.kahypar import KaHyPar
from dcp.backends.local_search import LocalSearch
from dcp.backends.mtkahypar import MtKaHyPar
from dcp.backends.paper_schedule import PaperSchedule
from dcp.baselines.usp import USP
from dcp.errors import BatchError, MaskError, SpecError
from dcp.kernels.flash_attn import FlashAttention
from dcp.kernels.triton_attention import TritonAttention
from dcp.verification import attention_oracle, check_plan
from dcp.verification.any_placement import AnyPlacement
from dcp.verification.exact import optimal_placement
from dcp.verification.fuzz import fuzz

HEADS = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8)
CLUSTER = dcp.Cluster(devices_per_node=2)


def plan(**options):
    return dcp.plan(dcp.Batch([20]), HEADS, CLUSTER, **({"block_size": 8} | options))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dcp.Limits(inter_node="x"), "limit inter_node is 'x'"),
        (lambda: dcp.Limits(inter_node=None), "limit inter_node is None"),
        (lambda: dcp.Limits(tokens=True), "limit tokens is True"),
        (lambda: dcp.Limits(tokens=10**400), "limit tokens is 10{400}; it must be finite"),
        (
            lambda: dcp.AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=8, softmax_scale="x"),
            "softmax_scale is 'x'",
        ),
        (
            lambda: dcp.AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=8, softmax_scale=0.0),
            "softmax_scale is 0.0",
        ),
        (
            lambda: dcp.AttentionSpec(
                num_q_heads=1, num_kv_heads=1, head_dim=8, float32_partials="no"
            ),
            "float32_partials is 'no'",
        ),
        (lambda: plan(budget="1"), "budget is '1'"),
        (lambda: plan(seed=0.5), "seed is 0.5"),
        (lambda: plan(seed=-1), "seed is -1"),
        (lambda: plan(seed=1 << 70), "must fit 64 bits"),
        (lambda: plan(block_size="big"), "block_size is 'big'"),
        (lambda: plan(partitioner=None), "None is no partitioner"),
        (lambda: plan(partitioner="greedy:a=1,a=2"), "'a' stands twice"),
        (lambda: plan(limits={}), "limits is {}; give a dcp.placement.Limits"),
        (lambda: dcp.plan([8, 5], HEADS, CLUSTER), r"batch is \[8, 5\]; give a dcp.batch.Batch"),
        (
            lambda: dcp.plan(dcp.Batch([8]), 8, CLUSTER),
            "heads is 8; give a dcp.batch.AttentionSpec",
        ),
        (lambda: dcp.plan(dcp.Batch([8]), HEADS, 4), "cluster is 4; give a dcp.cluster.Cluster"),
        (lambda: dcp.Cluster.preset("p4de", devices_per_node=0), "devices_per_node is 0"),
        (lambda: dcp.Cluster(devices_per_node=2, nics_per_node=4), "4 NICs a node for 2 devices"),
        (lambda: dcp.Cluster(devices_per_node=2, device=3), "device is 3; give a dcp.cluster.Dev"),
        (lambda: dcp.Cluster(devices_per_node=2, intra="fast"), "intra is 'fast'"),
        (lambda: dcp.Cluster(devices_per_node=2, inter=None), "inter is None"),
        (lambda: dcp.Cluster(devices_per_node=2, name=5), "name is 5; give a str"),
        (lambda: dcp.Cluster.preset(["p4de"]), r"preset is \['p4de'\]; legal: p4de, dgx_h100"),
        (
            lambda: dcp.AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=8, dtype=[]),
            r"dtype is \[\]; legal: float64",
        ),
        (lambda: plan(partitioner=PaperSchedule()), "PaperSchedule.* is no partitioner"),
        (lambda: plan(scheduler=Greedy()), r"Greedy\(\) is no scheduler"),
        (lambda: plan(baseline=Greedy()), r"Greedy\(\) is no baseline"),
        (lambda: plan(cost_model=Greedy()), r"Greedy\(\) is no cost_model"),
        (lambda: plan(selection={}), "selection is {}; give a dcp.selection.SelectionTable"),
        (lambda: dcp.PlanCache(max_plans="a"), "max_plans is 'a'"),
        (lambda: dcp.PlanCache(max_plans=2.5), "max_plans is 2.5"),
        (lambda: dcp.PlanCache().plan([5], HEADS, CLUSTER), r"batch is \[5\]"),
        (lambda: KaHyPar(timeout_s="x"), "timeout_s is 'x'"),
        (lambda: KaHyPar(timeout_s=1e300), r"timeout_s is 1e\+300; .* at most 1e\+06"),
        (lambda: MtKaHyPar(threads="x"), "threads is 'x'"),
        (lambda: MtKaHyPar(threads=2.5), "threads is 2.5"),
        (lambda: LocalSearch(inter_weight="x"), "inter_weight is 'x'"),
        (lambda: LocalSearch(inter_weight=[]), r"inter_weight is \[\]"),
        (lambda: TritonAttention(tile_q="x"), "tile_q is 'x'"),
        (lambda: TritonAttention(tile_k=16.0), "tile_k is 16.0"),
        (lambda: TritonAttention(tile_k=48), "tile_k is 48; legal: powers of two"),
        (lambda: FlashAttention(other=None), "other is None; give a str"),
        (lambda: AnyPlacement(seed="x"), "seed is 'x'"),
        (lambda: dcp.ContextParallel(timeout_s="x"), "timeout_s is 'x'"),
        (lambda: dcp.ContextParallel(timeout_s=float("inf")), "timeout_s is inf"),
        (lambda: dcp.ContextParallel().local_indices("p"), "plan is 'p'"),
        (lambda: dcp.run_local(None, None, None, None), "plan is None; give a dcp.execution_plan"),
        (lambda: check_plan(3), "plan is 3"),
        (lambda: attention_oracle([3], HEADS, None, None, None), r"batch is \[3\]"),
        (lambda: attention_oracle(dcp.Batch([3]), 8, None, None, None), "spec is 8"),
        (lambda: attention_oracle(dcp.Batch([3]), HEADS, None, None, None), "q is None"),
        (lambda: optimal_placement("small"), "problem is 'small'"),
        (lambda: fuzz(examples=2.5), "examples is 2.5"),
        (lambda: fuzz(examples=0), "examples is 0"),
        (lambda: fuzz(seconds="x"), "seconds is 'x'"),
        (lambda: fuzz(examples=1, first_seed=None), "first_seed is None"),
        (lambda: fuzz(examples=1, dtype="int8"), "dtype is 'int8'"),
    ],
)
def test_what_was_given_is_in_the_message(make, message):
    with pytest.raises(SpecError, match=message):
        make()


HUGE = 10**5000
"""Python refuses to write out an integer of more than 4300 digits."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plan(block_size=HUGE), "block_size is an integer of 16610 bits; it must fit 64"),
        (lambda: plan(block_size=-HUGE), "block_size is an integer of 16610 bits; it must be an"),
        (lambda: plan(seed=HUGE), "seed is an integer of 16610 bits"),
        (lambda: plan(budget=HUGE), "budget is an integer of 16610 bits; it must be positive"),
        (lambda: plan(partitioner=HUGE), "an integer of 16610 bits is no partitioner"),
        (lambda: plan(partitioner=[HUGE, 1]), r"\[an integer of 16610 bits, 1\] is no"),
        (lambda: plan(partitioner={1: HUGE}), "a dict with an integer too long to write out is"),
        (lambda: plan(keep_bytes=-HUGE), "keep_bytes is an integer of 16610 bits"),
        (lambda: dcp.plan(HUGE, HEADS, CLUSTER), "batch is an integer of 16610 bits; give a"),
        (lambda: dcp.Limits(tokens=HUGE), "limit tokens is an integer of 16610 bits"),
        (lambda: dcp.Cluster(devices_per_node=HUGE), "devices_per_node is an integer of 16610"),
        (lambda: USP(layout=HUGE), "layout is an integer of 16610 bits"),
        (lambda: KaHyPar(timeout_s=HUGE), "timeout_s is an integer of 16610 bits"),
        (lambda: LocalSearch(inter_weight=HUGE), "inter_weight is an integer of 16610 bits"),
        (lambda: TritonAttention(tile_q=HUGE), "tile_q is an integer of 16610 bits"),
        (lambda: dcp.Cluster.preset(HUGE), "preset is an integer of 16610 bits"),
        (lambda: dcp.PlanCache().plan(dcp.Batch([5]), HUGE, CLUSTER), "heads is an integer of 166"),
        (lambda: USP(ulysses_degree=HUGE), "ulysses_degree is an integer of 16610 bits"),
    ],
)
def test_of_integers_too_long_to_write_out_the_size_is_in_the_message(make, message):
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: dcp.Batch([3, HUGE]),
        lambda: dcp.Batch([3], [-HUGE]),
        lambda: dcp.Batch([3], total_tokens=HUGE),
        lambda: dcp.Batch([3], mask=HUGE),
        lambda: dcp.Batch.from_cu_seqlens([0, 3], total_tokens=HUGE),
        lambda: dcp.masks.sliding_window(HUGE),
        lambda: dcp.masks.documents([3, HUGE]),
        lambda: dcp.masks.shared_question(question_fraction=HUGE, answers=2),
        lambda: dcp.masks.shared_question(answer_lengths=HUGE),
        lambda: dcp.masks.full().slices(HUGE),
    ],
)
def test_lengths_and_masks_say_the_size_of_integers_too_long_to_write_out(make):
    with pytest.raises((BatchError, MaskError), match="an integer of 16610 bits"):
        make()


@pytest.mark.parametrize("partitioner", [*registry.names("partitioners"), "auto"])
def test_the_loosest_limits_are_legal(partitioner):
    if partitioner != "auto":
        available = registry.load("partitioners", partitioner).availability()
        if not available.available:
            pytest.skip(available.reason)
    loosest = dcp.Limits(inter_node=1e9, intra_node=1e9, device=1e9, tokens=1e9)
    made = dcp.plan(
        dcp.Batch([90, 50, 7]),
        HEADS,
        dcp.Cluster(nodes=2, devices_per_node=2),
        block_size=16,
        partitioner=partitioner,
        limits=loosest,
    )
    assert made.report().feasible
    check_plan(made)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1], [2, 3]],), "flat sequence of integers"),
        ((["a", "b"],), "flat sequence of integers"),
        ((None,), "flat sequence of integers"),
    ],
)
def test_lengths_that_are_no_lengths_are_refused(arguments, message):
    with pytest.raises(BatchError, match=message):
        dcp.Batch(*arguments)


def test_a_mask_that_is_none_is_refused():
    with pytest.raises(BatchError, match="mask is 5"):
        dcp.Batch([3], mask=5)


def test_a_preset_with_fewer_devices_has_no_more_nics_than_devices():
    assert dcp.Cluster.preset("p4de", devices_per_node=2).nics_per_node == 2
    assert dcp.Cluster.preset("p4de").nics_per_node == 4
