"""Set operations on sets of disjoint mask slices.

Inputs and outputs are arrays [n, 6] of disjoint slices; outputs are canonical, merged where
neighbours form one slice, and sorted by (q0, k0).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.mask_geometry import bounded, normalize, size, tighten
from dcp.runs import expand_runs

_COUPLES_AT_ONCE = 1 << 18
_FEW_COUPLES = 1 << 10
_HIGH = (1, 3, 5)


def _meet(a: IntArray, b: IntArray) -> tuple[IntArray, BoolArray]:
    """Intersect slices elementwise; return canonical rows and which of them are not empty."""
    both = np.maximum(a, b)
    both[..., _HIGH] = np.minimum(a[..., _HIGH], b[..., _HIGH])
    return tighten(both)


def _chunks(first: IntArray, count: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Expand runs like ``expand_runs``, a bounded number of entries at a time."""
    total = np.cumsum(count)
    begin = 0
    while begin < len(count):
        base = total[begin - 1] if begin else 0
        end = max(int(np.searchsorted(total, base + _COUPLES_AT_ONCE, side="right")), begin + 1)
        owner, index = expand_runs(first[begin:end], count[begin:end])
        yield owner + begin, index
        begin = end


def _bounds(slices: IntArray, axis: int) -> tuple[IntArray, IntArray]:
    """Half-open bounds of slices along q (0), k (1) or k - q (2)."""
    return slices[:, 2 * axis], slices[:, 2 * axis + 1] + (axis == 2)


class _StripJoin:
    """Couples (i, j) of slices a[i], b[j] that overlap along two axes.

    The first axis is cut into strips about as high as the mean slice, so a slice lies in two
    strips on average; in each strip the intervals along the second axis are joined by sorting.
    """

    def __init__(self, a: IntArray, b: IntArray, strip_axis: int, axis: int) -> None:
        bounds = [_bounds(slices, strip_axis) for slices in (a, b)]
        extent = sum(int((high - low).sum()) for low, high in bounds)
        self.height = max(extent // (len(a) + len(b)), 1)
        self.a_low, self.b_low = bounds[0][0], bounds[1][0]
        self.a_owner, a_strip = self._strips(*bounds[0])
        self.b_owner, b_strip = self._strips(*bounds[1])
        self.a_strip = a_strip
        (a0, a1), (b0, b1) = _bounds(a, axis), _bounds(b, axis)
        base = min(a0.min(), b0.min())
        scale = max(a1.max(), b1.max()) - base + 1
        a_origin, b_origin = a_strip * scale - base, b_strip * scale - base
        a_begin, b_begin = a_origin + a0[self.a_owner], b_origin + b0[self.b_owner]
        self.a_order, self.b_order = np.argsort(a_begin), np.argsort(b_begin)
        # Two intervals overlap where one of them begins inside the other.
        self.b_inside = _begins_within(
            b_begin[self.b_order], a_begin, a_origin + a1[self.a_owner], "left"
        )
        self.a_inside = _begins_within(
            a_begin[self.a_order], b_begin, b_origin + b1[self.b_owner], "right"
        )

    def _strips(self, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
        first = low // self.height
        return expand_runs(first, (high - 1) // self.height - first + 1)

    def __len__(self) -> int:
        """Count the couples, those that share several strips more than once."""
        return int(self.b_inside[1].sum() + self.a_inside[1].sum())

    def couples(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield every couple once, a bounded number at a time."""
        for a_entry, position in _chunks(*self.b_inside):
            yield self._in_first_common_strip(a_entry, self.b_order[position])
        for b_entry, position in _chunks(*self.a_inside):
            yield self._in_first_common_strip(self.a_order[position], b_entry)

    def _in_first_common_strip(
        self, a_entry: IntArray, b_entry: IntArray
    ) -> tuple[IntArray, IntArray]:
        i, j = self.a_owner[a_entry], self.b_owner[b_entry]
        first = np.maximum(self.a_low[i], self.b_low[j]) // self.height
        keep = first == self.a_strip[a_entry]
        return i[keep], j[keep]


def _begins_within(
    begins: IntArray, low: IntArray, high: IntArray, side: Literal["left", "right"]
) -> tuple[IntArray, IntArray]:
    """Return first position and number of sorted begins in [low, high), or (low, high)."""
    first = np.searchsorted(begins, low, side=side)
    return first, np.maximum(np.searchsorted(begins, high, side="left") - first, 0)


def _candidates(a: IntArray, b: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield index couples (i, j), among them all whose slices overlap."""
    if len(a) * len(b) <= _FEW_COUPLES:
        yield (np.repeat(np.arange(len(a)), len(b)), np.tile(np.arange(len(b)), len(a)))
        return
    joins = [_StripJoin(a, b, *axes) for axes in ((0, 1), (0, 2), (1, 2))]
    yield from min(joins, key=len).couples()


def overlaps(a: IntArray, b: IntArray) -> tuple[IntArray, IntArray]:
    """Find all (i, j) for which canonical slices a[i] and b[j] share a pair, sorted."""
    found = [np.empty((2, 0), dtype=np.int64)]
    for i, j in _candidates(a, b):
        hit = _meet(a[i], b[j])[1]
        found.append(np.stack([i[hit], j[hit]]))
    i, j = np.concatenate(found, axis=1)
    order = np.lexsort((j, i))
    return i[order], j[order]


def overlapping(slices: IntArray) -> tuple[int, int] | None:
    """Find two rows that share an allowed pair.

    Returns:
        The indices of one such couple, smaller first, or None where all rows are disjoint.
    """
    tight, nonempty = tighten(bounded(slices))
    rows, index = tight[nonempty], np.flatnonzero(nonempty)
    for i, j in _candidates(rows, rows):
        i, j = i[i < j], j[i < j]
        hit = np.flatnonzero(_meet(rows[i], rows[j])[1])
        if len(hit):
            return int(index[i[hit[0]]]), int(index[j[hit[0]]])
    return None


def intersect(a: IntArray, b: IntArray) -> IntArray:
    """Return the pairs that both sets allow."""
    a, b = normalize(a), normalize(b)
    i, j = overlaps(a, b)
    return simplify(_meet(a[i], b[j])[0])


def subtract(a: IntArray, b: IntArray) -> IntArray:
    """Return the pairs that a allows and b does not."""
    return simplify(_difference(normalize(a), normalize(b)))


def union(a: IntArray, b: IntArray) -> IntArray:
    """Return the pairs that at least one of the sets allows."""
    a, b = normalize(a), normalize(b)
    return simplify(np.concatenate([a, _difference(b, a)]))


def complement(a: IntArray, q_len: int, kv_len: int) -> IntArray:
    """Return the pairs of the q_len x kv_len rectangle that a does not allow."""
    everything = np.array([[0, q_len, 0, kv_len, -q_len, kv_len]], dtype=np.int64)
    return subtract(everything, a)


def _difference(a: IntArray, b: IntArray) -> IntArray:
    """Subtract canonical sets without merging the pieces."""
    part, other = overlaps(a, b)
    parts = a
    for axis in (0, 1):
        parts, part, other = _cut_between(parts, part, other, b, axis)
    return _subtract_in_rounds(parts, part, other, b)


def _cut_between(
    parts: IntArray, part: IntArray, other: IntArray, b: IntArray, axis: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Cut parts along q or k so that each overlaps few slices of b.

    A cut is made where a slice of b begins and no more slices of b cross the line than begin on
    it, so cutting at most doubles the number of (part, other) couples.

    Args:
        parts: Canonical slices [p, 6].
        part: With other, the couples (index into parts, index into b) that overlap.
        other: See part.
        b: The set to subtract, [m, 6].
        axis: 0 cuts along q, 1 along k.

    Returns:
        New parts, and the couples that overlap.
    """
    low, high = _bounds(b[other], axis)
    if len(other) == 0:
        return parts, part, other
    base = low.min()
    scale = high.max() - base + 1
    begins, ends = part * scale + low - base, part * scale + high - base
    lines, count = np.unique(begins, return_counts=True)
    crossing = np.searchsorted(np.sort(begins), lines) - np.searchsorted(
        np.sort(ends), lines, side="right"
    )
    owner, position = lines // scale, lines % scale + base
    first = np.append(True, owner[1:] != owner[:-1])
    keep = (crossing <= count) & ~first & (position > parts[owner, 2 * axis])
    lines, owner, position = lines[keep], owner[keep], position[keep]

    cuts = np.bincount(owner, minlength=len(parts))
    origin = np.repeat(np.arange(len(parts)), cuts + 1)
    pieces = parts[origin]
    after = np.arange(len(lines)) + owner + 1
    pieces[after, 2 * axis] = position
    pieces[after - 1, 2 * axis + 1] = position

    start = np.searchsorted(lines, begins, side="right") + part
    stop = np.searchsorted(lines, ends, side="left") + part
    couple, piece = expand_runs(start, stop - start + 1)
    other = other[couple]
    pieces, nonempty = tighten(pieces)
    renumbered = np.cumsum(nonempty) - 1
    hit = nonempty[piece] & _meet(pieces[piece], b[other])[1]
    return pieces[nonempty], renumbered[piece[hit]], other[hit]


def _subtract_in_rounds(parts: IntArray, part: IntArray, other: IntArray, b: IntArray) -> IntArray:
    """Subtract from each part its n-th overlapping slice of b in round n."""
    order = np.argsort(part, kind="stable")
    other = other[order]
    count = np.bincount(part, minlength=len(parts))
    first = np.cumsum(count) - count
    done: list[IntArray] = []
    active, group = parts, np.arange(len(parts))
    taken = 0
    while len(active):
        finished = count[group] <= taken
        done.append(active[finished])
        active, group = active[~finished], group[~finished]
        minus = b[other[first[group] + taken]]
        common, hit = _meet(active, minus)
        pieces, owner = _minus(active[hit], common[hit])
        active = np.concatenate([active[~hit], pieces])
        group = np.concatenate([group[~hit], group[hit][owner]])
        taken += 1
    return np.concatenate(done) if done else parts


def _minus(a: IntArray, inner: IntArray) -> tuple[IntArray, IntArray]:
    """Subtract from each slice one contained in it: what is left in q, then k, then k - q.

    Returns:
        The pieces, at most six a slice, and the index into a of each.
    """
    rest = a.copy()
    pieces = []
    for axis in range(3):
        low, high, step = 2 * axis, 2 * axis + 1, int(axis == 2)
        before, after = rest.copy(), rest.copy()
        before[:, high] = inner[:, low] - step
        after[:, low] = inner[:, high] + step
        pieces += [before, after]
        rest[:, (low, high)] = inner[:, (low, high)]
    tight, nonempty = tighten(np.concatenate(pieces))
    owner = np.tile(np.arange(len(a)), len(pieces))
    return tight[nonempty], owner[nonempty]


def simplify(slices: IntArray) -> IntArray:
    """Merge disjoint slices whose union is again one slice; sort by (q0, k0, lo)."""
    rows = normalize(slices)
    before = len(rows) + 1
    while len(rows) < before:
        before = len(rows)
        for axis in range(3):
            rows = _merge_neighbours(rows, axis)
    return rows[np.lexsort((rows[:, 4], rows[:, 2], rows[:, 0]))]


def _merge_neighbours(rows: IntArray, axis: int) -> IntArray:
    """Merge couples that touch along an axis, until none is left."""
    while len(rows) > 1:
        i, j = _successors(rows, axis)
        hull = np.minimum(rows[i], rows[j])
        hull[:, _HIGH] = np.maximum(rows[i][:, _HIGH], rows[j][:, _HIGH])
        # Disjoint slices fill their hull exactly when their pair counts add up to its count.
        fits = size(hull) == size(rows[i]) + size(rows[j])
        i, j, hull = i[fits], j[fits], hull[fits]
        chosen = _matching(i, j, len(rows))
        if not len(chosen):
            break
        rows[i[chosen]] = hull[chosen]
        rows = np.delete(rows, j[chosen], axis=0)
    return rows


def _successors(rows: IntArray, axis: int) -> tuple[IntArray, IntArray]:
    """Find couples (i, j) where j begins on the line after the last line of i.

    On neighbouring lines of one slice the allowed runs begin at the same place or one step
    apart, and disjoint slices cannot share the beginning of a run, so a lookup by
    (line, beginning) finds every couple that may merge.
    """
    q0, q1, k0, k1, lo, hi = rows.T
    if axis == 0:
        line, next_line, steps = q0, q1, (0, 1)
        begin, last = np.maximum(k0, q0 + lo), np.maximum(k0, q1 - 1 + lo)
    elif axis == 1:
        line, next_line, steps = k0, k1, (0, 1)
        begin, last = np.maximum(q0, k0 - hi), np.maximum(q0, k1 - 1 - hi)
    else:
        line, next_line, steps = lo, hi + 1, (0, -1)
        begin, last = np.maximum(q0, k0 - lo), np.maximum(q0, k0 - hi)
    scale = 2**31
    keys = line * scale + begin
    order = np.argsort(keys)
    found = []
    for step in steps:
        wanted = next_line * scale + last + step
        at = np.minimum(np.searchsorted(keys[order], wanted), len(rows) - 1)
        i = np.flatnonzero(keys[order][at] == wanted)
        found.append(np.stack([i, order[at[i]]]))
    i, j = np.concatenate(found, axis=1)
    by_line = np.lexsort((i, line[i]))
    return i[by_line], j[by_line]


def _matching(i: IntArray, j: IntArray, count: int) -> IntArray:
    """Choose couples greedily so that no slice takes part in two."""
    free = [True] * count
    chosen = []
    for couple, (left, right) in enumerate(zip(i.tolist(), j.tolist(), strict=True)):
        if free[left] and free[right]:
            free[left] = free[right] = False
            chosen.append(couple)
    return np.array(chosen, dtype=np.int64)
