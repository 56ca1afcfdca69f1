"""Naming what is wrong with a plan: rank, phase, instruction and block."""

from __future__ import annotations

from dataclasses import dataclass

from dcp.errors import PlanCheckError
from dcp.instructions import Instruction
from dcp.scheduling import Phase


@dataclass(frozen=True)
class Site:
    """One rank's program in one phase."""

    rank: int
    phase: Phase
    instructions: list[Instruction]

    def fault(
        self, text: str, *, index: int | None = None, block: int | None = None, group: int = 0
    ) -> PlanCheckError:
        """The error to raise, with as much of the place as is known.

        Args:
            text: What is wrong.
            index: Position of the instruction in the program.
            block, group: Token block and head group that it concerns.
        """
        place = [f"rank {self.rank}", self.phase]
        if index is not None:
            place.append(f"instruction {index} ({name_of(self.instructions[index])})")
        if block is not None:
            place.append(f"block {block} group {group}")
        return PlanCheckError(f"{', '.join(place)}: {text}")


def name_of(instruction: Instruction) -> str:
    """Lower-case name of an instruction's kind."""
    return type(instruction).__name__.lower()
