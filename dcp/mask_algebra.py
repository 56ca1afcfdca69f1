"""Set operations on sets of disjoint mask slices.

Inputs and outputs are arrays [n, 6] of disjoint slices; outputs are canonical, merged where
neighbours form one slice, and sorted by (q0, k0).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.mask_geometry import normalize, size, tighten

_PAIRS_AT_ONCE = 1 << 20
_LOW, _HIGH = (0, 2, 4), (1, 3, 5)


def _meet(a: IntArray, b: IntArray) -> tuple[IntArray, BoolArray]:
    """Intersect slices elementwise; return canonical rows and which of them are not empty."""
    both = np.maximum(a, b)
    both[..., _HIGH] = np.minimum(a[..., _HIGH], b[..., _HIGH])
    return tighten(both)


def expand_runs(first: IntArray, count: IntArray) -> tuple[IntArray, IntArray]:
    """Expand runs (first, count) to (index of the run, first, first + 1, ...)."""
    owner = np.repeat(np.arange(len(count)), count)
    start_of_run = np.cumsum(count) - count
    return owner, np.arange(len(owner)) - start_of_run[owner] + first[owner]


def _chunks(first: IntArray, count: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Expand runs like ``expand_runs``, a bounded number of pairs at a time."""
    total = np.cumsum(count)
    begin = 0
    while begin < len(count):
        base = total[begin - 1] if begin else 0
        end = max(int(np.searchsorted(total, base + _PAIRS_AT_ONCE, side="right")), begin + 1)
        owner, index = expand_runs(first[begin:end], count[begin:end])
        yield owner + begin, index
        begin = end


def _bounds(slices: IntArray, axis: int) -> tuple[IntArray, IntArray]:
    """Half-open bounds of slices along q (0), k (1) or k - q (2)."""
    return slices[:, 2 * axis], slices[:, 2 * axis + 1] + (axis == 2)


def _interval_runs(a: IntArray, b: IntArray, axis: int) -> list[tuple[IntArray, ...]]:
    """Find interval overlaps along one axis: either b starts inside a, or a inside b."""
    (a0, a1), (b0, b1) = _bounds(a, axis), _bounds(b, axis)
    a_order, b_order = np.argsort(a0, kind="stable"), np.argsort(b0, kind="stable")
    a_sorted, b_sorted = a0[a_order], b0[b_order]
    b_first = np.searchsorted(b_sorted, a0, side="left")
    b_count = np.searchsorted(b_sorted, a1, side="left") - b_first
    a_first = np.searchsorted(a_sorted, b0, side="right")
    a_count = np.maximum(np.searchsorted(a_sorted, b1, side="left") - a_first, 0)
    return [(b_first, b_count, b_order), (a_first, a_count, a_order)]


def _candidates(a: IntArray, b: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield index pairs (i, j) whose intervals overlap along the most selective axis."""
    axes = [_interval_runs(a, b, axis) for axis in range(3)]
    inside_a, inside_b = min(axes, key=lambda runs: sum(int(run[1].sum()) for run in runs))
    for i, position in _chunks(inside_a[0], inside_a[1]):
        yield i, inside_a[2][position]
    for j, position in _chunks(inside_b[0], inside_b[1]):
        yield inside_b[2][position], j


def _overlaps(a: IntArray, b: IntArray) -> tuple[IntArray, IntArray]:
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
    tight, nonempty = tighten(slices)
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
    i, j = _overlaps(a, b)
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
    part, other = _overlaps(a, b)
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
        part, other: Couples (index into parts, index into b) that overlap, sorted by part.
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
