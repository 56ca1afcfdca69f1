"""Sorting rows of integers."""

from __future__ import annotations

import math

import numpy as np

from dcp.arrays import IntArray


def row_order(*columns: IntArray) -> IntArray:
    """Order of rows by the first column, then the second and so on; rows that tie keep theirs.

    Where a whole row and its position fit one number, as they mostly do, such numbers are sorted:
    several times faster than `np.lexsort` on thousands of rows.

    Args:
        columns: One or more, [n] each.
    """
    count = len(columns[0])
    lows = [int(column.min(initial=0)) for column in columns]
    widths = [
        int(column.max(initial=0)) - low + 1 for column, low in zip(columns, lows, strict=True)
    ]
    if count * math.prod(widths) > np.iinfo(np.int64).max:
        return np.lexsort(columns[::-1])
    key = np.zeros(count, dtype=np.int64)
    for column, low, width in zip(columns, lows, widths, strict=True):
        key *= width
        key += column
        key -= low
    key *= count
    key += np.arange(count)
    key.sort()
    key %= max(count, 1)
    return key


def distinct(values: IntArray) -> IntArray:
    """Different values, ascending."""
    values = np.sort(values)
    new = np.ones(len(values), dtype=bool)
    new[1:] = values[1:] != values[:-1]
    return values[new]
