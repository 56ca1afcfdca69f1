"""Batches and head layouts: what is legal, and what the errors say."""

import pytest

from dcp import masks
from dcp.batch import AttentionSpec, Batch
from dcp.errors import BatchError, MaskError, SpecError


def test_one_mask_serves_every_sequence_of_a_batch():
    batch = Batch([5, 0, 3], mask=masks.causal())
    assert len(batch) == 3
    assert batch.num_q_tokens == batch.num_kv_tokens == 8
    assert [len(batch.sequence_slices(index)) for index in range(3)] == [1, 0, 1]


def test_a_batch_may_mix_masks():
    batch = Batch([4, 4], mask=[masks.causal(), masks.full()])
    assert batch.masks[0].area(4) == 10
    assert batch.masks[1].area(4) == 16


def test_a_sequence_may_have_keys_and_no_queries():
    batch = Batch([0, 2], [7, 3], mask=masks.full())
    assert batch.is_cross
    assert (batch.num_q_tokens, batch.num_kv_tokens) == (2, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([3, -1],), "q_lengths\\[1\\] is -1"),
        (([3.5],), "flat sequence of integers"),
        (([[1, 2]],), "flat sequence of integers"),
        (([1, 2], [1]), "2 query lengths but 1 key lengths"),
    ],
)
def test_lengths_that_make_no_sense_are_refused_by_name(arguments, message):
    with pytest.raises(BatchError, match=message):
        Batch(*arguments)


def test_masks_must_be_one_or_one_a_sequence():
    with pytest.raises(BatchError, match="got 1 masks"):
        Batch([1, 2], mask=[masks.causal()])
    with pytest.raises(BatchError, match="str"):
        Batch([1], mask=["causal"])


def test_a_mask_bound_to_other_lengths_is_refused_when_the_batch_is_made():
    with pytest.raises(MaskError):
        Batch([5], mask=masks.from_slices([[0, 4, 0, 4, -3, 0]], 4, 4))


def test_lengths_that_do_not_add_up_to_the_tensors_are_refused():
    with pytest.raises(BatchError, match="add up to 6 tokens but the tensors hold 8"):
        Batch([2, 4], total_tokens=8)


def test_cumulative_lengths_that_end_elsewhere_are_refused():
    """ring-flash-attention-53: hand-written cu_seqlens stayed behind a longer benchmark."""
    assert Batch.from_cu_seqlens([0, 3, 8], total_tokens=8).q_lengths == (3, 5)
    with pytest.raises(BatchError, match="number of tokens 8192"):
        Batch.from_cu_seqlens([0, 1024], total_tokens=8192)
    with pytest.raises(BatchError, match="is -1"):
        Batch.from_cu_seqlens([0, 3, 2, 4], total_tokens=4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_q_heads": 0}, "num_q_heads is 0"),
        ({"num_q_heads": True}, "num_q_heads is True"),
        ({"num_kv_heads": 3}, "8 query heads do not divide into 3 key heads"),
        ({"head_dim": -4}, "head_dim is -4"),
        ({"dtype": "int8"}, "legal: float64, float32, bfloat16, float16"),
        ({"softmax_scale": float("nan")}, "must be positive and finite"),
    ],
)
def test_illegal_head_layouts_are_refused_by_name(fields, message):
    legal = {"num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64}
    with pytest.raises(SpecError, match=message):
        AttentionSpec(**(legal | fields))


def test_partials_accumulate_in_float32_at_least():
    half = AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=8, dtype="float16")
    double = AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=8, dtype="float64")
    assert (half.accumulator_dtype, double.accumulator_dtype) == ("float32", "float64")
    assert half.wire_partial_dtype == "float16"
    wide = AttentionSpec(
        num_q_heads=1, num_kv_heads=1, head_dim=8, dtype="float16", float32_partials=True
    )
    assert wide.wire_partial_dtype == "float32"
