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
from typing import Any

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
class Draft:
    """One launch's table before it is on the device.

    Attributes:
        tiles, rows, items: As above.
        slices: As above, maybe shared with other drafts; None for kernels that know no masks.
        wide_loads: Whether the unit of wide views is to be as large as they allow; each unit is
            a kernel of its own to compile.
    """

    tiles: IntArray
    rows: Records
    items: Records
    slices: IntArray | None = None
    wide_loads: bool = True

    def packed(self, unit: int) -> list[IntArray]:
        """The arrays as the kernels read them."""
        arrays = [self.tiles, self.rows.packed(unit), self.items.packed(unit)]
        return arrays if self.slices is None else [*arrays, self.slices]


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """One launch's table on the device.

    Attributes:
        arrays: Its tiles, rows, items and perhaps slices: parts of one tensor, int64, 1-D.
        programs: Number of tiles.
        unit: Unit of the wide views' offsets and strides.
        row, item: Numbers of a row and of an item.
    """

    arrays: tuple[Tensor, ...]
    programs: int
    unit: int
    row: int
    item: int

    def arguments(self) -> dict[str, Any]:
        """What kernels are told of it."""
        arrays = dict(zip(("tiles", "rows", "items", "slices"), self.arrays, strict=False))
        return {**arrays, "UNIT": self.unit, "ROW": self.row, "ITEM": self.item}


def build(drafts: list[Draft], device: torch.device) -> list[Table]:
    """Pack tables and bring them to the device, all in one transfer."""
    units = [_unit(draft) for draft in drafts]
    packed = [draft.packed(unit) for draft, unit in zip(drafts, units, strict=True)]
    begins: dict[int, int] = {}  # of each array, by its identity
    flat, total = [np.empty(0, dtype=np.int64)], 0
    for array in (array for arrays in packed for array in arrays):
        if id(array) not in begins:
            begins[id(array)] = total
            padding = -array.size % _ALIGNMENT
            flat += [array.ravel(), np.zeros(padding, dtype=np.int64)]
            total += array.size + padding
    data = _on_device(np.concatenate(flat), device)
    return [
        Table(
            arrays=tuple(data[begins[id(one)] : begins[id(one)] + one.size] for one in arrays),
            programs=len(arrays[0]),
            unit=unit,
            row=arrays[1].shape[1],
            item=arrays[2].shape[1],
        )
        for unit, arrays in zip(units, packed, strict=True)
    ]


def _unit(draft: Draft) -> int:
    if not draft.wide_loads:
        return 1
    numbers = [records.wide[:, :, 1:].ravel() for records in (draft.rows, draft.items)]
    return int(np.gcd.reduce(np.concatenate([[_UNIT], *numbers])))


def _on_device(flat: IntArray, device: torch.device) -> Tensor:
    table = torch.from_numpy(flat.astype(np.int64))
    # From pageable memory the host would wait for the copy.
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


def views(*of: IntArray) -> IntArray:
    """Views of several tensors side by side, [n, tensors, 4], each given as [n, 4]."""
    return np.stack(of, axis=1)


def no_views(count: int) -> IntArray:
    """No views of as many records."""
    return np.empty((count, 0, VIEW), dtype=np.int64)


def tiles_of(lengths: IntArray, heads: IntArray, tile: int) -> IntArray:
    """Cut every row into tiles of tokens, for every head: (row, first token, head), [tiles, 3]."""
    counts = -(-lengths // tile) * heads
    row = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([row, number // heads[row] * tile, number % heads[row]], axis=1)
