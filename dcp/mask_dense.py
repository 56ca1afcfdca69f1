"""Conversion between sets of disjoint slices and dense boolean matrices, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.mask_algebra import simplify
from dcp.mask_geometry import as_slices, clip
from dcp.runs import expand_runs

_CELLS_AT_ONCE = 1 << 22


def rows_at_once(columns: int) -> int:
    """Return how many rows of a dense matrix to treat in one stripe of bounded memory."""
    return max(_CELLS_AT_ONCE // max(columns, 1), 1)


def to_dense(slices: IntArray, q_len: int, kv_len: int) -> BoolArray:
    """Write slices as a dense matrix.

    Args:
        slices: Disjoint slices [n, 6]; what lies outside the matrix is ignored.
        q_len: Rows of the matrix.
        kv_len: Columns of the matrix.

    Returns:
        [q_len, kv_len] bool, True where the pair is allowed.
    """
    dense = np.empty((q_len, kv_len), dtype=np.bool_)
    stripe = rows_at_once(kv_len)
    for top in range(0, q_len, stripe):
        bottom = min(top + stripe, q_len)
        inside = clip(slices, top, bottom, 0, kv_len)
        dense[top:bottom] = _stripe(inside, top, bottom, kv_len)
    return dense


def _stripe(slices: IntArray, top: int, bottom: int, kv_len: int) -> BoolArray:
    """Draw slices that lie inside rows [top, bottom) by the beginnings and ends of their runs."""
    owner, q = expand_runs(slices[:, 0], slices[:, 1] - slices[:, 0])
    s = slices[owner]
    width = kv_len + 1
    row = (q - top) * width
    cells = (bottom - top) * width
    begins = np.bincount(row + np.maximum(s[:, 2], q + s[:, 4]), minlength=cells)
    ends = np.bincount(row + np.minimum(s[:, 3], q + s[:, 5] + 1), minlength=cells)
    inside = np.cumsum((begins - ends).reshape(bottom - top, width), axis=1)
    return inside[:, :kv_len] > 0


def from_dense(dense: BoolArray) -> IntArray:
    """Write a dense matrix as disjoint slices, exactly.

    Args:
        dense: [q_len, kv_len] bool.

    Returns:
        Canonical disjoint slices [n, 6]. Runs of allowed keys in consecutive rows become one slice
        as long as full, causal, inverse-causal, band and their corners can describe them.
    """
    stripe = rows_at_once(dense.shape[1])
    return from_row_stripes(dense[top : top + stripe] for top in range(0, len(dense), stripe))


def from_row_stripes(stripes: Iterable[BoolArray]) -> IntArray:
    """Write a dense matrix, given as consecutive stripes of rows, as disjoint slices.

    Args:
        stripes: Boolean matrices [rows, kv_len], top to bottom, all of one width.

    Returns:
        Canonical disjoint slices [n, 6].
    """
    # Open slices, a row each: first row, its run, the last row's run, did the beginning move,
    # did the end stop.
    open_slices = np.empty((0, 7), dtype=np.int64)
    closed = [as_slices([])]
    last = -1
    for row, begin, end in _row_runs(stripes):
        if row != last + 1:
            closed.append(_close(open_slices, last))
            open_slices = open_slices[:0]
        open_slices, ended = _advance(open_slices, row, begin, end)
        closed.append(_close(ended, row - 1))
        last = row
    closed.append(_close(open_slices, last))
    return simplify(np.concatenate(closed))


def _row_runs(stripes: Iterable[BoolArray]) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Yield (row, beginnings, ends) of the runs of True of every row that has any."""
    top = 0
    for stripe in stripes:
        padded = np.zeros((len(stripe), stripe.shape[1] + 2), dtype=np.bool_)
        padded[:, 1:-1] = stripe
        row, column = np.nonzero(padded[:, 1:] != padded[:, :-1])
        rows, first = np.unique(row[::2], return_index=True)
        begins = np.split(column[::2], first[1:])
        ends = np.split(column[1::2], first[1:])
        for r, begin, end in zip(rows.tolist(), begins, ends, strict=False):
            yield top + r, begin, end
        top += len(stripe)


def _advance(
    open_slices: IntArray, row: int, begin: IntArray, end: IntArray
) -> tuple[IntArray, IntArray]:
    """Continue open slices with the runs of the next row; return (open, ended) slices.

    From row to row, the beginning of a slice's run stays and later moves by one each row, its end
    moves by one each row and later stays. Runs of one row do not touch, so each run continues at
    most one slice and each slice has at most one continuation.
    """
    fresh = np.stack([np.full_like(begin, row), begin, end, begin, end, 0 * begin, 0 * begin], 1)
    if len(open_slices) == 0:
        return fresh, open_slices
    at = np.maximum(np.searchsorted(open_slices[:, 3], begin, side="right") - 1, 0)
    before = open_slices[at]
    step_begin, step_end = begin - before[:, 3], end - before[:, 4]
    moves = (step_begin >= before[:, 5]) & (step_begin <= 1)
    stops = (step_end >= 0) & (step_end <= 1 - before[:, 6])
    joins = moves & stops & (step_begin >= 0)
    fresh[joins, :3] = before[joins, :3]
    fresh[joins, 5] = step_begin[joins]
    fresh[joins, 6] = 1 - step_end[joins]
    ended = np.ones(len(open_slices), dtype=np.bool_)
    ended[at[joins]] = False
    return fresh, open_slices[ended]


def _close(open_slices: IntArray, last: int) -> IntArray:
    """Turn open slices whose last row is given into slices."""
    row, first_begin, first_end, begin, end = open_slices.T[:5]
    after = np.full_like(row, last + 1)
    return np.stack([row, after, first_begin, end, begin - last, first_end - 1 - row], axis=1)
