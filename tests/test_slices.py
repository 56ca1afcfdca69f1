"""The slice algebra equals the same algebra on dense matrices."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dcp import slices as slice_ops
from dcp.arrays import BoolArray, IntArray

pytestmark = pytest.mark.property

Q_LEN, KV_LEN = 13, 17


def drawn(rows: IntArray, q_len: int = Q_LEN, kv_len: int = KV_LEN) -> BoolArray:
    """Draw slices by their definition, pair by pair."""
    q, k = np.arange(q_len)[:, None], np.arange(kv_len)
    dense = np.zeros((q_len, kv_len), dtype=np.bool_)
    for q0, q1, k0, k1, lo, hi in rows.tolist():
        dense |= (q0 <= q) & (q < q1) & (k0 <= k) & (k < k1) & (lo <= k - q) & (k - q <= hi)
    return dense


def one_slice() -> st.SearchStrategy[IntArray]:
    """Any row, canonical or not, possibly inverted or empty."""
    q, k = st.integers(0, Q_LEN), st.integers(0, KV_LEN)
    d = st.one_of(
        st.integers(-Q_LEN - 2, KV_LEN + 2), st.sampled_from([-slice_ops.FAR, slice_ops.FAR])
    )
    return st.tuples(q, q, k, k, d, d).map(slice_ops.as_slices)


def wide_slice() -> st.SearchStrategy[IntArray]:
    """A row whose bounds are in order, often open along k - q: most of them are not empty."""

    def ordered(low: int, high: int) -> st.SearchStrategy[list[int]]:
        return st.lists(st.integers(low, high), min_size=2, max_size=2, unique=True).map(sorted)

    d = st.one_of(st.just([-slice_ops.FAR, slice_ops.FAR]), ordered(-Q_LEN, KV_LEN))
    return st.tuples(ordered(0, Q_LEN), ordered(0, KV_LEN), d).map(slice_ops.as_slices)


def dense_masks(q_len: int = Q_LEN, kv_len: int = KV_LEN) -> st.SearchStrategy[BoolArray]:
    return hnp.arrays(np.bool_, (q_len, kv_len))


@st.composite
def slice_sets(draw: st.DrawFn) -> IntArray:
    """Disjoint slices: random ones less those before them, strips, or a random matrix."""
    kind = draw(st.sampled_from(["random", "strips", "matrix"]))
    if kind == "matrix":
        return slice_ops.from_dense(draw(dense_masks()))
    if kind == "strips":
        return draw(strips())
    rows = slice_ops.as_slices([])
    for row in draw(st.lists(wide_slice(), max_size=6)):
        rows = np.concatenate([rows, slice_ops.subtract(row, rows)])
    return rows


@st.composite
def strips(draw: st.DrawFn) -> IntArray:
    """Slices side by side along q, k or k - q, each cut anew along the others."""
    axis = draw(st.integers(0, 2))
    start = (0, 0, -Q_LEN)[axis]
    edges = sorted(draw(st.sets(st.integers(start, KV_LEN), max_size=8)))
    rows = [draw(wide_slice())[0] for _ in edges[1:]]
    for row, low, high in zip(rows, edges, edges[1:], strict=False):
        row[2 * axis : 2 * axis + 2] = low, high - (axis == 2)
    return slice_ops.clip(slice_ops.as_slices([row.tolist() for row in rows]), 0, Q_LEN, 0, KV_LEN)


def assert_equals(rows: IntArray, dense: BoolArray) -> None:
    """Check that disjoint canonical slices allow exactly what a matrix allows."""
    np.testing.assert_array_equal(drawn(rows, *dense.shape), dense)
    assert slice_ops.size(rows).sum() == dense.sum(), "slices overlap"
    np.testing.assert_array_equal(slice_ops.normalize(rows), rows)


@given(one_slice())
def test_canonical_slices_allow_the_same_pairs(row: IntArray) -> None:
    assert_equals(slice_ops.normalize(row), drawn(row))


@given(one_slice())
def test_every_bound_of_a_canonical_slice_is_reached(row: IntArray) -> None:
    canonical = slice_ops.normalize(row)
    q, k = np.nonzero(drawn(row))
    if len(q) == 0:
        assert len(canonical) == 0
    else:
        d = k - q
        reached = [q.min(), q.max() + 1, k.min(), k.max() + 1, d.min(), d.max()]
        assert canonical.tolist() == [reached]


@given(one_slice(), one_slice())
def test_slices_that_allow_the_same_pairs_become_equal_rows(a: IntArray, b: IntArray) -> None:
    same = np.array_equal(drawn(a), drawn(b))
    assert np.array_equal(slice_ops.normalize(a), slice_ops.normalize(b)) == same


def test_bounds_at_the_end_of_int64_do_not_overflow() -> None:
    far = np.iinfo(np.int64)
    rows = np.array([[0, 5, 0, 5, far.min, far.max]])
    assert slice_ops.normalize(rows).tolist() == [[0, 5, 0, 5, -4, 4]]
    assert slice_ops.overlapping(np.concatenate([rows, rows])) == (0, 1)


@given(slice_sets(), st.lists(st.tuples(*[st.integers(-2, 20)] * 4), min_size=1, max_size=5))
def test_area_counts_the_pairs_of_any_rectangle(
    rows: IntArray, rectangles: list[tuple[int, ...]]
) -> None:
    counts = slice_ops.area(rows[:, None], *np.array(rectangles).T)
    assert counts.shape == (len(rows), len(rectangles))
    for n, (q0, q1, k0, k1) in enumerate(rectangles):
        inside = drawn(slice_ops.as_slices([q0, q1, k0, k1, -slice_ops.FAR, slice_ops.FAR]))
        expected = [(drawn(row[None]) & inside).sum() for row in rows]
        assert counts[:, n].tolist() == expected


@given(one_slice())
def test_area_needs_no_canonical_form(row: IntArray) -> None:
    assert slice_ops.area(row, 0, Q_LEN, 0, KV_LEN).tolist() == [drawn(row).sum()]


def test_area_is_exact_for_four_million_tokens() -> None:
    n = 4 << 20
    causal = slice_ops.as_slices([0, n, 0, n, -slice_ops.FAR, 0])
    assert slice_ops.area(causal, 0, n, 0, n).tolist() == [n * (n + 1) // 2]
    assert slice_ops.area(causal, n - 10, n, 0, n).tolist() == [10 * n - 45]


@given(slice_sets(), st.tuples(*[st.integers(-2, 20)] * 4))
def test_clip_keeps_what_is_inside_the_rectangle(
    rows: IntArray, rectangle: tuple[int, int, int, int]
) -> None:
    inside = drawn(slice_ops.as_slices([*rectangle, -slice_ops.FAR, slice_ops.FAR]))
    assert_equals(slice_ops.clip(rows, *rectangle), drawn(rows) & inside)


@given(slice_sets(), st.integers(0, 5), st.integers(0, 5))
def test_shift_moves_the_origin(rows: IntArray, dq: int, dk: int) -> None:
    inside = slice_ops.clip(rows, dq, Q_LEN, dk, KV_LEN)
    assert_equals(slice_ops.shift(inside, dq, dk), drawn(rows)[dq:, dk:])
    np.testing.assert_array_equal(slice_ops.shift(slice_ops.shift(rows, dq, dk), -dq, -dk), rows)


def test_clip_and_shift_take_one_rectangle_a_slice() -> None:
    rows = slice_ops.as_slices([[0, 8, 0, 8, -7, 0]] * 2)
    start, stop = np.array([0, 4]), np.array([4, 8])
    blocks = slice_ops.clip(rows, start, stop, start, stop)
    assert blocks[:, :4].tolist() == [[0, 4, 0, 4], [4, 8, 4, 8]]
    assert slice_ops.shift(blocks, start, start).tolist() == [[0, 4, 0, 4, -3, 0]] * 2


# Cuts at the border of a part are rare, so draw more than elsewhere.
@settings(max_examples=6 * settings().max_examples)
@given(slice_sets(), slice_sets())
def test_set_operations_equal_the_dense_ones(a: IntArray, b: IntArray) -> None:
    x, y = drawn(a), drawn(b)
    assert_equals(slice_ops.intersect(a, b), x & y)
    assert_equals(slice_ops.subtract(a, b), x & ~y)
    assert_equals(slice_ops.union(a, b), x | y)
    assert_equals(slice_ops.complement(a, Q_LEN, KV_LEN), ~x)


@pytest.mark.parametrize("narrow", [(0, 1), (2, 3), (4, 5)], ids=["rows", "columns", "bands"])
@given(st.integers(0, 2**32 - 1))
def test_joining_many_slices_finds_what_comparing_all_finds(
    narrow: tuple[int, int], seed: int
) -> None:
    # 60 slices a side are joined by strips; 32 and fewer would be compared one by one.
    a, b = (many_slices(np.random.default_rng([seed, side]), narrow) for side in (0, 1))
    i, j = slice_ops.overlaps(a, b)
    found = np.zeros((len(a), len(b)), dtype=np.int64)
    np.add.at(found, (i, j), 1)
    x, y = (np.array([drawn(row[None]).ravel() for row in rows], dtype=int) for rows in (a, b))
    np.testing.assert_array_equal(found, (x @ y.T > 0).astype(int))


def many_slices(rng: np.random.Generator, narrow: tuple[int, int]) -> IntArray:
    """Make canonical slices, which may overlap, most of them narrow along one axis."""
    rows = np.sort(rng.integers(0, [Q_LEN, KV_LEN, KV_LEN], (2, 60, 3)), axis=0)
    rows[:, :, 2] -= KV_LEN // 2
    rows = rows.transpose(1, 2, 0).reshape(60, 6)
    low, high = narrow
    rows[:50, high] = rows[:50, low] + 1
    rows[:, [1, 3]] += 1
    return slice_ops.clip(rows, 0, Q_LEN, 0, KV_LEN)


@given(st.lists(one_slice(), max_size=6))
def test_overlapping_finds_two_slices_that_share_a_pair(rows: list[IntArray]) -> None:
    stacked = slice_ops.as_slices([*rows])
    found = slice_ops.overlapping(stacked)
    if found is None:
        assert slice_ops.area(stacked, 0, Q_LEN, 0, KV_LEN).sum() == drawn(stacked).sum()
    else:
        i, j = found
        assert i < j
        assert (drawn(stacked[i][None]) & drawn(stacked[j][None])).any()


@given(slice_sets())
def test_simplify_keeps_the_pairs_and_does_not_add_slices(rows: IntArray) -> None:
    simple = slice_ops.simplify(rows)
    assert_equals(simple, drawn(rows))
    assert len(simple) <= len(slice_ops.normalize(rows))


@given(slice_sets(), st.data())
def test_simplify_undoes_a_cut(rows: IntArray, data: st.DataObject) -> None:
    whole = slice_ops.as_slices(rows[:1])
    at = data.draw(st.integers(-Q_LEN, KV_LEN))
    axis = data.draw(st.integers(0, 2))
    before, after = whole.copy(), whole.copy()
    before[:, 2 * axis + 1] = np.minimum(before[:, 2 * axis + 1], at - (axis == 2))
    after[:, 2 * axis] = np.maximum(after[:, 2 * axis], at)
    np.testing.assert_array_equal(slice_ops.simplify(np.concatenate([before, after])), whole)


@given(st.integers(0, 20), st.integers(0, 20), st.data())
def test_dense_round_trip(q_len: int, kv_len: int, data: st.DataObject) -> None:
    dense = data.draw(dense_masks(q_len, kv_len))
    rows = slice_ops.from_dense(dense)
    assert_equals(rows, dense)
    np.testing.assert_array_equal(slice_ops.to_dense(rows, q_len, kv_len), dense)


@given(slice_sets(), st.integers(0, 20), st.integers(0, 20))
def test_to_dense_draws_the_slices_inside_the_matrix(
    rows: IntArray, q_len: int, kv_len: int
) -> None:
    np.testing.assert_array_equal(
        slice_ops.to_dense(rows, q_len, kv_len), drawn(rows, q_len, kv_len)
    )


@given(one_slice())
def test_the_matrix_of_one_slice_is_read_as_one_slice(row: IntArray) -> None:
    np.testing.assert_array_equal(slice_ops.from_dense(drawn(row)), slice_ops.normalize(row))


@given(dense_masks(), st.lists(st.integers(0, Q_LEN), max_size=4))
def test_stripes_are_read_like_the_whole_matrix(dense: BoolArray, cuts: list[int]) -> None:
    stripes = np.split(dense, sorted(cuts))
    np.testing.assert_array_equal(slice_ops.from_row_stripes(stripes), slice_ops.from_dense(dense))


@given(slice_sets(), st.integers(0, 20))
def test_row_has_key_finds_the_rows_without_keys(rows: IntArray, q_len: int) -> None:
    expected = drawn(rows, q_len).any(axis=1)
    np.testing.assert_array_equal(slice_ops.row_has_key(rows, q_len), expected)


def test_documents_can_be_subtracted_in_few_slices() -> None:
    n, length = 500, 1000
    start = np.arange(n) * length
    rows = np.stack([start, start + length] * 2 + [np.full(n, 1 - length), 0 * start], axis=1)
    rest = slice_ops.complement(rows, n * length, n * length)
    assert slice_ops.size(rest).sum() == (n * length) ** 2 - n * length * (length + 1) // 2
    assert len(rest) == n, "one slice above the diagonal, one left of each document but the first"
    np.testing.assert_array_equal(slice_ops.complement(rest, n * length, n * length), rows)


def test_a_large_random_matrix_is_read_quickly() -> None:
    dense = np.random.default_rng(0).random((2000, 2000)) < 0.5
    begin = time.perf_counter()
    rows = slice_ops.from_dense(dense)
    assert time.perf_counter() - begin < 30, "some seconds are usual"
    np.testing.assert_array_equal(slice_ops.to_dense(rows, 2000, 2000), dense)
