"""Weights packed into bins."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.packing import loads, pack_longest_first, pack_within, tightest_load

WEIGHTS = st.lists(st.integers(0, 60), max_size=30)


@pytest.mark.property
@given(weights=WEIGHTS, bins=st.integers(1, 6), room=st.integers(-5, 20))
def test_a_packing_within_a_limit_keeps_it_and_leaves_nothing_out(
    weights: list[int], bins: int, room: int
) -> None:
    sizes = np.array(weights, dtype=np.int64)
    limit = max(0, int(sizes.sum()) // bins + room)
    where = pack_within(sizes, bins, limit)
    if where is not None:
        assert where.shape == sizes.shape
        assert ((where >= 0) & (where < bins)).all()
        assert loads(where, sizes, bins).max() <= limit


@pytest.mark.property
@given(weights=WEIGHTS, bins=st.integers(1, 6))
def test_what_longest_first_packs_is_packed(weights: list[int], bins: int) -> None:
    sizes = np.array(weights, dtype=np.int64)
    where = pack_within(sizes, bins, tightest_load(sizes, bins))
    np.testing.assert_array_equal(where, pack_longest_first(sizes, bins))


@pytest.mark.parametrize("seed", range(50))
def test_few_weights_are_packed_as_tightly_as_can_be(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes, bins = draw.integers(1, 30, draw.integers(1, 8)), int(draw.integers(1, 4))
    every = itertools.product(range(bins), repeat=len(sizes))
    tightest = min(int(loads(np.array(one), sizes, bins).max()) for one in every)
    assert pack_within(sizes, bins, tightest) is not None
    assert pack_within(sizes, bins, tightest - 1) is None


def test_bins_are_filled_exactly_where_longest_first_overfills_one() -> None:
    sizes = np.array([5, 5, 4, 3, 3])
    assert tightest_load(sizes, 2) == 11
    where = pack_within(sizes, 2, 10)
    assert where is not None
    assert loads(where, sizes, 2).tolist() == [10, 10]


@pytest.mark.parametrize("limit", [9, 4])
def test_there_is_no_packing_below_the_mean_or_the_heaviest(limit: int) -> None:
    assert pack_within(np.array([5, 5, 4, 3, 3]), 2, limit) is None
    assert pack_within(np.array([5, 1]), 3, limit=4) is None
