"""Runs of consecutive integers, written out: what replaces a loop over ranges."""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray


def expand_runs(first: IntArray, count: IntArray) -> tuple[IntArray, IntArray]:
    """Write runs out, one after another.

    Args:
        first: First number of each run, [runs].
        count: How many numbers it has, 0 or more, [runs].

    Returns:
        The run of every number, and the numbers first, first + 1, ..., [sum of count] each.
    """
    run = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    return run, np.arange(len(run)) + (first - before)[run]
