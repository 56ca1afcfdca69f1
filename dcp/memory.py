"""Memory that a program needs beside the caller's tensors."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from dcp.arrays import IntArray
from dcp.batch import DTYPE_BYTES, AttentionSpec
from dcp.blocks import BlockGraph
from dcp.instructions import ARENAS, Buffer, CommLaunch, CommWait, Items, Program
from dcp.traffic import item_bytes, joined

MESSAGE_ALIGNMENT_BYTES = 16  # NCCL moves what is aligned to less byte by byte

_Bytes = TypeVar("_Bytes", int, IntArray)


def padded_bytes(nbytes: _Bytes) -> _Bytes:
    """Where the next message may begin in a buffer whose first bytes are taken."""
    return -(-nbytes // MESSAGE_ALIGNMENT_BYTES) * MESSAGE_ALIGNMENT_BYTES


def row_bytes(buffer: Buffer, spec: AttentionSpec) -> int:
    """Bytes of one row of an arena, over all its planes; see the table in `dcp.instructions`."""
    accumulator, vector = spec.accumulator_bytes, spec.head_dim
    partial = DTYPE_BYTES[spec.wire_partial_dtype]
    return {
        Buffer.Q_IN: vector * spec.dtype_bytes,
        Buffer.KV_IN: 2 * vector * spec.dtype_bytes,
        Buffer.DO_IN: vector * spec.dtype_bytes + 2 * accumulator,
        Buffer.O_ACC: (vector + 1) * accumulator,
        Buffer.DQ_ACC: vector * accumulator,
        Buffer.DKV_ACC: 2 * vector * accumulator,
        Buffer.O_PART: vector * partial + accumulator,
        Buffer.DQ_PART: vector * partial,
        Buffer.DKV_PART: 2 * vector * partial,
    }[buffer]


def program_bytes(blocks: BlockGraph, program: Program) -> int:
    """Bytes of all arenas, and of the most that stands packed in messages at one time.

    Arenas that forward hands over to backward count in both.

    A received message is held from its launch to its wait; a sent one is counted until the next
    wait, or to the end where none follows.
    """
    arenas = sum(
        int(program.arena_rows[buffer]) * row_bytes(buffer, blocks.spec) for buffer in ARENAS
    )
    return arenas + _peak_message_bytes(blocks, program)


def kept_bytes(blocks: BlockGraph, program: Program) -> int:
    """Bytes of the arenas that a backward program takes over from forward."""
    return sum(
        int(program.arena_rows[buffer]) * row_bytes(buffer, blocks.spec)
        for buffer in program.kept_buffers
    )


def _peak_message_bytes(blocks: BlockGraph, program: Program) -> int:
    launches = [one for one in program.instructions if isinstance(one, CommLaunch)]
    received = iter(_totals(blocks, program, [launch.receives for launch in launches]))
    sent = iter(_totals(blocks, program, [launch.sends for launch in launches]))
    incoming: dict[int, int] = {}
    outgoing = peak = 0
    for instruction in program.instructions:
        if isinstance(instruction, CommLaunch):
            incoming[instruction.step] = next(received)
            outgoing += next(sent)
            peak = max(peak, outgoing + sum(incoming.values()))
        elif isinstance(instruction, CommWait):
            del incoming[instruction.step]
            outgoing = 0
    return peak


def _totals(blocks: BlockGraph, program: Program, launches: list[Items]) -> list[int]:
    """Bytes of a buffer for all messages of each launch in one direction, [launches]."""
    items = joined(launches)
    launch = np.repeat(np.arange(len(launches)), [len(some) for some in launches])
    peers = int(items["peer"].max(initial=0)) + 1
    messages, which = np.unique(launch * peers + items["peer"], return_inverse=True)
    size, total = np.zeros(len(messages), np.int64), np.zeros(len(launches), np.int64)
    np.add.at(size, which, item_bytes(blocks, program, items))
    np.add.at(total, messages // peers, padded_bytes(size))
    totals: list[int] = total.tolist()
    return totals
