"""Weights in bins: their loads, and the tightest that whole blocks allow."""

from __future__ import annotations

import bisect
import heapq
import itertools
import operator

import numpy as np

from dcp.arrays import IntArray

_MOST_TRIES = 1000
"""Sets of weights tried for a bin."""


def pack_longest_first(weights: IntArray, bins: int) -> IntArray:
    """Bin of every weight: the heaviest first, each into the emptiest bin.

    At most 4/3 − 1/(3·bins) of the optimum (Graham 1969, longest processing time first).
    """
    return _each_to_the_roomiest(weights, np.zeros(bins, dtype=np.int64))


def _each_to_the_roomiest(weights: IntArray, rooms: IntArray) -> IntArray:
    where = np.zeros(len(weights), dtype=np.int64)
    roomiest = [(-room, index) for index, room in enumerate(rooms.tolist())]
    heapq.heapify(roomiest)
    for item in np.argsort(-weights, kind="stable").tolist():
        room, index = roomiest[0]
        where[item] = index
        heapq.heapreplace(roomiest, (room + int(weights[item]), index))
    return where


def loads(where: IntArray, weights: IntArray, bins: int) -> IntArray:
    """Sum of the weights in every bin, [bins]."""
    total = np.zeros(bins, dtype=np.int64)
    np.add.at(total, where, weights)
    return total


def tightest_load(weights: IntArray, bins: int) -> int:
    """Largest bin of the packing above, which is therefore always reachable."""
    return int(loads(pack_longest_first(weights, bins), weights, bins).max())


def pack_within(weights: IntArray, bins: int, limit: int) -> IntArray | None:
    """Bin of every weight with no bin over a limit, or None where `pack_into` finds none."""
    where = pack_into(weights, np.full(bins, limit))
    return None if (where < 0).any() else where


def pack_into(weights: IntArray, rooms: IntArray) -> IntArray:
    """Bin of every weight with no bin over its room; -1 for weights that are left over.

    Where longest first does not manage, one bin after the other is filled as well as a bounded
    search finds, with the heaviest weight that fits (minimum bin slack, Gupta and Ho 1999).
    """
    where = _each_to_the_roomiest(weights, rooms)
    if (loads(where, weights, len(rooms)) <= rooms).all():
        return where
    where[:] = -1
    left = np.argsort(-weights, kind="stable")
    for index, room in enumerate(rooms.tolist()):
        chosen = _fullest(weights[left].tolist(), room)
        where[left[chosen]] = index
        left = np.delete(left, chosen)
    return where


def _fullest(falling: list[int], limit: int) -> list[int]:
    """Which weights fill a bin best, the heaviest that fits among them."""
    ahead = [*itertools.accumulate(reversed(falling), initial=0)][::-1]
    best: list[int] = []
    best_total = 0
    chosen, total, index = list[int](), 0, 0
    for _ in range(_MOST_TRIES):
        while index < len(falling) and total + ahead[index] > best_total:
            if total + falling[index] > limit:
                index = bisect.bisect_left(falling, total - limit, index, key=operator.neg)
                continue
            chosen.append(index)
            total += falling[index]
            index += 1
        if total > best_total:
            best, best_total = chosen.copy(), total
        if best_total == limit or len(chosen) <= 1:
            break
        # Without the last one, and with none of the same weight in its place.
        last = chosen.pop()
        total -= falling[last]
        index = bisect.bisect_right(falling, -falling[last], last, key=operator.neg)
    return best
