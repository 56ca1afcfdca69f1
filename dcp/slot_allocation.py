"""Sharing an arena: slots that never overlap, reused once their content is dead."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from dcp.arrays import IntArray


class ArenaSlots(NamedTuple):
    """Slot of every content, [n], and the arena's slots: offset and size in rows, [slots]."""

    slot: IntArray
    offset: IntArray
    size: IntArray

    @property
    def rows(self) -> int:
        """Rows of the whole arena."""
        return int(self.size.sum())


def allocate(birth: IntArray, death: IntArray, rows: IntArray) -> ArenaSlots:
    """Give every content a slot for its life; the smallest free slot that fits is reused.

    Args:
        birth, death: First and last time of each content, inclusive, [n], in order of birth.
        rows: Rows that each content needs, [n].
    """
    slot = np.zeros(len(birth), dtype=np.int64)
    sizes: list[int] = []
    free: list[tuple[int, int]] = []  # (size, slot), ascending
    busy: list[tuple[int, int]] = []  # heap of (death, slot)
    lives = zip(birth.tolist(), death.tolist(), rows.tolist(), strict=True)
    for index, (begin, end, need) in enumerate(lives):
        while busy and busy[0][0] < begin:
            released = heappop(busy)[1]
            insort(free, (sizes[released], released))
        position = bisect_left(free, (need, -1))
        if position < len(free):
            chosen = free.pop(position)[1]
        else:
            chosen = len(sizes)
            sizes.append(need)
        slot[index] = chosen
        heappush(busy, (end, chosen))
    size = np.array(sizes, dtype=np.int64)
    return ArenaSlots(slot, np.cumsum(size) - size, size)
