"""One phase of a placed and scheduled batch, as lowering takes it."""

from __future__ import annotations

from dataclasses import dataclass

from dcp.arrays import IntArray
from dcp.blocks import KEY_SIDE, BlockGraph, Kind
from dcp.ordering import row_order
from dcp.scheduling import KEY_INPUT, KEY_RESULT, QUERY_INPUTS, QUERY_RESULT, Schedule


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
    comps: IntArray

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
        )
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
        query = QUERY_RESULT[self.schedule.phase]
        return (query,) if self.schedule.phase == "forward" else (query, KEY_RESULT)

    def comp_block(self, kind: Kind) -> IntArray:
        """Block of the data of a kind that each computation touches, in program order, [C]."""
        blocks = self.blocks
        block = blocks.comp_kv if kind in KEY_SIDE else blocks.comp_q
        return block[self.comps]

    def key(
        self, rank: IntArray, kind: IntArray | int, block: IntArray, group: IntArray
    ) -> IntArray:
        """One number for data on a rank, [n]; numbers ascend with (rank, kind, block, group)."""
        data = (rank * len(Kind) + kind) * self.blocks.num_token_blocks + block
        return data * len(self.blocks.groups) + group
