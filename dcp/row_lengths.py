"""How many keys each query sees, without a number for every query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class RowLengths:
    """Runs of queries whose rows grow, shrink or keep their length evenly, arrays [runs].

    Attributes:
        sequence: Of the run.
        first, last: Queries of it, both inclusive.
        length: Keys that the first one sees.
        slope: How many more each query sees than the one before.
    """

    sequence: IntArray
    first: IntArray
    last: IntArray
    length: IntArray
    slope: IntArray

    @classmethod
    def of(cls, slices: IntArray, sequence: IntArray) -> RowLengths:
        """Rows of masks.

        Along its queries, the keys of a slice's row grow or shrink by one or stay as many, so
        the length of a row is a sum of pieces of straight lines.

        Args:
            slices: Disjoint and canonical, in sequence coordinates, [n, 6].
            sequence: Of each slice, [n].
        """
        q0, q1, k0, k1, low, high = slices.T
        # The row of query q begins at max(k0, q + low) and ends with min(k1 - 1, q + high).
        first = np.minimum(k1 - 1, q0 + high) - np.maximum(k0, q0 + low) + 1
        last = np.minimum(k1 - 1, q1 - 1 + high) - np.maximum(k0, q1 - 1 + low) + 1
        end_stops, begin_starts = np.clip(k1 - 1 - high, q0, q1), np.clip(k0 - low, q0, q1)
        last_slope = (end_stops == q1).astype(np.int64) - (begin_starts < q1)
        nothing, one = np.zeros_like(q0), np.ones_like(q0)
        query = np.concatenate([q0, end_stops, begin_starts, q1])
        jump = np.concatenate([first, nothing, nothing, -last - last_slope])
        turn = np.concatenate([one, -one, -one, one])
        owner = np.tile(sequence, 4)

        order = np.lexsort((query, owner))
        query, jump, turn, owner = query[order], jump[order], turn[order], owner[order]
        # What a sequence's slices add they take away again, so sums may run on into the next.
        slope, level = np.cumsum(turn), np.cumsum(jump - turn * query)
        counts = np.append((np.diff(query) != 0) | (np.diff(owner) != 0), True)[: len(query)]
        query, slope, level, owner = query[counts], slope[counts], level[counts], owner[counts]
        inside = np.append(owner[1:] == owner[:-1], False)[: len(query)]
        until = np.append(query[1:], 0)[: len(query)] - 1
        query, slope, level, owner = query[inside], slope[inside], level[inside], owner[inside]
        return cls(
            sequence=owner,
            first=query,
            last=until[inside],
            length=level + slope * query,
            slope=slope,
        )

    def longest(self, count: int) -> IntArray:
        """Keys of the longest row of each of so many sequences, [count]; 0 where there is none."""
        most = np.zeros(count, dtype=np.int64)
        at_end = self.length + self.slope * (self.last - self.first)
        np.maximum.at(most, self.sequence, np.maximum(self.length, at_end))
        return most

    def at_least(self, sequence: int, least: IntArray) -> IntArray:
        """How many queries of a sequence see so many keys, [n] for [n] positive numbers."""
        begin, end = np.searchsorted(self.sequence, [sequence, sequence + 1])
        run = slice(begin, end)
        steps = (self.last - self.first)[run]
        slope, more = self.slope[run], least[:, None] - self.length[run]
        rise = np.maximum(slope, 1)
        fall = np.maximum(-slope, 1)
        growing = steps + 1 - np.clip(-(-more // rise), 0, steps + 1)
        shrinking = np.clip(-more // fall + 1, 0, steps + 1)
        level = np.where(more <= 0, steps + 1, 0)
        found = np.select([slope > 0, slope < 0], [growing, shrinking], level)
        total: IntArray = found.sum(axis=1)
        return total
