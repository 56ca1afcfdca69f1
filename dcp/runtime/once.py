"""What is derived from a program once, however often it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from dcp.blocks import BlockGraph
from dcp.instructions import Program

T = TypeVar("T")


def once_a_program(make: Callable[[BlockGraph, Program], T]) -> Callable[[BlockGraph, Program], T]:
    """Make something for a program when it is first asked for, and keep it while that lives.

    Args:
        make: Makes it of the plan's blocks and the program. It must not hold the program, which
            would then live for ever.
    """
    made: WeakKeyDictionary[Program, T] = WeakKeyDictionary()

    @wraps(make)
    def once(blocks: BlockGraph, program: Program) -> T:
        if program not in made:
            made[program] = make(blocks, program)
        return made[program]

    return once
