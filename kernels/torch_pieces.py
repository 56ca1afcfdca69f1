"""Cutting a block with a mask into rectangles that torch's CPU operators compute without waste.

The operators know three kinds of work: every pair of a rectangle, a square seen causally, and a
rectangle with a tensor added to its scores. They compute a rectangle whole, whatever the tensor
forbids, so a sparse mask is cheap only when it is cut into rectangles close around what it allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import BoolArray, FloatArray, IntArray
from dcp.kernel_interface import BlockMask

# Costs in pairs of one head that a rectangle takes to compute. Measured on one thread with head
# dimensions 64 and 128; only their order of magnitude matters.
_CALL = 6000  # calling the operators
_ROW = 16  # merging one more partial result of a query
_KEY = 4  # adding one more partial gradient of a key
_BIAS = 1.07  # a rectangle with a bias over one without
_TILE = 512  # keys that the operators take at a time, also beyond a causal edge
_MOST_STRIPPED = 1024  # tokens of a causal square that is cut into strips and not in two
# What a rectangle of few rows (query tokens times heads that share keys) costs more in half
# precision, where the operators pack their operands again for every few rows.
_FEW_ROWS = ((768, 1.2), (192, 1.7))  # fewer than 192 are fewer than 768 too

_WORTH_LOOKING = 100_000  # pairs that a piece computes in vain before splits of splits are tried
_FAR = 2**50
_SMALLEST = 128  # tokens; no side is halved below
_MOST_SLICES = 64  # of a mask that is cut; the cuts of a shredded one do not repay themselves


class Piece(NamedTuple):
    """A rectangle of a block, computed by one call.

    Attributes:
        q0, q1, k0, k1: Its queries and keys.
        mask: What it allows, in its own coordinates; None for every pair.
        fresh: Whether no earlier piece has any of its queries.
    """

    q0: int
    q1: int
    k0: int
    k1: int
    mask: BlockMask | None
    fresh: bool

    @property
    def causal(self) -> bool:
        """Whether it is a causal square."""
        return self.mask is not None and self.mask.is_causal_square(
            self.q1 - self.q0, self.k1 - self.k0
        )


class Tuning(NamedTuple):
    """What makes a piece cheap.

    Attributes:
        heads: Query heads that are computed together, as tokens of one head.
        half: Whether rows are dear where they are few.
        strip: Queries of the strips that causal squares are cut into; 0 leaves them whole.
    """

    heads: int
    half: bool
    strip: int


@lru_cache(maxsize=4096)
def pieces(mask: BlockMask | None, q_len: int, kv_len: int, tuning: Tuning) -> tuple[Piece, ...]:
    """Cut a block into disjoint pieces that hold all its allowed pairs.

    Args:
        mask: The block's mask.
        q_len, kv_len: Its size, both at least 1.
        tuning: What makes a piece cheap.

    Returns:
        Pieces by their first query and key; none where nothing is allowed.
    """
    if mask is None:
        return (Piece(0, q_len, 0, kv_len, None, True),)
    allowed = slice_ops.simplify(mask.slices)
    if not len(allowed):
        return ()
    found = _cut(allowed, tuning) if len(allowed) <= _MOST_SLICES else [allowed]
    return tuple(_placed([strip for one in found for strip in _strips(one, tuning.strip)]))


def _cut(allowed: IntArray, tuning: Tuning) -> list[IntArray]:
    """Split slices in two along one side, again and again, while that makes them cheaper."""
    whole, pairs = float(_costs(allowed[None], tuning)[0]), int(slice_ops.size(allowed).sum())
    if whole <= pairs + _CALL:
        return [allowed]
    cost, parts = _best_split(allowed, tuning, deeper=False)
    if cost >= whole and whole > pairs + _WORTH_LOOKING:
        cost, parts = _best_split(allowed, tuning, deeper=True)
    if cost >= whole:
        return [allowed]
    return [piece for part in parts for piece in _cut(part, tuning)]


def _best_split(
    allowed: IntArray, tuning: Tuning, *, deeper: bool
) -> tuple[float, tuple[IntArray, ...]]:
    """The cheapest split and its cost, infinite where there is none.

    A split may pay only once its halves are split too, as when a slice of few keys stands beside
    a sloping one; `deeper` looks that far.
    """
    first, second = _splits(allowed)
    if not len(first):
        return float("inf"), ()
    cost = _costs(first, tuning) + _costs(second, tuning)
    if deeper:
        cost = np.array([
            sum(_split_cost(slice_ops.normalize(half), tuning) for half in halves)
            for halves in zip(first, second, strict=True)
        ])  # fmt: skip
    best = int(np.argmin(cost))
    return float(cost[best]), tuple(slice_ops.normalize(half[best]) for half in (first, second))


def _split_cost(allowed: IntArray, tuning: Tuning) -> float:
    """Cost of slices, split once or not."""
    if not len(allowed):
        return 0.0
    whole = float(_costs(allowed[None], tuning)[0])
    return min(whole, _best_split(allowed, tuning, deeper=False)[0])


def _splits(allowed: IntArray) -> IntArray:
    """Ways to split: where a slice begins or ends, where its sloping edges begin or end, midway.

    Args:
        allowed: Canonical slices, [n, 6].

    Returns:
        Their parts on both sides of every split, not canonical, [2, splits, n, 6].
    """
    q0, q1, k0, k1 = _bounds(allowed)
    starts, ends, firsts, lasts, low, high = allowed.T
    rows = _inside([starts, ends, firsts - low + 1, lasts - high], q0, q1)
    columns = _inside([firsts, lasts, starts + high, ends + low], k0, k1)
    parts = np.tile(allowed, (2, len(rows) + len(columns), 1, 1))
    by_row, by_column = parts[:, : len(rows)], parts[:, len(rows) :]
    for side, places, begin in ((by_row, rows, 0), (by_column, columns, 2)):
        np.minimum(side[0, ..., begin + 1], places[:, None], out=side[0, ..., begin + 1])
        np.maximum(side[1, ..., begin], places[:, None], out=side[1, ..., begin])
    return parts


def _inside(places: list[IntArray], low: int, high: int) -> IntArray:
    """Distinct places that leave something on both sides, and the middle of a long side."""
    middle = [(low + high) // 2] if high - low >= 2 * _SMALLEST else []
    candidates = np.concatenate([*places, middle]).astype(np.int64)
    return np.unique(candidates[(candidates > low) & (candidates < high)])


def _costs(sets: IntArray, tuning: Tuning) -> FloatArray:
    """Of computing each of several sets of slices, [sets, n, 6], by one call."""
    tight, some = slice_ops.tighten(sets)
    pairs = np.where(some, slice_ops.size(tight), 0).sum(axis=1)
    low = np.where(some[..., None], tight, _FAR).min(axis=1)
    high = np.where(some[..., None], tight, -_FAR).max(axis=1)
    rows, keys = high[:, 1] - low[:, 0], high[:, 3] - low[:, 2]
    full = pairs == rows * keys
    causal = ~full & _are_causal(low, high, pairs)
    computed = np.where(full, 1.0, _BIAS) * rows * keys
    triangle = rows * np.minimum(rows, (rows + (tuning.strip or _TILE)) / 2)
    computed = np.where(causal, (_BIAS if tuning.strip else 1.0) * triangle, computed)
    if tuning.half:
        together = tuning.heads * np.where(causal, np.minimum(rows, tuning.strip), rows)
        for few, more in _FEW_ROWS:
            computed = np.where(together < few, more * computed, computed)
    return np.where(pairs > 0, computed + _CALL + _ROW * rows + _KEY * keys, 0.0)


def _are_causal(low: IntArray, high: IntArray, pairs: IntArray) -> BoolArray:
    """Which sets of disjoint slices are causal squares.

    Args:
        low, high: Smallest and largest of each column of the sets' slices, [sets, 6].
        pairs: What they allow, [sets].
    """
    rows, keys = high[:, 1] - low[:, 0], high[:, 3] - low[:, 2]
    below = high[:, 5] <= low[:, 2] - low[:, 0]
    causal: BoolArray = below & (rows == keys) & (pairs == rows * (rows + 1) // 2)
    return causal


def _strips(allowed: IntArray, strip: int) -> list[IntArray]:
    """Cut a causal square into strips of queries, as far as each sees; a large one in two first.

    The operators go through keys in steps of _TILE, so of their own causal squares up to that
    much a row is computed in vain; and heads cannot be computed together there.
    """
    q0, q1, k0, k1 = _bounds(allowed)
    low, high = allowed.min(axis=0)[None], allowed.max(axis=0)[None]
    causal = _are_causal(low, high, slice_ops.size(allowed).sum(keepdims=True))[0]
    if not (causal and strip and q1 - q0 > strip):
        return [allowed]
    if q1 - q0 <= _MOST_STRIPPED:
        begins = range(q0, q1, strip)
        return [slice_ops.clip(allowed, row, min(row + strip, q1), k0, k1) for row in begins]
    side = -(-(q1 - q0) // (2 * strip)) * strip
    return [
        *_strips(slice_ops.clip(allowed, q0, q0 + side, k0, k1), strip),
        slice_ops.clip(allowed, q0 + side, q1, k0, k0 + side),
        *_strips(slice_ops.clip(allowed, q0 + side, q1, k0 + side, k1), strip),
    ]


def _placed(found: list[IntArray]) -> Iterator[Piece]:
    seen: list[tuple[int, int]] = []
    for allowed in sorted(found, key=_bounds):
        q0, q1, k0, k1 = _bounds(allowed)
        pairs = int(slice_ops.size(allowed).sum())
        mask = None
        if pairs < (q1 - q0) * (k1 - k0):
            own = slice_ops.simplify(slice_ops.shift(allowed, q0, k0))
            mask = BlockMask.of(own)
        fresh = all(end <= q0 or q1 <= begin for begin, end in seen)
        seen.append((q0, q1))
        yield Piece(q0, q1, k0, k1, mask, fresh)


def _bounds(allowed: IntArray) -> tuple[int, int, int, int]:
    """The smallest rectangle around slices: (q0, q1, k0, k1)."""
    low, high = allowed.min(axis=0).tolist(), allowed.max(axis=0).tolist()
    return low[0], high[1], low[2], high[3]
