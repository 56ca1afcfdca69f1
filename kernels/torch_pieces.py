"""Cutting a block with a mask into rectangles that torch's operators compute without waste.

The operators compute every pair of a rectangle, or add a tensor to its scores, and compute it
whole whatever the tensor forbids. So a sparse mask is cheap only when it is cut into rectangles
close around what it allows. Equal rectangles at equal distances are computed by one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import IntArray
from dcp.kernel_interface import BlockMask

# Costs in pairs of one head that a rectangle takes to compute. Measured on one thread with head
# dimensions 64 and 128; only their order of magnitude matters.
_CALL = 3000  # calling the operators
_ROW = 16  # merging one more partial result of a query
_KEY = 4  # adding one more partial gradient of a key
_BIAS = 1.1  # a rectangle with a bias over one without
_TILE = 12  # in half precision: a query's share of beginning a tile of keys
_SMALL = 1.6  # in half precision, a rectangle of few rows, computed in float32, over one of many

# The CPU operators compute tiles of so many keys, and of fewer rows where they are given less
# than so many. Each tile costs a constant time in half precision.
TILE_KEYS = 512
MANY_ROWS = 768

_FEW_KEYS = 16  # no rectangle of so few is cut off
_MOST_SLICES = 64  # of a mask that is cut; the cuts of a shredded one do not repay themselves


class Piece(NamedTuple):
    """Equal rectangles of a block at equal distances, computed by one call.

    Attributes:
        q, k: First query and first key of the first rectangle.
        rows, keys: Queries and keys of each.
        mask: What each allows, in its own coordinates; None for every pair.
        repeats: How many rectangles.
        q_step, k_step: From the first query and key of one to those of the next. Their queries
            are disjoint, and so are their keys, unless k_step is 0 and they share all.
        fresh: Whether no earlier piece has any of their queries.
    """

    q: int
    k: int
    rows: int
    keys: int
    mask: BlockMask | None
    repeats: int
    q_step: int
    k_step: int
    fresh: bool


class Tuning(NamedTuple):
    """What makes a piece cheap.

    Attributes:
        heads: Query heads that are computed together, as tokens of one head.
        half: Whether tiles are dear, and rows where they are few.
        causal: Whether causal squares need neither a bias nor twice the time.
        strip: Fewest queries that a rectangle is cut into for the sake of its mask.
        most_rows: Most queries of a rectangle; 0 for any number.
    """

    heads: int
    half: bool
    causal: bool
    strip: int
    most_rows: int


@lru_cache(maxsize=4096)
def pieces(mask: BlockMask | None, q_len: int, kv_len: int, tuning: Tuning) -> tuple[Piece, ...]:
    """Cut a block into disjoint pieces that hold all its allowed pairs.

    Args:
        mask: The block's mask.
        q_len, kv_len: Its size, both at least 1.
        tuning: What makes a piece cheap.

    Returns:
        Pieces, those of most queries first; none where nothing is allowed.
    """
    whole = slice_ops.as_slices([0, q_len, 0, kv_len, -q_len, kv_len])
    allowed = slice_ops.simplify(whole if mask is None else mask.slices)
    if not len(allowed):
        return ()
    found = [allowed]
    if len(allowed) <= _MOST_SLICES:
        found = _stacked(_cut(allowed, tuning))
    found = [part for one in found for part in _of_few_rows(one, tuning.most_rows)]
    return tuple(_in_order(_alike(found), q_len))


def _cut(allowed: IntArray, tuning: Tuning) -> list[IntArray]:
    """Cut slices between keys, and between queries where that is cheaper, again and again."""
    if _is_full(allowed) or (tuning.causal and _is_causal(allowed)):
        return [allowed]
    q0, q1, k0, k1 = _bounds(allowed)
    columns = _columns(allowed)
    if columns != [(k0, k1)]:
        clipped = [slice_ops.clip(allowed, q0, q1, *column) for column in columns]
        return [part for one in clipped for part in _cut(one, tuning)]
    rows = [q0, *_row_cuts(allowed, tuning.strip), q1]
    if len(rows) == 2:
        return [allowed]
    clipped = [slice_ops.clip(allowed, *some, k0, k1) for some in pairwise(rows)]
    parts = [part for one in clipped if len(one) for part in _cut(one, tuning)]
    cheaper = sum(_cost(part, tuning) for part in parts) < _cost(allowed, tuning)
    return parts if cheaper else [allowed]


def _columns(allowed: IntArray) -> list[tuple[int, int]]:
    """Ranges of keys that all queries see, and of such that only some see."""
    q0, q1, k0, k1 = _bounds(allowed)
    key = np.arange(k0, k1)
    starts, ends, firsts, lasts, low, high = allowed.T[..., None]
    seen = np.minimum(ends, key - low + 1) - np.maximum(starts, key - high)
    count = (seen.clip(0) * ((key >= firsts) & (key < lasts))).sum(axis=0)
    some = (count > 0) & (count < q1 - q0)
    edges = [0, *(np.flatnonzero(np.diff(some) | np.diff(count > 0)) + 1).tolist(), k1 - k0]
    # Between edges all keys are alike; what is narrow there joins those that only some see.
    few = max(_CALL // (q1 - q0), _FEW_KEYS)
    for begin, end in pairwise(edges):
        left, right = begin > 0 and some[begin - 1], end < k1 - k0 and some[end]
        if some[begin] or not (left or right):
            continue
        if end - begin <= few:
            some[begin:end] = True
        elif count[begin] and right and count[end] == q1 - q0 - 1:
            # On a slope: with one key more, what is beside it is a square's half.
            some[end - 1] = True
    kind = np.where(some, 1, np.where(count > 0, 2, 0))
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), k1 - k0]
    return [(k0 + begin, k0 + end) for begin, end in pairwise(edges) if kind[begin]]


def _row_cuts(allowed: IntArray, strip: int) -> list[int]:
    """Where to cut between queries: where slices begin or end, or else in the middle.

    The middle is chosen so that further cuts leave strips of one size, at equal distances.
    """
    q0, q1, _, _ = _bounds(allowed)
    cuts: list[int] = []
    for place in sorted({*allowed[:, 0].tolist(), *allowed[:, 1].tolist()}):
        if place - (cuts[-1] if cuts else q0) >= strip // 2 <= q1 - place:
            cuts.append(place)
    if cuts or q1 - q0 < 2 * strip:
        return cuts
    count = 1 << ((q1 - q0) // strip).bit_length() - 1
    return [q0 + count // 2 * -(-(q1 - q0) // count)]


def _is_full(allowed: IntArray) -> bool:
    q0, q1, k0, k1 = _bounds(allowed)
    return int(slice_ops.size(allowed).sum()) == (q1 - q0) * (k1 - k0)


def _is_causal(allowed: IntArray) -> bool:
    q0, q1, k0, k1 = _bounds(allowed)
    return _own_mask(allowed).is_causal_square(q1 - q0, k1 - k0)


def _own_mask(allowed: IntArray) -> BlockMask:
    """Slices in the coordinates of the smallest rectangle around them."""
    q0, _, k0, _ = _bounds(allowed)
    return BlockMask.of(slice_ops.simplify(slice_ops.shift(allowed, q0, k0)))


def _cost(allowed: IntArray, tuning: Tuning) -> float:
    """Of computing slices by one call."""
    q0, q1, k0, k1 = _bounds(allowed)
    rows, keys = q1 - q0, k1 - k0
    computed = (1.0 if _is_full(allowed) else _BIAS) * rows * keys
    if tuning.causal and _is_causal(allowed):
        computed = rows * keys / 2
    if tuning.half and rows * tuning.heads < MANY_ROWS:
        computed *= _SMALL
    elif tuning.half:
        computed += _TILE * rows * -(-keys // TILE_KEYS)
    return computed + _CALL + _ROW * rows + _KEY * keys


def _stacked(found: list[IntArray]) -> list[IntArray]:
    """Join full rectangles that stand on each other."""
    rest = [one for one in found if not _is_full(one)]
    open_ends: dict[tuple[int, int, int], int] = {}  # last query, keys: first query
    for q0, q1, k0, k1 in sorted(_bounds(one) for one in found if _is_full(one)):
        open_ends[q1, k0, k1] = open_ends.pop((q0, k0, k1), q0)
    rectangles = [
        slice_ops.as_slices([q0, q1, k0, k1, k0 - q1 + 1, k1 - q0 - 1])
        for (q1, k0, k1), q0 in open_ends.items()
    ]
    return rectangles + rest


def _of_few_rows(allowed: IntArray, most_rows: int) -> list[IntArray]:
    """Cut a rectangle of too many queries into equal ones."""
    q0, q1, k0, k1 = _bounds(allowed)
    count = -(-(q1 - q0) // most_rows) if most_rows else 1
    rows = -(-(q1 - q0) // count)
    parts = [slice_ops.clip(allowed, row, row + rows, k0, k1) for row in range(q0, q1, rows)]
    return [part for part in parts if len(part)]


def _alike(found: list[IntArray]) -> list[Piece]:
    """Equal rectangles at equal distances, joined."""
    corners: dict[tuple[int, int, BlockMask | None], list[tuple[int, int]]] = {}
    for allowed in found:
        q0, q1, k0, k1 = _bounds(allowed)
        mask = None if _is_full(allowed) else _own_mask(allowed)
        corners.setdefault((q1 - q0, k1 - k0, mask), []).append((q0, k0))
    return [
        Piece(*run[0], rows, keys, mask, len(run), *_step(run), False)
        for (rows, keys, mask), places in corners.items()
        for run in _runs(sorted(places), rows, keys)
    ]


def _runs(places: list[tuple[int, int]], rows: int, keys: int) -> Iterator[list[tuple[int, int]]]:
    """Corners in runs of equal steps; each is the longest that begins at the first one left."""
    left = dict.fromkeys(places)
    while left:
        first = next(iter(left))
        longest = [first]
        for second in left:
            q_step, k_step = second[0] - first[0], second[1] - first[1]
            if q_step < rows or (k_step < keys and k_step != 0):
                continue
            run = [first]
            while (place := (run[-1][0] + q_step, run[-1][1] + k_step)) in left:
                run.append(place)
            longest = max(longest, run, key=len)
        for place in longest:
            del left[place]
        yield longest


def _step(run: list[tuple[int, int]]) -> tuple[int, int]:
    if len(run) == 1:
        return 0, 0
    return run[1][0] - run[0][0], run[1][1] - run[0][1]


def _in_order(found: list[Piece], q_len: int) -> Iterator[Piece]:
    """Pieces, those of most queries first, each told whether its queries are new."""
    seen = np.zeros(q_len, dtype=np.bool_)
    for piece in sorted(found, key=lambda one: (-one.repeats * one.rows, one.q, one.k)):
        begins = piece.q + piece.q_step * np.arange(piece.repeats)
        queries = (begins[:, None] + np.arange(piece.rows)).ravel()
        yield piece._replace(fresh=not seen[queries].any())
        seen[queries] = True


def _bounds(allowed: IntArray) -> tuple[int, int, int, int]:
    """The smallest rectangle around slices: (q0, q1, k0, k1)."""
    low, high = allowed.min(axis=0).tolist(), allowed.max(axis=0).tolist()
    return low[0], high[1], low[2], high[3]
