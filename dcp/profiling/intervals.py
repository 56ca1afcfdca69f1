"""Sets of moments as disjoint ascending intervals, arrays [n, 2] of nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dcp.arrays import BoolArray, IntArray


def union(*sets: Iterable[tuple[int, int]] | IntArray) -> IntArray:
    """Merge intervals in any order, overlapping or not; empty ones vanish."""
    rows = [np.array(list(some), dtype=np.int64).reshape(-1, 2) for some in sets]
    both = np.concatenate([np.zeros((0, 2), dtype=np.int64), *rows])
    both = both[both[:, 0] < both[:, 1]]
    both = both[np.argsort(both[:, 0], kind="stable")]
    reach = np.maximum.accumulate(both[:, 1])
    first = np.ones(len(both), dtype=bool)
    first[1:] = both[1:, 0] > reach[:-1]
    last = np.roll(first, -1)
    return np.stack([both[first, 0], reach[last]], axis=1)


def length(intervals: IntArray) -> int:
    """Total length of disjoint intervals."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def common(a: IntArray, b: IntArray) -> int:
    """Length of what two sets of disjoint intervals have in common."""
    return length(a) + length(b) - length(union(a, b))


def without(a: IntArray, b: IntArray) -> IntArray:
    """What of the intervals a lies in none of the intervals b; both disjoint and ascending."""
    edges = np.unique(np.concatenate([a.reshape(-1), b.reshape(-1)]))
    pieces = np.stack([edges[:-1], edges[1:]], axis=1)
    kept = _covered(pieces, a) & ~_covered(pieces, b)
    return union(pieces[kept])


def _covered(pieces: IntArray, intervals: IntArray) -> BoolArray:
    """Whether each piece lies inside an interval, for pieces that cross no edge of one."""
    before = np.searchsorted(intervals[:, 0], pieces[:, 0], side="right") - 1
    ends = np.append(intervals[:, 1], np.iinfo(np.int64).min)  # -1: before all intervals
    covered: BoolArray = pieces[:, 1] <= ends[before]
    return covered
