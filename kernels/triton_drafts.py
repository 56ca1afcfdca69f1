"""Tables for whole attention and reduction instructions: all items of one in one launch.

Items that share an accumulator are one row of a table, in the order of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.errors import BackendError
from dcp.instructions import Attention, Items, Program
from dcp.kernels.triton_places import Places
from dcp.kernels.triton_tables import Draft, Records, no_views, tiles_of, views

_FAR = 2**30  # bounds of slices have to fit 32 bits, also with a token number added


class Masks:
    """Slices of a program's masks, and one for each size of blocks in which all is allowed."""

    def __init__(self, places: Places, program: Program) -> None:
        self._lengths = places.lengths
        self._ptr = program.mask_ptr
        attention = (one for one in program.instructions if isinstance(one, Attention))
        found = [np.zeros((0, 2), dtype=np.int64), *(self._sizes(one.items) for one in attention)]
        self._whole = np.unique(np.concatenate(found), axis=0)
        queries, keys = self._whole.T
        none = np.zeros_like(queries)
        whole = np.stack([none, queries, none, keys, -queries, keys], axis=1)
        self.slices = np.concatenate([program.mask_slices, whole]).astype(np.int64)
        np.clip(self.slices[:, 4:], -_FAR, _FAR, out=self.slices[:, 4:])

    def bounds(self, items: Items) -> IntArray:
        """First and last slice of every item, [items, 2]."""
        mask = items["mask"]
        sizes = self._sizes(items)
        # Sizes are in lexicographic order, so both numbers make one ascending key.
        base = int(self._whole.max(initial=0)) + 1
        key = self._whole @ [base, 1]
        whole = self._ptr[-1] + np.searchsorted(key, sizes @ [base, 1])
        begin = np.where(mask == 0, whole, self._ptr[mask])
        end = np.where(mask == 0, whole + 1, self._ptr[mask + 1])
        return np.stack([begin, end], axis=1)

    def _sizes(self, items: Items) -> IntArray:
        sides = [self._lengths[items["q_block"]], self._lengths[items["kv_block"]]]
        return np.stack(sides, axis=1).astype(np.int64)


class Rows:
    """Items grouped by the accumulator that they add to.

    Attributes:
        items: All items, group after group, in the order of the plan within one.
        first: The first item of each group.
        fresh: Whether its accumulator holds nothing before.
        begin, end: Its items.
    """

    def __init__(self, items: Items, slot: str, fresh: str) -> None:
        self.items = items[np.argsort(items[slot], kind="stable")]
        slots = self.items[slot]
        self.begin = np.flatnonzero(np.append(True, slots[1:] != slots[:-1]))
        self.end = np.append(self.begin[1:], len(slots))
        self.first = self.items[self.begin]
        self.fresh: BoolArray = np.logical_or.reduceat(self.items[fresh] != 0, self.begin)

    def check_alike(self, names: Iterable[str]) -> None:
        """Refuse accumulators whose items read their own side from different slots.

        Raises:
            BackendError: no valid plan has them.
        """
        for name in names:
            of_first = np.repeat(self.first[name], self.end - self.begin)
            if (self.items[name] != of_first).any():
                raise BackendError(
                    f"items that add to one accumulator name different slots as {name!r}; "
                    "kernel 'triton' needs one; kernel='torch' does not"
                )

    def numbers(self, length: IntArray, *more: IntArray) -> IntArray:
        """Numbers that every table's rows begin with: length, fresh, first and last item."""
        return np.stack([length, self.fresh, self.begin, self.end, *more], axis=1).astype(np.int64)


def forward(places: Places, masks: Masks, items: Items, tile: int) -> Draft:
    """Table of `forward_kernel` for an instruction's items."""
    rows = Rows(items, "out", "fresh")
    rows.check_alike(["q"])
    return _of_queries(places, masks, rows, tile, wide=("q", "out"), narrow=(("out", 1),))


def backward_dq(places: Places, masks: Masks, items: Items, tile: int) -> Draft:
    """Table of `backward_dq_kernel` for an instruction's items."""
    rows = Rows(items, "dq", "fresh_dq")
    rows.check_alike(["q", "dout"])
    sums = ("dout", 1), ("dout", 2)
    return _of_queries(places, masks, rows, tile, wide=("q", "dout", "dq"), narrow=sums)


def backward_dkv(places: Places, masks: Masks, items: Items, tile: int) -> Draft:
    """Table of `backward_dkv_kernel` for an instruction's items."""
    rows = Rows(items, "dkv", "fresh_dkv")
    rows.check_alike(["kv"])
    first, group = rows.first, rows.first["group"]
    length, ratio = places.lengths[first["kv_block"]], places.query_heads[group]
    each, of_each = rows.items, rows.items["group"]
    return Draft(
        tiles=tiles_of(length, np.ones_like(length), tile),
        rows=Records(
            numbers=rows.numbers(length, ratio),
            wide=views(
                *(
                    places.views(first[what], group, plane)
                    for what in ("kv", "dkv")
                    for plane in (0, 1)
                )
            ),
            narrow=no_views(len(first)),
        ),
        items=Records(
            numbers=masks.bounds(each),
            wide=views(places.views(each["q"], of_each, 0), places.views(each["dout"], of_each, 0)),
            narrow=views(*(places.views(each["dout"], of_each, plane) for plane in (1, 2))),
        ),
        slices=masks.slices,
    )


def merge(places: Places, items: Items, tile: int) -> Draft:
    """Table of `merge_kernel` for a reduction's items."""
    rows = Rows(items, "dst", "fresh")
    first, group = rows.first, rows.first["group"]
    each, of_each = rows.items, rows.items["group"]
    length = places.lengths[first["block"]]
    return Draft(
        tiles=tiles_of(length, places.query_heads[group], tile),
        rows=Records(
            numbers=rows.numbers(length),
            wide=views(places.views(first["dst"], group, 0)),
            narrow=views(places.views(first["dst"], group, 1)),
        ),
        items=Records(
            numbers=np.empty((len(each), 0), dtype=np.int64),
            wide=views(places.views(each["src"], of_each, 0)),
            narrow=views(places.views(each["src"], of_each, 1)),
        ),
    )


def _of_queries(
    places: Places,
    masks: Masks,
    rows: Rows,
    tile: int,
    *,
    wide: tuple[str, ...],
    narrow: tuple[tuple[str, int], ...],
) -> Draft:
    """Table of rows of queries: the first planes of some slots, and further planes, narrow."""
    first, group = rows.first, rows.first["group"]
    length, heads = places.lengths[first["q_block"]], places.query_heads[group]
    return Draft(
        tiles=tiles_of(length, heads, tile),
        rows=Records(
            numbers=rows.numbers(length, heads),
            wide=views(*(places.views(first[slot], group, 0) for slot in wide)),
            narrow=views(*(places.views(first[slot], group, plane) for slot, plane in narrow)),
        ),
        items=_key_items(places, masks, rows.items),
        slices=masks.slices,
    )


def _key_items(places: Places, masks: Masks, items: Items) -> Records:
    """Key blocks that rows of queries read."""
    group = items["group"]
    return Records(
        numbers=masks.bounds(items),
        wide=views(*(places.views(items["kv"], group, plane) for plane in (0, 1))),
        narrow=no_views(len(items)),
    )
