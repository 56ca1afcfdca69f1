"""Masks from other people's forms: slices, dense matrices, mask_mod functions, FlashMask rows.

All of them are bound to the lengths that they were made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dcp import slices as slice_ops
from dcp.arrays import BoolArray, IntArray
from dcp.checks import shown
from dcp.errors import MaskError
from dcp.mask_base import Mask, as_lengths
from dcp.mask_dense import rows_at_once
from dcp.slices import FAR

if TYPE_CHECKING:
    import torch

MaskMod = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True)
class _Bound(Mask):
    """Slices for one pair of lengths, packed as bytes: immutable, comparable and hashable."""

    source: str
    q_len: int
    kv_len: int
    packed: bytes = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.source}({self.q_len}x{self.kv_len})"

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        if (q_len, kv_len) != (self.q_len, self.kv_len):
            raise MaskError(
                f"this mask was made for {self.q_len} queries and {self.kv_len} keys, not for "
                f"{q_len} and {kv_len}; make one for each length"
            )
        return np.frombuffer(self.packed, dtype=np.int64).reshape(-1, 6)


def _bind(source: str, rows: IntArray, q_len: int, kv_len: int) -> Mask:
    return _Bound(source, q_len, kv_len, np.ascontiguousarray(rows).tobytes())


def from_slices(slices: npt.ArrayLike, q_len: int, kv_len: int | None = None) -> Mask:
    """Make a mask of slices.

    Args:
        slices: Disjoint rows (q0, q1, k0, k1, lo, hi), int64 [n, 6]: q in [q0, q1), k in
            [k0, k1), lo <= k - q <= hi. Empty ones are dropped.
        q_len: Number of queries.
        kv_len: Number of keys, q_len by default.

    Raises:
        MaskError: Wrong shape or type, a slice outside the lengths or inverted, or two slices
            that share a pair; the message names the rows.
    """
    q_len, kv_len = as_lengths(q_len, kv_len)
    rows = _integers("slices", slices, "[n, 6]")
    rows = rows.reshape(-1, 6) if rows.size == 0 else rows
    if rows.ndim != 2 or rows.shape[1] != 6:
        raise MaskError(f"slices have shape {list(rows.shape)}; give [n, 6]")
    low, high = rows[:, [0, 2]], rows[:, [1, 3]]
    legal = ((low >= 0) & (low <= high) & (high <= [q_len, kv_len])).all(axis=1)
    if not legal.all():
        n = int(np.argmin(legal))
        raise MaskError(
            f"slice {n} is {rows[n].tolist()}, outside a mask of {q_len} queries and {kv_len} "
            f"keys; give 0 <= q0 <= q1 <= {q_len} and 0 <= k0 <= k1 <= {kv_len}"
        )
    clash = slice_ops.overlapping(rows)
    if clash is not None:
        a, b = clash
        raise MaskError(
            f"slices {a} and {b} overlap: {rows[a].tolist()} and {rows[b].tolist()}; "
            "give disjoint slices, or unite two masks with |"
        )
    return _bind("slices", slice_ops.normalize(rows), q_len, kv_len)


def from_dense(dense: npt.NDArray[np.bool_]) -> Mask:
    """Make a mask of a boolean matrix.

    Args:
        dense: [q_len, kv_len] bool, True where the query may see the key.

    Raises:
        MaskError: Not a bool matrix.
    """
    matrix = _array("dense mask", dense, "a bool matrix [q_len, kv_len]")
    if matrix.dtype != np.bool_ or matrix.ndim != 2:
        raise MaskError(
            f"dense mask has shape {list(matrix.shape)} and dtype {matrix.dtype}; "
            "give a bool matrix [q_len, kv_len], True where allowed"
        )
    return _bind("dense", slice_ops.from_dense(matrix), *matrix.shape)


def from_mask_mod(fn: MaskMod, q_len: int, kv_len: int | None = None) -> Mask:
    """Make a mask of a FlexAttention ``mask_mod(b, h, q_idx, kv_idx)``.

    The function is called on int64 index tensors that broadcast, q_idx [rows, 1] and kv_idx
    [1, kv_len], for stripes of rows, so memory is bounded but time grows with q_len x kv_len.
    It is called for b = h = 0 (0-d tensors): a mask that differs between batch entries or heads
    cannot be told from one that does not, and needs one call for each, with b or h bound.

    Args:
        fn: Returns a bool tensor that broadcasts to [rows, kv_len], True where allowed.
        q_len: Number of queries.
        kv_len: Number of keys, q_len by default.

    Raises:
        MaskError: No function, or one that does not return such a tensor.
    """
    if not callable(fn):
        raise MaskError(f"mask_mod is {shown(fn)}; give a function of b, h, q_idx and kv_idx")
    q_len, kv_len = as_lengths(q_len, kv_len)
    rows = slice_ops.from_row_stripes(_mask_mod_stripes(fn, q_len, kv_len))
    return _bind("mask_mod", rows, q_len, kv_len)


def _mask_mod_stripes(fn: MaskMod, q_len: int, kv_len: int) -> Iterator[BoolArray]:
    import torch

    zero = torch.tensor(0)
    keys = torch.arange(kv_len)[None, :]
    stripe = rows_at_once(kv_len)
    for top in range(0, q_len, stripe):
        queries = torch.arange(top, min(top + stripe, q_len))[:, None]
        allowed: Any = fn(zero, zero, queries, keys)
        shape = (len(queries), kv_len)
        if not isinstance(allowed, torch.Tensor) or allowed.dtype != torch.bool:
            given = getattr(allowed, "dtype", type(allowed).__name__)
            raise MaskError(f"mask_mod returned {given}; return a torch.bool tensor")
        try:
            stripe_mask = allowed.expand(shape)
        except RuntimeError:
            raise MaskError(
                f"mask_mod returned shape {list(allowed.shape)} for q_idx {list(queries.shape)} "
                f"and kv_idx {list(keys.shape)}; return one that broadcasts to {list(shape)}"
            ) from None
        yield stripe_mask.cpu().numpy()


def from_flashmask(row_indices: npt.ArrayLike, *, causal: bool, q_len: int | None = None) -> Mask:
    """Make a mask of FlashMask's start and end rows for each key column.

    A column's masked rows, half-open, by the number of its bounds (LT lower-left, UT upper-right;
    S start, E end):

        causal      1: [LTS, q_len)            2: [LTS, LTE)
        not causal  2: [LTS, q_len), [0, UTE)  4: [LTS, LTE), [UTS, UTE)

    With ``causal``, keys after the query (k > q, aligned top-left) are masked besides. An end at
    or before its start masks nothing.

    Args:
        row_indices: Integers [kv_len, 1, 2 or 4] between 0 and q_len.
        causal: Whether keys after the query are masked.
        q_len: Number of queries, kv_len by default.

    Raises:
        MaskError: Wrong shape or type, a causal that is no bool, or a bound outside 0..q_len.
    Source: Wang et al. 2024 (FlashMask, arXiv 2410.01359).
    """
    if not isinstance(causal, bool):
        raise MaskError(f"causal is {shown(causal)}; it is True or False")
    bounds = _integers("row_indices", row_indices, "[kv_len, 1, 2 or 4]")
    legal = (1, 2) if causal else (2, 4)
    if bounds.ndim != 2 or bounds.shape[1] not in legal:
        raise MaskError(
            f"row_indices have shape {list(bounds.shape)}; give [kv_len, {legal[0]}] or "
            f"[kv_len, {legal[1]}] for causal={causal}"
        )
    q_len, kv_len = as_lengths(len(bounds) if q_len is None else q_len, len(bounds))
    if bounds.size and not (bounds.min() >= 0 and bounds.max() <= q_len):
        raise MaskError(
            f"row_indices go from {bounds.min()} to {bounds.max()}; give rows from 0 to {q_len}"
        )
    masked = _masked_rows(bounds, causal, q_len)
    rows = _flashmask_slices(masked, 0 if causal else FAR, q_len)
    return _bind("flashmask", slice_ops.simplify(rows), q_len, kv_len)


def _masked_rows(bounds: IntArray, causal: bool, q_len: int) -> IntArray:
    """Return LTS, LTE, UTS, UTE of every column, [kv_len, 4]."""
    masked = np.zeros((len(bounds), 4), dtype=np.int64)
    masked[:, 0], masked[:, 1] = bounds[:, 0], q_len
    if bounds.shape[1] == 4:
        masked[:] = bounds
    elif bounds.shape[1] == 2:
        masked[:, 1 if causal else 3] = bounds[:, 1]
    masked[:, 1] = np.maximum(masked[:, 0], masked[:, 1])
    masked[:, 3] = np.maximum(masked[:, 2], masked[:, 3])
    return masked


def _flashmask_slices(masked: IntArray, hi: int, q_len: int) -> IntArray:
    """Write the rows that are left as slices, a few for each group of like columns.

    In a group every bound stays or moves down one row a column, so the bound is a side of the
    group's rectangle or one of its diagonals.
    """
    first, last, moves = _column_groups(masked)
    at = masked[first]
    parts = []
    # Rows before a masked range and rows after it: two choices for each of the two ranges.
    for lower in (0, 1):
        for upper in (2, 3):
            rows = np.empty((len(first), 6), dtype=np.int64)
            rows[:, 0], rows[:, 1] = 0, q_len
            rows[:, 2], rows[:, 3] = first, last + 1
            rows[:, 4], rows[:, 5] = -FAR, hi
            for bound in (lower, upper):
                _limit(rows, at[:, bound], first, moves[:, bound], after=bound in (1, 3))
            parts.append(rows)
    return np.concatenate(parts)


def _limit(rows: IntArray, bound: IntArray, first: IntArray, moves: BoolArray, after: bool) -> None:
    """Keep the rows before a bound, or from it on; the bound stays or moves with the column."""
    if after:
        rows[:, 0] = np.where(moves, rows[:, 0], np.maximum(rows[:, 0], bound))
        rows[:, 5] = np.where(moves, np.minimum(rows[:, 5], first - bound), rows[:, 5])
    else:
        rows[:, 1] = np.where(moves, rows[:, 1], np.minimum(rows[:, 1], bound))
        rows[:, 4] = np.where(moves, np.maximum(rows[:, 4], first - bound + 1), rows[:, 4])


def _column_groups(masked: IntArray) -> tuple[IntArray, IntArray, BoolArray]:
    """Group neighbouring columns whose bounds all stay or move by one, each the same way.

    Returns:
        First and last column of each group, and [groups, 4] which bounds move.
    """
    columns = len(masked)
    step = np.diff(masked, axis=0)
    alike = ((step == 0) | (step == 1)).all(axis=1)
    turns = np.zeros(len(step), dtype=np.bool_)
    turns[1:] = alike[:-1] & (step[1:] != step[:-1]).any(axis=1)
    joined = alike & ~turns
    first = np.flatnonzero(np.append(True, ~joined)[:columns])
    last = np.append(first[1:], columns)[: len(first)] - 1
    moves = np.zeros((len(first), 4), dtype=np.bool_)
    wide = last > first
    moves[wide] = step[first[wide]] == 1
    return first, last, moves


def _array(name: str, values: npt.ArrayLike, wanted: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise MaskError(f"{name} is no array ({error}); give {wanted}") from error


def _integers(name: str, values: npt.ArrayLike, shape: str) -> IntArray:
    """Return integers as int64, or raise MaskError; an empty list has no dtype and passes."""
    array = _array(name, values, f"integers {shape}")
    if array.dtype == np.bool_ or (array.size and not np.can_cast(array.dtype, np.int64)):
        raise MaskError(f"{name} have dtype {array.dtype}; give int64 {shape}")
    return array.astype(np.int64)
