"""Numbers that make no sense are refused by a named error, wherever they are given."""

import pytest

import dcp
from dcp import registry
from dcp.baselines.usp import USP
from dcp.errors import BatchError, MaskError, SpecError
from dcp.verification import check_plan

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
        (lambda: plan(limits={}), "limits is {}; give a dcp.Limits"),
        (lambda: dcp.plan([8, 5], HEADS, CLUSTER), r"batch is \[8, 5\]; give a dcp.Batch"),
        (lambda: dcp.plan(dcp.Batch([8]), 8, CLUSTER), "heads is 8; give a dcp.AttentionSpec"),
        (lambda: dcp.plan(dcp.Batch([8]), HEADS, 4), "cluster is 4; give a dcp.Cluster"),
        (lambda: dcp.Cluster.preset("p4de", devices_per_node=0), "devices_per_node is 0"),
        (lambda: dcp.Cluster(devices_per_node=2, nics_per_node=4), "4 NICs a node for 2 devices"),
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
        (lambda: plan(keep_bytes=-HUGE), "keep_bytes is an integer of 16610 bits"),
        (lambda: dcp.plan(HUGE, HEADS, CLUSTER), "batch is an integer of 16610 bits; give a"),
        (lambda: dcp.Limits(tokens=HUGE), "limit tokens is an integer of 16610 bits"),
        (lambda: dcp.Cluster(devices_per_node=HUGE), "devices_per_node is an integer of 16610"),
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
