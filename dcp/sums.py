"""Sums of partial results: what each device adds up, over the divisions that it works in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import Int32Array, IntArray
from dcp.blocks import BlockGraph, Kind


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """Results of one kind as devices add them up, one sum a (block, group, device).

    Attributes:
        of_comp: Sum that each computation block is part of, [C].
        device: Device of each sum, [s].
        accumulator_bytes: Its size, [s].
    """

    of_comp: Int32Array
    device: IntArray
    accumulator_bytes: IntArray

    @classmethod
    def of(cls, blocks: BlockGraph, comp_device: IntArray, kind: Kind) -> Sums:
        """Sums of one kind of result of placed blocks."""
        devices = int(comp_device.max(initial=0)) + 1
        key = (
            blocks.comp_block(kind) * len(blocks.groups) + blocks.comp_group
        ) * devices + comp_device
        distinct, of_comp = np.unique(key, return_inverse=True)
        data, device = np.divmod(distinct, devices)
        return cls(
            of_comp=of_comp.astype(np.int32),
            device=device,
            accumulator_bytes=blocks.accumulator_bytes[kind].reshape(-1)[data],
        )

    def continued(self, comp_division: IntArray, divisions: int) -> tuple[IntArray, IntArray]:
        """Sums that a division goes on with after an earlier one, and that division, [m] each."""
        first = np.full(len(self.device), divisions)
        np.minimum.at(first, self.of_comp, comp_division)
        later = np.flatnonzero(comp_division != first[self.of_comp])
        goes_on = np.zeros(len(first), dtype=bool)
        goes_on[self.of_comp[later]] = True
        row = np.cumsum(goes_on) - 1
        works = np.zeros((np.count_nonzero(goes_on), divisions), dtype=bool)
        works[row[self.of_comp[later]], comp_division[later]] = True
        which, division = np.nonzero(works)
        return np.flatnonzero(goes_on)[which], division
