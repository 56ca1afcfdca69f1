"""Inputs from public reports on which masks went wrong elsewhere; each test names its report."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch

from dcp import masks
from dcp import slices as slice_ops
from dcp.errors import MaskError


def test_queries_can_be_the_tail_of_the_keys() -> None:
    """Dao-AILab/flash-attention#282: queries 64..127 of 128 keys were aligned top-left."""
    tail = masks.causal(offset=64)
    expected = np.tril(np.ones((128, 128), dtype=np.bool_))[64:]
    np.testing.assert_array_equal(tail.dense(64, 128), expected)
    np.testing.assert_array_equal(tail.dense(64, 128).sum(axis=1), np.arange(65, 129))
    # The same rows cut out of the whole mask.
    cut = slice_ops.clip(masks.causal().slices(128), 64, 128, 0, 128)
    np.testing.assert_array_equal(slice_ops.shift(cut, 64, 0), tail.slices(64, 128))


def test_top_left_alignment_is_what_causal_means_without_an_offset() -> None:
    """Dao-AILab/flash-attention#282: the other reading stays available and is the default."""
    visible = masks.causal().dense(64, 128).sum(axis=1)
    np.testing.assert_array_equal(visible, np.arange(1, 65))


SELECTED = [[0, 2], [1, 3], [0, 3], [2, 3]]
BLOCK = 256


def test_lists_of_blocks_are_a_mask() -> None:
    """pytorch/pytorch#188322: sparsity given as block lists alone was ignored."""
    rows = [
        [q * BLOCK, (q + 1) * BLOCK, k * BLOCK, (k + 1) * BLOCK, -slice_ops.FAR, slice_ops.FAR]
        for q, keys in enumerate(SELECTED)
        for k in keys
    ]
    mask = masks.from_slices(rows, 4 * BLOCK)
    chosen = np.zeros((4, 4), dtype=np.bool_)
    for q, keys in enumerate(SELECTED):
        chosen[q, keys] = True
    expected = chosen.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)
    np.testing.assert_array_equal(mask.dense(4 * BLOCK), expected)

    edges = np.arange(0, 4 * BLOCK, BLOCK)
    q0, k0 = edges[:, None], edges
    counts = slice_ops.area(mask.slices(4 * BLOCK)[:, None, None], q0, q0 + BLOCK, k0, k0 + BLOCK)
    np.testing.assert_array_equal(counts.sum(axis=0), chosen * BLOCK**2)


def test_lists_of_blocks_can_be_given_as_a_mask_mod() -> None:
    """pytorch/pytorch#188322: the same sparsity as FlexAttention users write it."""
    chosen = torch.zeros(4, 4, dtype=torch.bool)
    for q, keys in enumerate(SELECTED):
        chosen[q, keys] = True
    mask = masks.from_mask_mod(lambda b, h, q, k: chosen[q // BLOCK, k // BLOCK], 4 * BLOCK)
    assert mask.area(4 * BLOCK) == 8 * BLOCK**2
    assert len(mask.slices(4 * BLOCK)) <= 8


def test_a_mask_for_another_length_is_refused() -> None:
    """pytorch/pytorch#136232: a block mask made for 4096 met an input of 4000."""
    made = masks.from_mask_mod(lambda b, h, q, k: q >= k, 4096)
    with pytest.raises(MaskError, match="made for 4096 queries and 4096 keys, not for 4000 and 4"):
        made.slices(4000)
    assert made.area(4096) == masks.causal().area(4096)
    assert masks.causal().area(4000) == 4000 * 4001 // 2


@pytest.mark.parametrize("length", [300, 500])
@pytest.mark.parametrize("density", [0.02, 0.5, 0.98])
def test_an_arbitrary_mask_is_exact(length: int, density: float) -> None:
    """NVIDIA/TransformerEngine#2052: arbitrary boolean masks were not supported."""
    dense = np.random.default_rng(length).random((length, length)) < density
    dense[length // 2] = False
    mask = masks.from_dense(dense)
    np.testing.assert_array_equal(mask.dense(length), dense)
    assert mask.area(length) == dense.sum()
    has_key = slice_ops.row_has_key(mask.slices(length), length)
    np.testing.assert_array_equal(has_key, dense.any(axis=1))
    assert not has_key[length // 2]


def closed_form(mask: masks.Mask, length: int) -> int:
    """Cut the sequence into blocks of 1024 and count the pairs of each row of blocks."""
    start = np.arange(0, length, 1024)
    rows = mask.slices(length)[:, None]
    return int(slice_ops.area(rows, start, start + 1024, 0, length).sum())


@pytest.mark.parametrize("length", [96_000, 1 << 20])
@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        (masks.causal(), lambda n: n * (n + 1) // 2),
        (masks.sliding_window(4096), lambda n: 4096 * n - 4096 * 4095 // 2),
        (masks.lambda_mask(64, 4032), lambda n: 4096 * n - 4096 * 4095 // 2),
        (~masks.causal(), lambda n: n * (n - 1) // 2),
    ],
    ids=["causal", "window", "lambda", "anti-causal"],
)
def test_long_masks_cost_no_memory_and_no_time(
    length: int, mask: masks.Mask, pairs: Callable[[int], int]
) -> None:
    """pytorch/pytorch#134756: the dense length x length mask was built first."""
    tracemalloc.start()
    assert closed_form(mask, length) == mask.area(length) == pairs(length)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4_000_000

    fastest_s = min(timed(lambda: mask.area(length)) for _ in range(20))
    assert fastest_s < 0.01, "some tens of microseconds are usual"


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def test_a_window_and_causal_is_not_causal() -> None:
    """huggingface/accelerate#4177: any mask was replaced by causal."""
    mask = masks.causal() & masks.sliding_window(128)
    differs = (mask.dense(1024) != masks.causal().dense(1024)).any(axis=1)
    np.testing.assert_array_equal(differs, np.arange(1024) >= 128)


def test_a_fully_masked_row_is_seen() -> None:
    """pytorch/pytorch#103749: rows 0-4 causal over 10 keys, row 5 without any key."""
    mask = masks.from_slices([[0, 5, 0, 10, -slice_ops.FAR, 0]], 6, 10)
    has_key = slice_ops.row_has_key(mask.slices(6, 10), 6)
    assert has_key.tolist() == [True] * 5 + [False]


def test_padding_is_rows_and_keys_outside_every_slice() -> None:
    """NVIDIA/TransformerEngine#3331: 698 tokens in 704 rows lost real keys at the boundaries."""
    real = masks.from_slices([[0, 698, 0, 698, -slice_ops.FAR, slice_ops.FAR]], 704)
    mask = masks.causal() & real
    assert mask.area(704) == masks.causal().area(698)
    has_key = slice_ops.row_has_key(mask.slices(704), 704)
    np.testing.assert_array_equal(has_key, np.arange(704) < 698)


def test_documents_count_their_own_pairs() -> None:
    """pytorch/pytorch#189902: documents of 4 and 12 tokens have 88 causal pairs."""
    assert masks.documents([4, 12]).area(16) == 10 + 78 == 88
