"""Tables that tell the Triton kernels where every block lies and what it has to do.

One launch serves many blocks that lie anywhere in memory, as pages do in paged attention (Kwon et
al. 2023). A table is a few arrays of int64 in one tensor on the device:

    tiles    (row, first token, head): the work of one program
    rows     one a result block: its numbers, its items, and a view for each of its tensors
    items    one a block that the result block reads: its numbers, and a view for each tensor
    slices   (q0, q1, k0, k1, lo, hi): what the masks of the items allow

A view is (which of two tensors, offset, token stride, head stride), in elements. Nothing here
needs triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dcp.arrays import IntArray

VIEW = 4
_UNIT = 16  # elements; two 16-byte words of float16, more than the widest load
_ALIGNMENT = 2  # int64; triton compiles a kernel anew where a pointer is not 16-byte aligned


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Numbers, then wide views, then narrow views of the rows or items of a table.

    Attributes:
        numbers: [n, numbers].
        wide: Views of tensors with head_dim elements a row, [n, wide, 4].
        narrow: Views of tensors with one element a row, [n, narrow, 4].
    """

    numbers: IntArray
    wide: IntArray
    narrow: IntArray

    def __len__(self) -> int:
        return len(self.numbers)

    def packed(self, unit: int) -> IntArray:
        """The records as the kernels read them, [n, columns]; wide views in units of elements."""
        wide = self.wide.copy()
        wide[:, :, 1:] //= unit
        views = np.concatenate([wide, self.narrow], axis=1)
        return np.concatenate([self.numbers, views.reshape(len(self), -1)], axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """One launch's table on the device.

    Attributes:
        tiles, rows, items, slices: Parts of one tensor, int64, 1-D.
        programs: Number of tiles.
        unit: Unit of the wide views' offsets and strides.
        row, item: Numbers of a row and of an item.
    """

    tiles: Tensor
    rows: Tensor
    items: Tensor
    slices: Tensor
    programs: int
    unit: int
    row: int
    item: int


def build(
    rows: Records, items: Records, slices: IntArray, tiles: IntArray, device: torch.device
) -> Table:
    """Pack a table and bring it to the device in one transfer."""
    unit = int(np.gcd.reduce([_UNIT, *rows.wide[:, :, 1:].flat, *items.wide[:, :, 1:].flat]))
    parts = [tiles, rows.packed(unit), items.packed(unit), slices]
    flat, begins, total = [], [], 0
    for part in parts:
        begins.append(total)
        padding = -part.size % _ALIGNMENT
        flat += [part.ravel(), np.zeros(padding, dtype=np.int64)]
        total += part.size + padding
    packed = torch.from_numpy(np.concatenate(flat).astype(np.int64)).to(device)
    sections = [
        packed[begin : begin + part.size] for begin, part in zip(begins, parts, strict=True)
    ]
    return Table(
        tiles=sections[0],
        rows=sections[1],
        items=sections[2],
        slices=sections[3],
        programs=len(tiles),
        unit=unit,
        row=parts[1].shape[1],
        item=parts[2].shape[1],
    )


def tiles_of(lengths: IntArray, heads: IntArray, tile: int) -> IntArray:
    """Cut every row into tiles of tokens, for every head: (row, first token, head), [tiles, 3]."""
    counts = -(-lengths // tile) * heads
    row = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([row, number // heads[row] * tile, number % heads[row]], axis=1)
