"""Copying and adding up many blocks in one launch, in Triton.

A program takes a tile of tokens of one head of a target and adds up its sources in the order of
the table; one source is a copy. Targets and sources lie in any of several tensors.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from dcp.kernels.triton_device import cast, device_function, read, widened


@device_function
def place_of(table, column, tensors, head, UNIT: tl.constexpr):
    """As `view_of`, for a view into one of several tensors of one dtype."""
    which = tl.load(table + column)
    base = tensors[0]
    for number in tl.static_range(1, len(tensors)):
        base = tl.where(which == number, tensors[number], base)
    offset = tl.load(table + column + 1) * UNIT
    head_stride = tl.load(table + column + 3) * UNIT
    return base + (offset + head * head_stride), tl.load(table + column + 2) * UNIT


@triton.jit
def copy_kernel(
    targets,
    sources,
    tiles,
    rows,
    items,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNIT: tl.constexpr,
    ROW: tl.constexpr,
    ITEM: tl.constexpr,
):
    """One tile of tokens of one head of a target.

    Args:
        targets, sources: Tuples of tensors, each of one dtype: floats, or int16 as bits to copy.
        tiles: (row, first token, head) of each program.
        rows: ROW numbers a target: length, 1 if it holds nothing to add to, first and last item,
            elements a token and head, then its view.
        items: ITEM numbers a source: its view.
    """
    tile = tiles + tl.program_id(0) * 3
    row = rows + tl.load(tile) * ROW
    head = read(tile, 2)
    tokens = read(tile, 1) + tl.arange(0, TILE)
    exists = tokens < read(row, 0)
    held = exists & (read(row, 1) == 0)
    columns = read(row, 4)
    target, target_stride = place_of(row, 5, targets, head, UNIT)
    for column in range(0, columns, COLUMNS):
        dims = column + tl.arange(0, COLUMNS)
        inside = dims[None, :] < columns
        target_at = target + tokens[:, None] * target_stride + dims[None, :]
        total = widened(tl.load(target_at, mask=held[:, None] & inside, other=0))
        for number in range(read(row, 2), read(row, 3)):
            source, stride = place_of(items + number * ITEM, 0, sources, head, UNIT)
            source_at = source + tokens[:, None] * stride + dims[None, :]
            total += widened(tl.load(source_at, mask=exists[:, None] & inside, other=0))
        value = cast(total, targets[0].dtype.element_ty)
        tl.store(target_at, value, mask=exists[:, None] & inside)
