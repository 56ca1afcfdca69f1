"""What is derived from a program is made once, and lives no longer than the program."""

from __future__ import annotations

import gc
import weakref

import msgspec
import pytest

import dcp
from dcp.blocks import BlockGraph
from dcp.instructions import Program
from dcp.runtime.attention_calls import ProgramCalls
from dcp.runtime.messages import ProgramMessages
from dcp.runtime.once import once_a_program

SPEC = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8)
PLAN = dcp.plan(dcp.Batch([40]), SPEC, dcp.Cluster(devices_per_node=2), block_size=8)


def copied_program() -> Program:
    """A program that nothing else holds."""
    return msgspec.structs.replace(PLAN.ranks[0].forward)


def test_equal_programs_have_each_their_own() -> None:
    made = []

    @once_a_program
    def number(blocks: BlockGraph, program: Program) -> int:
        made.append(blocks)
        return len(made)

    first, second = copied_program(), copied_program()
    assert [number(PLAN.blocks, one) for one in (first, second, first, second)] == [1, 2, 1, 2]
    assert made == [PLAN.blocks] * 2


@pytest.mark.parametrize("kind", [ProgramCalls, ProgramMessages])
def test_nothing_keeps_a_program_alive(kind: type[ProgramCalls] | type[ProgramMessages]) -> None:
    program = copied_program()
    of_program = kind.of(PLAN.blocks, program)
    assert kind.of(PLAN.blocks, program) is of_program
    lives, derived = weakref.ref(program), weakref.ref(of_program)
    del program, of_program
    gc.collect()
    assert lives() is None
    assert derived() is None
