"""Blocks are exactly the batch: nothing lost, nothing twice, masks kept to the pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp import cutting, masks, slices
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import Kind, Side
from dcp.cutting import cut
from dcp.errors import SpecError

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, dtype="bfloat16")

any_length_masks = st.sampled_from(
    [
        masks.causal(),
        masks.full(),
        masks.sliding_window(5),
        masks.lambda_mask(2, 4),
        masks.causal_blockwise(4, 1),
        masks.causal() & ~masks.sliding_window(3),
    ]
)


@st.composite
def batches(draw):
    count = draw(st.integers(0, 3))
    lengths = draw(st.lists(st.integers(0, 24), min_size=count, max_size=count))
    mask = draw(st.lists(any_length_masks, min_size=count, max_size=count))
    if draw(st.booleans()):
        return Batch(lengths, mask=mask)
    kv_lengths = draw(st.lists(st.integers(0, 24), min_size=count, max_size=count))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    dense = [
        masks.from_dense(random.random(size) < 0.4)
        for size in zip(lengths, kv_lengths, strict=True)
    ]
    return Batch(lengths, kv_lengths, mask=dense)


def dense_from_blocks(batch, blocks, sequence):
    """The sequence's mask put together from its computation blocks, a count a (pair, group)."""
    shape = (batch.q_lengths[sequence], batch.kv_lengths[sequence], len(blocks.groups))
    counts = np.zeros(shape, dtype=int)
    for comp in np.flatnonzero(blocks.token_seq[blocks.comp_q] == sequence):
        q, kv = blocks.comp_q[comp], blocks.comp_kv[comp]
        rows, columns = blocks.token_length[q], blocks.token_length[kv]
        mask = blocks.comp_mask[comp]
        local = blocks.mask_slices[blocks.mask_ptr[mask] : blocks.mask_ptr[mask + 1]]
        allowed = slices.to_dense(local, rows, columns) if mask else np.ones((rows, columns), bool)
        assert blocks.comp_pairs[comp] == allowed.sum() > 0
        assert (mask == 0) == allowed.all()
        q0, k0 = blocks.token_start[q], blocks.token_start[kv]
        counts[q0 : q0 + rows, k0 : k0 + columns, blocks.comp_group[comp]] += allowed
    return counts


@pytest.mark.property
@given(batch=batches(), block_size=st.integers(1, 20), at_mask_edges=st.booleans())
def test_computation_blocks_cover_every_allowed_pair_once(batch, block_size, at_mask_edges):
    blocks = cut(batch, SPEC, block_size, at_mask_edges=at_mask_edges)
    for sequence in range(len(batch)):
        mask = batch.masks[sequence]
        dense = mask.dense(batch.q_lengths[sequence], batch.kv_lengths[sequence])
        expected = np.repeat(dense[:, :, None], 2, axis=2).astype(int)
        assert np.array_equal(dense_from_blocks(batch, blocks, sequence), expected)


@pytest.mark.property
@given(batch=batches(), block_size=st.integers(1, 20), at_mask_edges=st.booleans())
def test_token_blocks_cover_every_token_once_in_order(batch, block_size, at_mask_edges):
    blocks = cut(batch, SPEC, block_size, at_mask_edges=at_mask_edges)
    assert (blocks.token_length >= 1).all()
    assert (blocks.token_length <= block_size).all()
    for has, offset, lengths in (
        (blocks.has_q, blocks.q_offset, batch.q_lengths),
        (blocks.has_kv, blocks.kv_offset, batch.kv_lengths),
    ):
        base = np.cumsum([0, *lengths])
        rows = [
            np.arange(length) + base[seq] + start
            for seq, start, length in zip(
                blocks.token_seq[has], blocks.token_start[has], blocks.token_length[has],
                strict=True,
            )
        ]  # fmt: skip
        assert np.array_equal(np.concatenate([*rows, []]), np.arange(sum(lengths)))
        assert np.array_equal(offset[has], [row[0] for row in rows])


def test_only_the_last_block_of_a_sequence_is_shorter():
    blocks = cut(Batch([10, 4, 0, 3]), SPEC, 4)
    assert blocks.token_length.tolist() == [4, 4, 2, 4, 3]
    assert blocks.token_seq.tolist() == [0, 0, 0, 1, 3]


def test_no_block_crosses_a_chunk_edge():
    blocks = cut(Batch([10]), SPEC, 4, chunk_edges=lambda length: np.array([0, 1, 1, 7, length]))
    assert blocks.token_start.tolist() == [0, 1, 5, 7]
    assert blocks.token_length.tolist() == [1, 4, 2, 3]


def test_keys_that_everybody_sees_get_a_block_of_their_own():
    batch = Batch([100], mask=masks.lambda_mask(3, 10))
    assert cut(batch, SPEC, 10).token_length.tolist() == [10] * 10
    blocks = cut(batch, SPEC, 10, at_mask_edges=True)
    assert blocks.token_length.tolist() == [3, *[10] * 9, 7]


def test_a_mask_of_many_small_slices_does_not_cut_everything_to_pieces():
    mask = masks.causal_blockwise(3, 1)
    blocks = cut(Batch([400], mask=mask), SPEC, 20, at_mask_edges=True)
    assert blocks.num_token_blocks <= 20 * 1.25 + 5


def test_query_and_key_blocks_of_cross_attention_are_apart():
    blocks = cut(Batch([3], [5], mask=masks.full()), SPEC, 4)
    assert blocks.token_side.tolist() == [Side.QUERY, Side.KEY, Side.KEY]
    assert blocks.data_bytes[Kind.Q][:, 0].tolist() == [3 * 2 * 8 * 2, 0, 0]
    assert blocks.data_bytes[Kind.KV][:, 0].tolist() == [0, 4 * 2 * 8 * 2, 1 * 2 * 8 * 2]


def test_bytes_of_data_blocks_follow_the_dtype_and_o_travels_with_float32_lse():
    blocks = cut(Batch([10]), SPEC, 16)
    q_heads, dim, element = 2, 8, 2
    assert blocks.data_bytes[Kind.Q][0, 0] == 10 * q_heads * dim * element
    assert blocks.data_bytes[Kind.KV][0, 0] == 10 * 2 * dim * element
    assert blocks.data_bytes[Kind.O][0, 0] == 10 * q_heads * (dim * element + 4)
    assert blocks.data_bytes[Kind.DO][0, 0] == 10 * q_heads * (dim * element + 4 + 4)
    assert blocks.data_bytes[Kind.DQ][0, 0] == 10 * q_heads * dim * element
    assert blocks.data_bytes[Kind.DKV][0, 0] == 10 * 2 * dim * element


def test_flops_count_allowed_pairs_not_the_rectangle():
    blocks = cut(Batch([4]), SPEC, 4)
    assert blocks.comp_pairs.tolist() == [10, 10]
    assert blocks.comp_flops.tolist() == [4 * 10 * 8 * 2] * 2


def test_equal_masks_of_blocks_are_stored_once():
    blocks = cut(Batch([4096] * 4), SPEC, 64)
    assert len(blocks.mask_ptr) == 1 + 2
    assert blocks.mask_slices.tolist() == [[0, 64, 0, 64, -63, 0]]


def test_a_million_tokens_cut_into_blocks_without_a_million_of_anything():
    blocks = cut(Batch([1 << 20]), SPEC, 8192)
    assert blocks.num_token_blocks == 128
    assert blocks.comp_pairs.sum() == 2 * ((1 << 20) * ((1 << 20) + 1) // 2)


@pytest.mark.parametrize("block_size", [0, -1, 2.5, True])
def test_block_sizes_below_one_are_refused(block_size):
    with pytest.raises(SpecError, match="block_size"):
        cut(Batch([4]), SPEC, block_size)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (Batch([1 << 17]), (1 << 17) * ((1 << 17) + 1)),
        (Batch([1 << 17], mask=masks.full()), 2 << 34),
        (Batch([1 << 14], [1 << 17], mask=masks.full()), 2 << 31),
        (Batch([1 << 18], mask=masks.sliding_window(1025)), 2 * (1025 * (1 << 18) - 1025 * 512)),
    ],
    ids=["causal", "full", "cross", "window"],
)
def test_more_computation_blocks_than_can_be_planned_are_counted_and_refused(batch, count):
    with pytest.raises(
        SpecError,
        match=rf"at most 1 tokens would be at least {count} computation blocks, .* legal: "
        r'at most 268435456; take a larger block_size, or "auto"',
    ):
        cut(batch, SPEC, 1)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (Batch([1 << 30]), 357913942),
        (Batch([1] * 5 + [1 << 30]), 357913947),
        (Batch([1 << 29], [1 << 30]), 536870913),
    ],
    ids=["one", "short", "cross"],
)
def test_more_token_blocks_than_can_be_planned_are_counted_and_refused(batch, count):
    with pytest.raises(SpecError, match=f"at most 3 tokens would be at least {count} token blo"):
        cut(batch, SPEC, 3)


def test_what_has_too_many_blocks_in_any_case_is_refused_before_it_is_cut(monkeypatch):
    monkeypatch.setattr(cutting, "cut_tokens", None)
    with pytest.raises(SpecError, match=r"at least \d+ computation blocks"):
        cut(Batch([1 << 28]), SPEC, 2)


def test_what_may_be_too_many_blocks_shows_once_tokens_are_cut(monkeypatch):
    monkeypatch.setattr(cutting, "MOST_BLOCKS", 20)
    with pytest.raises(SpecError, match="at most 8 tokens would be up to 30 computation blocks"):
        cut(Batch([64], mask=masks.sliding_window(2)), SPEC, 8)


def test_many_computation_blocks_are_legal():
    assert len(cut(Batch([1 << 19] * 8), SPEC, 1024).comp_q) == 8 * 512 * 513


@pytest.mark.parametrize("size", [np.int16(300), np.int32(1024), np.int64(2**32)])
def test_block_sizes_of_numpy_are_taken_as_they_are(size):
    blocks = cut(Batch([131072]), SPEC, size)
    assert blocks.token_length.max() == min(int(size), 131072)


def test_the_block_size_given_is_the_block_size_used():
    """pytorch-195563: a block size of 256 was silently replaced by 128."""
    blocks = cut(Batch([4096]), SPEC, 256)
    assert blocks.block_size == 256
    assert set(blocks.token_length.tolist()) == {256}


def test_equal_batches_give_equal_blocks():
    """TransformerEngine-3487: a plan depends on values only, not on object identity."""
    first, second = (cut(Batch([512, 512]), SPEC, 128) for _ in range(2))
    for name in ("token_seq", "token_start", "comp_q", "comp_kv", "comp_pairs", "mask_slices"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
