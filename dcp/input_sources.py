"""What brings inputs to the ranks that read or forward them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import Int32Array, IntArray
from dcp.blocks import Kind
from dcp.ordering import row_order
from dcp.placed_phase import PlacedPhase
from dcp.quarters import attention_time, launch_time


@dataclass(frozen=True, kw_only=True, eq=False)
class InputSources:
    """The transfer that brings an input to a rank; -1 where the rank is its home.

    Attributes:
        of_comp: For each kind of input, of each computation in program order, [C].
        of_send: Of what each transfer sends on, [transfers]; -1 for results too.
    """

    of_comp: dict[Kind, Int32Array]
    of_send: Int32Array

    @classmethod
    def of(cls, phase: PlacedPhase) -> InputSources:
        """Look all inputs up."""
        moved, comps = phase.schedule.transfers, phase.comps
        received = np.flatnonzero(~moved.is_result)
        what = moved.kind, moved.block, moved.group
        key = phase.key(moved.dst, *what)[received]
        order = row_order(key)
        keys = np.append(key[order], -1)
        transfers = np.append(received[order], -1).astype(np.int32)

        def find(wanted: IntArray) -> Int32Array:
            position = np.searchsorted(keys[:-1], wanted)
            return np.where(keys[position] == wanted, transfers[position], np.int32(-1))

        rank, group = phase.comp_device[comps], phase.blocks.comp_group[comps]
        return cls(
            of_comp={
                kind: find(phase.key(rank, kind, phase.comp_block(kind), group))
                for kind in phase.inputs
            },
            of_send=find(phase.key(moved.src, *what)),
        )

    def last_use(self, phase: PlacedPhase) -> IntArray:
        """Last quarter in which what a transfer brings is read; -1: never, [transfers]."""
        moved = phase.schedule.transfers
        last = np.full(len(moved) + 1, -1)  # the last one is for what is at home
        time = attention_time(phase.schedule.comp_division[phase.comps])
        for transfer in self.of_comp.values():
            np.maximum.at(last, transfer, time)
        np.maximum.at(last, self.of_send, launch_time(moved.step))
        return last[:-1]
