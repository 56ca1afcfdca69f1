"""What the Triton kernels share on the device: reading tables, loading rows, cutting slices.

Importing this needs triton. Every table is int64 and is laid out by `triton_tables`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def device_function(function: Any) -> Any:
    """Make a function callable from kernels.

    The interpreter patches all of the language at every call of another jitted function, which
    would take most of its time; it is content with plain functions.
    """
    return function if triton.knobs.runtime.interpret else triton.jit(function)


@device_function
def computable(values):
    """What the interpreter can compute with; it multiplies the bit patterns of bfloat16."""
    if _INTERPRETED and values.dtype.is_bf16():
        return values.to(tl.float32)
    else:
        return values


@device_function
def widened(values):
    """Floats as float32, bits as they are."""
    if values.dtype.is_floating():
        return values.to(tl.float32)
    else:
        return values


@device_function
def cast(values, dtype: tl.constexpr):
    """Round to the nearest value of a dtype; the interpreter would cut bfloat16 off."""
    if _INTERPRETED and dtype.is_bf16():
        bits = values.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        values = (bits & -0x10000).to(tl.float32, bitcast=True)
    return values.to(dtype)


@device_function
def read(table, column):
    """Read a count or an index, which fits 32 bits."""
    return tl.load(table + column).to(tl.int32)


@device_function
def view_of(table, column, home, arena, head, UNIT: tl.constexpr):
    """Where the rows of one head lie: pointer to the first, and the stride between tokens.

    A view is (which of two tensors, offset, token stride, head stride). The last three are stored
    in units of UNIT elements, so that the compiler sees what divides them and uses wide loads.
    """
    base = tl.where(tl.load(table + column) == 0, home, arena)
    offset = tl.load(table + column + 1) * UNIT
    head_stride = tl.load(table + column + 3) * UNIT
    return base + (offset + head * head_stride), tl.load(table + column + 2) * UNIT


@device_function
def load_rows(first, stride, rows, limit, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr):
    """Load rows of HEAD_DIM elements, [rows, PADDED]; 0 from `limit` on and in the padding.

    A limit of None says that every row exists.
    """
    dims = tl.arange(0, PADDED)
    pointers = first + rows[:, None] * stride + dims[None, :]
    if limit is None:
        if HEAD_DIM == PADDED:
            values = tl.load(pointers)
        else:
            values = tl.load(pointers, mask=dims[None, :] < HEAD_DIM, other=0.0)
    else:
        if HEAD_DIM == PADDED:
            values = tl.load(pointers, mask=rows[:, None] < limit, other=0.0)
        else:
            exists = (rows[:, None] < limit) & (dims[None, :] < HEAD_DIM)
            values = tl.load(pointers, mask=exists, other=0.0)
    return computable(values)


@device_function
def store_rows(first, stride, rows, limit, values, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr):
    """Store rows of HEAD_DIM elements, without those from `limit` on and without the padding."""
    dims = tl.arange(0, PADDED)
    pointers = first + rows[:, None] * stride + dims[None, :]
    exists = rows[:, None] < limit
    if HEAD_DIM != PADDED:
        exists = exists & (dims[None, :] < HEAD_DIM)
    tl.store(pointers, cast(values, first.dtype.element_ty), mask=exists)


@device_function
def load_sums(first, stride, queries, limit):
    """Load a row sum of each query; 0 from `limit` on."""
    return tl.load(first + queries * stride, mask=queries < limit, other=0.0)


@device_function
def base2_lse(lse):
    """Turn lse to base 2; rows without any key get +inf, so that weights are 0 and not NaN."""
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)


@device_function
def slice_bounds(slices, index, TRANSPOSED: tl.constexpr):
    """Read a mask slice (r0, r1, c0, c1, lo, hi): rows are queries, or keys if TRANSPOSED."""
    row = slices + index * 6
    q0, q1, k0, k1 = read(row, 0), read(row, 1), read(row, 2), read(row, 3)
    lo, hi = read(row, 4), read(row, 5)
    if TRANSPOSED:
        return k0, k1, q0, q1, -hi, -lo
    else:
        return q0, q1, k0, k1, lo, hi


@device_function
def cut_slice(r0, r1, c0, c1, lo, hi, begin, end, TILE: tl.constexpr):
    """Cut the columns that rows begin … end − 1 see of a slice into three runs.

    Columns of [left, inner) and [right, last) need the mask, those of [inner, right) are seen by
    every row, and their number is a multiple of TILE. A slice that the rows do not meet gives
    three empty runs.
    """
    first_row, last_row = tl.maximum(begin, r0), tl.minimum(end, r1) - 1
    left = tl.maximum(c0, first_row + lo)
    last = tl.minimum(c1, last_row + hi + 1)
    last = tl.where(first_row <= last_row, tl.maximum(last, left), left)
    seen_from = tl.maximum(c0, end - 1 + lo)
    seen_to = tl.minimum(c1, begin + hi + 1)
    covered = (r0 <= begin) & (end <= r1)
    whole = tl.where(covered, tl.maximum(seen_to - seen_from, 0) // TILE, 0)
    inner = tl.where(whole > 0, seen_from, left)
    return left, inner, inner + whole * TILE, last


@device_function
def masked_tile(number, left, inner, right, last, TILE: tl.constexpr):
    """First column and end of the columns of a tile that needs the mask, counted over both runs."""
    on_left = (inner - left + TILE - 1) // TILE
    begin = tl.where(number < on_left, left + number * TILE, right + (number - on_left) * TILE)
    return begin, tl.where(number < on_left, inner, last)


@device_function
def masked_tiles(left, inner, right, last, TILE: tl.constexpr):
    """How many tiles need the mask."""
    return (inner - left + TILE - 1) // TILE + (last - right + TILE - 1) // TILE


@device_function
def allowed(rows, columns, limit, r0, r1, lo, hi):
    """Which pairs of a tile a slice allows, [rows, columns]; columns start inside the slice."""
    difference = columns[None, :] - rows[:, None]
    seen = (lo <= difference) & (difference <= hi) & (columns[None, :] < limit)
    return seen & (rows[:, None] >= r0) & (rows[:, None] < r1)
