"""Transfers straight from and to homes: what schedulers without forwarding are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.blocks import Kind
from dcp.scheduling import (
    KEY_INPUT,
    KEY_RESULT,
    QUERY_INPUTS,
    QUERY_RESULT,
    Phase,
    SchedulingProblem,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Touches:
    """Each (block, group) once for every device that computes with it and is not its home.

    Attributes:
        block, group, device, home: [n], ordered by (block, group, device).
        index: Touch of every computation block, [C]; n where it runs at the block's home.
    """

    block: IntArray
    group: IntArray
    device: IntArray
    home: IntArray
    index: IntArray

    @classmethod
    def of(cls, problem: SchedulingProblem, block: IntArray) -> Touches:
        """Touches of the queries (`blocks.comp_q`) or of the keys (`blocks.comp_kv`)."""
        groups, devices = len(problem.blocks.groups), problem.cluster.num_devices
        away: BoolArray = problem.comp_device != problem.token_home[block]
        key = (block * groups + problem.blocks.comp_group) * devices + problem.comp_device
        distinct, inverse = np.unique(key[away], return_inverse=True)
        index = np.full(len(block), len(distinct))
        index[away] = inverse
        touched = distinct // (groups * devices)
        return cls(
            block=touched,
            group=distinct // devices % groups,
            device=distinct % devices,
            home=problem.token_home[touched],
            index=index,
        )

    def __len__(self) -> int:
        return len(self.block)

    def from_home(self, kinds: Iterable[Kind], step: IntArray | int) -> IntArray:
        """Rows for `Transfers.of` that bring these kinds to every device, [n * kinds, 6]."""
        return self._rows(kinds, self.home, self.device, step)

    def to_home(self, kinds: Iterable[Kind], step: IntArray | int) -> IntArray:
        """Rows for `Transfers.of` that send these kinds to the home, [n * kinds, 6]."""
        return self._rows(kinds, self.device, self.home, step)

    def _rows(
        self, kinds: Iterable[Kind], src: IntArray, dst: IntArray, step: IntArray | int
    ) -> IntArray:
        return np.concatenate(
            [transfer_rows(kind, self.block, self.group, src, dst, step) for kind in kinds]
        )


def transfer_rows(
    kind: Kind,
    block: IntArray,
    group: IntArray,
    src: IntArray,
    dst: IntArray,
    step: IntArray | int,
) -> IntArray:
    """Rows (kind, block, group, src, dst, step) for `Transfers.of`, [n, 6]; none to oneself."""
    columns = np.broadcast_arrays(np.int64(kind), block, group, src, dst, step)
    rows: IntArray = np.stack([column.reshape(-1) for column in columns], axis=1)
    keep: BoolArray = rows[:, 3] != rows[:, 4]
    return rows[keep]


def results_home(
    phase: Phase, queries: Touches, keys: Touches, step: IntArray | int
) -> list[IntArray]:
    """Rows that send every partial result home at one step."""
    rows = [queries.to_home([QUERY_RESULT[phase]], step)]
    if phase == "backward":
        rows.append(keys.to_home([KEY_RESULT], step))
    return rows


def inputs_from_home(
    phase: Phase,
    queries: Touches,
    keys: Touches,
    query_step: IntArray | int,
    key_step: IntArray | int,
) -> list[IntArray]:
    """Rows that bring every input to every device that computes with it."""
    return [
        queries.from_home(QUERY_INPUTS[phase], query_step),
        keys.from_home([KEY_INPUT], key_step),
    ]
