"""Weights in bins: their loads, and the tightest that whole blocks allow."""

from __future__ import annotations

import heapq

import numpy as np

from dcp.arrays import IntArray


def pack_longest_first(weights: IntArray, bins: int) -> IntArray:
    """Bin of every weight: the heaviest first, each into the emptiest bin.

    At most 4/3 − 1/(3·bins) of the optimum (Graham 1969, longest processing time first).
    """
    where = np.zeros(len(weights), dtype=np.int64)
    loads = [(0, index) for index in range(bins)]
    for item in np.argsort(-weights, kind="stable").tolist():
        load, index = loads[0]
        where[item] = index
        heapq.heapreplace(loads, (load + int(weights[item]), index))
    return where


def loads(where: IntArray, weights: IntArray, bins: int) -> IntArray:
    """Sum of the weights in every bin, [bins]."""
    total = np.zeros(bins, dtype=np.int64)
    np.add.at(total, where, weights)
    return total


def tightest_load(weights: IntArray, bins: int) -> int:
    """Largest bin of the packing above, which is therefore always reachable."""
    return int(loads(pack_longest_first(weights, bins), weights, bins).max())
