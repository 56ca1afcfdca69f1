"""Plans with one thing changed, to see that it does not go unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

import dcp
from dcp.blocks import Kind
from dcp.instructions import KIND_OF, Buffer, Instruction, Items, Program
from dcp.scheduling import Phase


def program_of(plan: dcp.ExecutionPlan, rank: int, phase: Phase) -> Program:
    """One rank's program."""
    return plan.ranks[rank].program(phase)


def with_program(
    plan: dcp.ExecutionPlan, rank: int, phase: Phase, program: Program
) -> dcp.ExecutionPlan:
    """The plan with another program for one rank."""
    ranks = list(plan.ranks)
    ranks[rank] = msgspec.structs.replace(ranks[rank], **{phase: program})
    content = msgspec.structs.replace(plan.content, ranks=ranks)
    return replace(plan, content=content)


def with_instructions(
    plan: dcp.ExecutionPlan,
    rank: int,
    phase: Phase,
    edit: Callable[[list[Instruction]], list[Instruction]],
) -> dcp.ExecutionPlan:
    """The plan with one rank's list of instructions edited."""
    program = program_of(plan, rank, phase)
    edited = msgspec.structs.replace(program, instructions=edit(list(program.instructions)))
    return with_program(plan, rank, phase, edited)


def with_items(
    plan: dcp.ExecutionPlan,
    rank: int,
    phase: Phase,
    index: int,
    edit: Callable[[Items], Items],
    field: str = "items",
) -> dcp.ExecutionPlan:
    """The plan with the items of one instruction edited; `edit` gets a copy."""

    def replaced(instructions: list[Instruction]) -> list[Instruction]:
        old = instructions[index]
        items = edit(getattr(old, field).copy())
        instructions[index] = msgspec.structs.replace(old, **{field: items})
        return instructions

    return with_instructions(plan, rank, phase, replaced)


def instructions_of(
    plan: dcp.ExecutionPlan, phase: Phase, kind: type[Any]
) -> Iterator[tuple[int, int, Any]]:
    """Rank, index and instruction, for all instructions of one kind."""
    for rank in range(len(plan.ranks)):
        for index, instruction in enumerate(program_of(plan, rank, phase).instructions):
            if isinstance(instruction, kind):
                yield rank, index, instruction


def kinds_of(program: Program, items: Items) -> list[Kind]:
    """Kind of data of each message item."""
    return [KIND_OF[Buffer(b)] for b in program.slots["buffer"][items["slot"]]]


def without(items: Items, position: int) -> Items:
    """Items without one of them."""
    return np.delete(items, position)
