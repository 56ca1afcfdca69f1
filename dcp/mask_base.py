"""The mask interface, its set operations, and the checks that all masks share."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import BoolArray, IntArray
from dcp.checks import shown
from dcp.errors import MaskError

MAX_TOKENS = 2**30
"""Longest sequence; areas of longer ones could exceed int64."""


def as_integer(name: str, value: object, low: int, high: int = MAX_TOKENS) -> int:
    """Return value as an int, or raise MaskError unless it is an integer in [low, high]."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.bool_)) or not low <= number <= high:
        raise MaskError(f"{name} is {shown(value)}; give an integer from {low} to {high}")
    return number


def as_lengths(q_len: int, kv_len: int | None) -> tuple[int, int]:
    """Return sequence lengths as ints, or raise MaskError; kv_len defaults to q_len."""
    q_len = as_integer("q_len", q_len, 0)
    return q_len, q_len if kv_len is None else as_integer("kv_len", kv_len, 0)


@dataclass(frozen=True)
class Mask(ABC):
    """Which keys each query may see, for any lengths that the mask fits.

    Masks are immutable values: equal content of equal constructors is equal and hashes equal.
    ``a & b``, ``a | b``, ``a - b``, ``a ^ b`` and ``~a`` are masks that are worked out when their
    slices are asked for.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Short text for tables."""

    @abstractmethod
    def _build(self, q_len: int, kv_len: int) -> IntArray:
        """Return disjoint slices [n, 6] inside q_len x kv_len, canonical or not."""

    def slices(self, q_len: int, kv_len: int | None = None) -> IntArray:
        """Return the mask as slices.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys, q_len by default.

        Returns:
            Canonical disjoint slices (q0, q1, k0, k1, lo, hi), int64 [n, 6], read-only.

        Raises:
            MaskError: A length is no integer in 0..2**30, or the mask does not fit the lengths.
        """
        rows = slice_ops.normalize(self._build(*as_lengths(q_len, kv_len)))
        rows.flags.writeable = False
        return rows

    def dense(self, q_len: int, kv_len: int | None = None) -> BoolArray:
        """Return the mask as a bool matrix [q_len, kv_len], True where allowed."""
        return slice_ops.to_dense(self.slices(q_len, kv_len), *as_lengths(q_len, kv_len))

    def area(self, q_len: int, kv_len: int | None = None) -> int:
        """Return the exact number of allowed pairs, without looking at pairs."""
        return int(slice_ops.size(self.slices(q_len, kv_len)).sum())

    def __str__(self) -> str:
        return self.name

    def __and__(self, other: Mask) -> Mask:
        return _combine("&", self, other)

    def __or__(self, other: Mask) -> Mask:
        return _combine("|", self, other)

    def __sub__(self, other: Mask) -> Mask:
        return _combine("-", self, other)

    def __xor__(self, other: Mask) -> Mask:
        return _combine("^", self, other)

    def __invert__(self) -> Mask:
        return _Complement(self)


def _symmetric_difference(a: IntArray, b: IntArray) -> IntArray:
    return slice_ops.union(slice_ops.subtract(a, b), slice_ops.subtract(b, a))


_OPERATIONS: dict[str, Callable[[IntArray, IntArray], IntArray]] = {
    "&": slice_ops.intersect,
    "|": slice_ops.union,
    "-": slice_ops.subtract,
    "^": _symmetric_difference,
}


def _combine(symbol: str, left: Mask, right: object) -> Mask:
    return _Combined(symbol, left, right) if isinstance(right, Mask) else NotImplemented


def _inner_name(mask: Mask) -> str:
    return f"({mask.name})" if isinstance(mask, _Combined) else mask.name


@dataclass(frozen=True)
class _Combined(Mask):
    symbol: str
    left: Mask
    right: Mask

    @property
    def name(self) -> str:
        return f"{_inner_name(self.left)} {self.symbol} {_inner_name(self.right)}"

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        operation = _OPERATIONS[self.symbol]
        return operation(self.left.slices(q_len, kv_len), self.right.slices(q_len, kv_len))


@dataclass(frozen=True)
class _Complement(Mask):
    inner: Mask

    @property
    def name(self) -> str:
        return f"~{_inner_name(self.inner)}"

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        return slice_ops.complement(self.inner.slices(q_len, kv_len), q_len, kv_len)
