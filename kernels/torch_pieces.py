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
from dcp.arrays import FloatArray, IntArray
from dcp.kernel_interface import BlockMask

# Costs in pairs of one head that a rectangle takes to compute. Measured on one thread with head
# dimensions 64 and 128; only their order of magnitude matters.
_CALL = 6000  # calling the operators
_ROW = 16  # merging one more partial result of a query
_KEY = 4  # adding one more partial gradient of a key
_BIAS = 1.07  # a rectangle with a bias over one without
_TILE = 512  # keys that the operators take at a time, also beyond a causal edge
# What a rectangle of few rows (query tokens times heads that share keys) costs more in half
# precision, where the operators pack their operands again for every few rows.
_FEW_ROWS = ((768, 1.2), (192, 1.7))  # fewer than 192 are fewer than 768 too

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


@lru_cache(maxsize=4096)
def pieces(
    mask: BlockMask | None, q_len: int, kv_len: int, ratio: int, half: bool
) -> tuple[Piece, ...]:
    """Cut a block into disjoint pieces that hold all its allowed pairs.

    Args:
        mask: The block's mask.
        q_len, kv_len: Its size, both at least 1.
        ratio: Query heads a key head.
        half: Whether it is computed in half precision.

    Returns:
        Pieces by their first query and key; none where nothing is allowed.
    """
    if mask is None:
        return (Piece(0, q_len, 0, kv_len, None, True),)
    allowed = slice_ops.simplify(mask.slices)
    if not len(allowed):
        return ()
    found = _cut(allowed, ratio, half) if len(allowed) <= _MOST_SLICES else [allowed]
    return tuple(_placed(found))


def _cut(allowed: IntArray, ratio: int, half: bool) -> list[IntArray]:
    """Split slices in two along one side, again and again, while that makes them cheaper."""
    whole = float(_costs(allowed[None], ratio, half)[0])
    if whole <= slice_ops.size(allowed).sum() + _CALL:
        return [allowed]
    halves = _splits(allowed)
    cost = _costs(halves[0], ratio, half) + _costs(halves[1], ratio, half)
    best = int(np.argmin(cost)) if len(cost) else 0
    if not len(cost) or cost[best] >= whole:
        return [allowed]
    parts = (slice_ops.normalize(side[best]) for side in halves)
    return [piece for part in parts for piece in _cut(part, ratio, half)]


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


def _costs(sets: IntArray, ratio: int, half: bool) -> FloatArray:
    """Of computing each of several sets of slices, [sets, n, 6], by one call."""
    tight, some = slice_ops.tighten(sets)
    pairs = np.where(some, slice_ops.size(tight), 0).sum(axis=1)
    low = np.where(some[..., None], tight, _FAR).min(axis=1)
    high = np.where(some[..., None], tight, -_FAR).max(axis=1)
    rows, keys = high[:, 1] - low[:, 0], high[:, 3] - low[:, 2]
    full = pairs == rows * keys
    below = high[:, 5] <= low[:, 2] - low[:, 0]
    causal = ~full & below & (rows == keys) & (pairs == rows * (rows + 1) // 2)
    computed = np.where(full, 1.0, _BIAS) * rows * keys
    computed[causal] = (rows * np.minimum(rows, (rows + _TILE) / 2))[causal]
    if half:
        together = rows * np.where(causal, 1, ratio)
        for few, more in _FEW_ROWS:
            computed = np.where(together < few, more * computed, computed)
    return np.where(pairs > 0, computed + _CALL + _ROW * rows + _KEY * keys, 0.0)


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
