"""Tables for one block at a time: tensors used whole, made once for each shape and mask.

Their upload is ordered with launches by the stream that was current when they were made, so there
is one computing stream a device.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dcp.arrays import IntArray
from dcp.kernel_interface import BlockMask
from dcp.kernels import triton_tables as tables
from dcp.kernels.triton_tables import Draft, Records, Table

Strides = tuple[tuple[int, ...], ...]

_ONE_ITEM = (0, 1)
_EMPTY = 1  # the accumulator holds nothing yet
_REMEMBERED = 512  # tables; some kilobytes each


def strides(*tensors: Tensor) -> Strides:
    """Strides of tokens and heads, which is all that a table needs of whole tensors."""
    return tuple((x.stride(0), x.stride(1)) for x in tensors)


@lru_cache(_REMEMBERED)
def attention(
    length: int,
    heads: int,
    ratio: int,
    row_wide: Strides,
    row_narrow: Strides,
    item_wide: Strides,
    item_narrow: Strides,
    mask: BlockMask | None,
    block: tuple[int, int],
    tile: int,
    device: torch.device,
) -> Table:
    """Table of one block's attention.

    Args:
        length: Tokens of the side that the result belongs to.
        heads: Its heads.
        ratio: Query heads a key head.
        row_wide, row_narrow, item_wide, item_narrow: Strides of the tensors of each record.
        mask: The block's mask.
        block: Queries and keys of the block.
        tile: Tokens of a tile.
        device: Where the table is to be.
    """
    slices = _slices(mask, *block)
    draft = Draft(
        tiles=tables.tiles_of(np.array([length]), np.array([heads]), tile),
        rows=_records((length, _EMPTY, *_ONE_ITEM, ratio), row_wide, row_narrow),
        items=_records((0, len(slices)), item_wide, item_narrow),
        slices=slices,
    )
    (table,) = tables.build([draft], device)
    return table


@lru_cache(_REMEMBERED)
def reduction(
    length: int, heads: int, row: Strides, item: Strides, tile: int, device: torch.device
) -> Table:
    """Table for merging one partial into an accumulator: strides of out and lse of each."""
    draft = Draft(
        tiles=tables.tiles_of(np.array([length]), np.array([heads]), tile),
        rows=_records((length, 0, *_ONE_ITEM), row[:1], row[1:]),
        items=_records((), item[:1], item[1:]),
    )
    (table,) = tables.build([draft], device)
    return table


def _records(numbers: tuple[int, ...], wide: Strides, narrow: Strides) -> Records:
    return Records(
        numbers=np.array([numbers], dtype=np.int64), wide=_views(wide), narrow=_views(narrow)
    )


def _views(of: Strides) -> IntArray:
    views = [(0, 0, token, head) for token, head in of]
    return np.array(views, dtype=np.int64).reshape(1, -1, tables.VIEW)


def _slices(mask: BlockMask | None, q_len: int, kv_len: int) -> IntArray:
    if mask is None:
        return np.array([[0, q_len, 0, kv_len, -q_len, kv_len]], dtype=np.int64)
    # Bounds far outside the block would not fit 32 bits.
    slices = mask.slices.copy()
    np.clip(slices[:, 4:], -q_len, kv_len, out=slices[:, 4:])
    return slices
