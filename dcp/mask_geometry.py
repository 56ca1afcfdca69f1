"""One mask slice at a time: canonical form, exact area, clipping and shifting.

A slice is a row ``(q0, q1, k0, k1, lo, hi)`` of an int64 array [n, 6]. It allows the pairs
``q0 <= q < q1``, ``k0 <= k < k1``, ``lo <= k - q <= hi``. All functions are vectorised over rows
and loop over nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dcp.arrays import BoolArray, IntArray

FAR = 2**40
"""A distance beyond every token: ``lo = -FAR`` or ``hi = FAR`` leave that side open."""


def as_slices(rows: npt.ArrayLike) -> IntArray:
    """Return rows as an int64 array [n, 6]; an empty input gives [0, 6]."""
    return np.asarray(rows, dtype=np.int64).reshape(-1, 6)


def bounded(slices: npt.ArrayLike) -> IntArray:
    """Return a copy whose bounds on k - q are at most FAR, so that sums cannot overflow."""
    rows = as_slices(slices).copy()
    np.clip(rows[:, 4:], -FAR, FAR, out=rows[:, 4:])
    return rows


def tighten(slices: IntArray) -> tuple[IntArray, BoolArray]:
    """Tighten all six bounds until each is reached by an allowed pair.

    The bounds are constraints on differences of the three variables q, k and 0, and with three
    variables a shortest path has at most two edges: one simultaneous pass is the whole closure
    (Floyd-Warshall), exact over the integers.

    Args:
        slices: [..., 6].

    Returns:
        The tightened slices [..., 6], and [...] whether any pair is allowed (where none is, the
        tightened row means nothing).
    """
    q0, q1, k0, k1, lo, hi = (slices[..., column] for column in range(6))
    q_last, k_last = q1 - 1, k1 - 1
    tight = np.empty_like(slices)
    np.maximum(q0, k0 - hi, out=tight[..., 0])
    np.minimum(q1, k1 - lo, out=tight[..., 1])
    np.maximum(k0, q0 + lo, out=tight[..., 2])
    np.minimum(k1, q1 + hi, out=tight[..., 3])
    np.maximum(lo, k0 - q_last, out=tight[..., 4])
    np.minimum(hi, k_last - q0, out=tight[..., 5])
    nonempty = (q0 < q1) & (k0 < k1) & (lo <= hi)
    nonempty &= (tight[..., 0] < tight[..., 1]) & (tight[..., 2] < tight[..., 3])
    return tight, nonempty


def normalize(slices: npt.ArrayLike) -> IntArray:
    """Bring slices to canonical form and drop empty ones; the order of the others stays.

    Every bound of a canonical slice is reached by an allowed pair, so slices that allow the same
    pairs become equal rows.

    Args:
        slices: [n, 6]; bounds on k - q may be arbitrarily far outside the rectangle.

    Returns:
        [m, 6] with m <= n.
    """
    tight, nonempty = tighten(bounded(slices))
    return tight[nonempty]


def _triangle(side: IntArray) -> IntArray:
    side = np.maximum(side, 0)
    return side * (side + 1) // 2


def _pairs_up_to(rows: IntArray, cols: IntArray, diagonal: IntArray) -> IntArray:
    """Count pairs with column - row <= diagonal in a rows x cols rectangle at the origin."""
    d = np.clip(diagonal, -rows, cols)
    return _triangle(d + rows) - _triangle(d + rows - cols) - _triangle(d) + _triangle(d - cols)


def area(
    slices: npt.ArrayLike,
    q0: npt.ArrayLike,
    q1: npt.ArrayLike,
    k0: npt.ArrayLike,
    k1: npt.ArrayLike,
) -> IntArray:
    """Count the allowed pairs of each slice inside rectangles, in closed form.

    Everything broadcasts: ``area(slices[:, None], q0, q1, k0, k1)`` gives [slices, rectangles].

    Args:
        slices: [..., 6], canonical or not.
        q0: First query of the rectangles, like the other bounds broadcast against ``[...]``.
        q1: End of their queries, exclusive.
        k0: First key.
        k1: End of their keys, exclusive.

    Returns:
        Exact counts, int64; an inverted rectangle counts 0. No overflow below 2**30 tokens a side.
    """
    s = np.asarray(slices, dtype=np.int64)
    q_low, q_high = np.maximum(s[..., 0], q0), np.minimum(s[..., 1], q1)
    k_low, k_high = np.maximum(s[..., 2], k0), np.minimum(s[..., 3], k1)
    rows, cols = np.maximum(q_high - q_low, 0), np.maximum(k_high - k_low, 0)
    hi = s[..., 5]
    below = np.minimum(s[..., 4] - 1, hi)
    origin = k_low - q_low
    return _pairs_up_to(rows, cols, hi - origin) - _pairs_up_to(rows, cols, below - origin)


def size(slices: IntArray) -> IntArray:
    """Count the allowed pairs of each slice, [...] int64."""
    return area(slices, slices[..., 0], slices[..., 1], slices[..., 2], slices[..., 3])


def clip(
    slices: npt.ArrayLike,
    q0: npt.ArrayLike,
    q1: npt.ArrayLike,
    k0: npt.ArrayLike,
    k1: npt.ArrayLike,
) -> IntArray:
    """Keep what lies inside a rectangle, in absolute coordinates, canonical.

    The bounds are integers, or arrays [n] with one rectangle for each slice.
    """
    rows = as_slices(slices).copy()
    np.maximum(rows[:, 0], q0, out=rows[:, 0])
    np.minimum(rows[:, 1], q1, out=rows[:, 1])
    np.maximum(rows[:, 2], k0, out=rows[:, 2])
    np.minimum(rows[:, 3], k1, out=rows[:, 3])
    return normalize(rows)


def shift(slices: npt.ArrayLike, dq: npt.ArrayLike, dk: npt.ArrayLike) -> IntArray:
    """Move the origin to (dq, dk): pair (q, k) becomes (q - dq, k - dk).

    Both are integers, or arrays [n] with one origin for each slice.
    """
    q, k = np.asarray(dq, dtype=np.int64), np.asarray(dk, dtype=np.int64)
    return as_slices(slices) - np.stack([q, q, k, k, k - q, k - q], axis=-1)


def row_has_key(slices: npt.ArrayLike, q_len: int) -> BoolArray:
    """Tell for each of q_len query rows whether it has at least one allowed key.

    Args:
        slices: [n, 6].
        q_len: Number of query rows; slices beyond it are ignored.

    Returns:
        [q_len] bool.
    """
    rows = normalize(slices)
    starts = np.bincount(np.clip(rows[:, 0], 0, q_len), minlength=q_len + 1)
    ends = np.bincount(np.clip(rows[:, 1], 0, q_len), minlength=q_len + 1)
    return np.cumsum(starts - ends)[:q_len] > 0
