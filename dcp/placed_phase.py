"""One phase of a placed and scheduled batch, as lowering takes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import Int32Array, IntArray
from dcp.blocks import BlockGraph, Kind
from dcp.ordering import row_order
from dcp.scheduling import KEY_INPUT, PHASE_RESULTS, QUERY_INPUTS, Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedPhase:
    """Blocks, where they are and when they run.

    Attributes:
        blocks: The batch in blocks.
        token_home, comp_device: The placement, [T] and [C].
        num_ranks: Ranks.
        schedule: Divisions and transfers.
        comps: Computation blocks in program order, rank after rank, [C].
    """

    blocks: BlockGraph
    token_home: IntArray
    comp_device: IntArray
    num_ranks: int
    schedule: Schedule
    comps: Int32Array

    @classmethod
    def of(
        cls,
        blocks: BlockGraph,
        token_home: IntArray,
        comp_device: IntArray,
        num_ranks: int,
        schedule: Schedule,
    ) -> PlacedPhase:
        """Order the computation blocks by rank, division, group, queries, keys."""
        comps = row_order(
            comp_device,
            schedule.comp_division,
            blocks.comp_group,
            blocks.comp_q,
            blocks.comp_kv,
        ).astype(np.int32)
        return cls(
            blocks=blocks,
            token_home=token_home,
            comp_device=comp_device,
            num_ranks=num_ranks,
            schedule=schedule,
            comps=comps,
        )

    @property
    def inputs(self) -> tuple[Kind, ...]:
        """Kinds of data block that computing reads."""
        return (*QUERY_INPUTS[self.schedule.phase], KEY_INPUT)

    @property
    def results(self) -> tuple[Kind, ...]:
        """Kinds of data block that computing adds to."""
        return PHASE_RESULTS[self.schedule.phase]

    def comp_block(self, kind: Kind) -> IntArray:
        """Block of the data of a kind that each computation touches, in program order, [C]."""
        return self.blocks.comp_block(kind)[self.comps]

    def key(
        self, rank: IntArray, kind: IntArray | int, block: IntArray, group: IntArray
    ) -> IntArray:
        """One number for data on a rank, [n]; numbers ascend with (rank, kind, block, group)."""
        data = (rank * len(Kind) + kind) * self.blocks.num_token_blocks + block
        return data * len(self.blocks.groups) + group
