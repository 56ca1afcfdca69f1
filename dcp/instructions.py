"""The plan's vocabulary: five kinds of instruction over numbered buffer slots.

A rank's program is a list of instructions. Items inside an instruction are rows of numpy
structured arrays; `block` and `group` in a row say what the slot must hold, so that an executor
knows the sizes and a checker has something to prove.

Buffers. Home inputs (Q, KV, DO) and home outputs (O, DQ, DKV) are the caller's local tensors,
[local tokens, heads, head_dim]; a slot there is (first token, tokens, head group). The others are
arenas that the executor allocates; a slot there is a run of rows, one row a (token, head):
query-side kinds have q_count[group] rows a token, key-side kinds one. Slots of an arena never
overlap; they are reused for other blocks once their content is dead.

    buffer        planes (one arena tensor each)                       dtype
    Q_IN          q [rows, head_dim]                                   spec
    KV_IN         k, v [rows, head_dim]                                spec
    DO_IN         dout [rows, head_dim]; lse, delta [rows]             spec; accumulator
    O_ACC         out [rows, head_dim]; lse [rows]                     accumulator
    DQ_ACC        dq [rows, head_dim]                                  accumulator
    DKV_ACC       dk, dv [rows, head_dim]                              accumulator
    O_PART        out [rows, head_dim]; lse [rows]                     wire partial; accumulator
    DQ_PART       dq [rows, head_dim]                                  wire partial
    DKV_PART      dk, dv [rows, head_dim]                              wire partial
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dcp.arrays import IntArray
from dcp.blocks import Kind
from dcp.scheduling import Phase

Items: TypeAlias = npt.NDArray[np.void]


class Buffer(IntEnum):
    """Where a slot lies; see the module's table."""

    Q = 0
    KV = 1
    DO = 2
    O = 3  # noqa: E741 - the field's name for the output
    DQ = 4
    DKV = 5
    Q_IN = 6
    KV_IN = 7
    DO_IN = 8
    O_ACC = 9
    DQ_ACC = 10
    DKV_ACC = 11
    O_PART = 12
    DQ_PART = 13
    DKV_PART = 14


HOME_BUFFERS = (Buffer.Q, Buffer.KV, Buffer.DO, Buffer.O, Buffer.DQ, Buffer.DKV)
ARENAS = tuple(buffer for buffer in Buffer if buffer not in HOME_BUFFERS)

HOME_INPUT = {Kind.Q: Buffer.Q, Kind.KV: Buffer.KV, Kind.DO: Buffer.DO}
HOME_OUTPUT = {Kind.O: Buffer.O, Kind.DQ: Buffer.DQ, Kind.DKV: Buffer.DKV}
ACCUMULATOR = {Kind.O: Buffer.O_ACC, Kind.DQ: Buffer.DQ_ACC, Kind.DKV: Buffer.DKV_ACC}
ARRIVAL = {
    Kind.Q: Buffer.Q_IN,
    Kind.KV: Buffer.KV_IN,
    Kind.DO: Buffer.DO_IN,
    Kind.O: Buffer.O_PART,
    Kind.DQ: Buffer.DQ_PART,
    Kind.DKV: Buffer.DKV_PART,
}
KIND_OF = {
    buffer: kind
    for table in (HOME_INPUT, HOME_OUTPUT, ACCUMULATOR, ARRIVAL)
    for kind, buffer in table.items()
}
KIND_OF_BUFFER = np.array([KIND_OF[buffer] for buffer in Buffer])


def _record(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, "<i4") for name in names])


# `fresh` says that the accumulator slot holds nothing yet: overwrite rather than merge or add.
FORWARD_ITEM = _record("q", "kv", "out", "q_block", "kv_block", "group", "mask", "fresh")
BACKWARD_ITEM = _record(
    "q", "kv", "dout", "dq", "dkv", "q_block", "kv_block", "group", "mask", "fresh_dq", "fresh_dkv"
)
REDUCE_ITEM = _record("src", "dst", "block", "group", "fresh")
COPY_ITEM = _record("src", "dst", "block", "group")
MESSAGE_ITEM = _record("peer", "slot", "block", "group")
KEPT_ITEM = _record("slot", "block", "group")
SLOT = np.dtype([("buffer", "<i4"), ("offset", "<i8"), ("size", "<i4"), ("group", "<i4")])


class Attention(msgspec.Struct, tag="attention", frozen=True, eq=False):
    """Blockwise attention: items in order, forward (FORWARD_ITEM) or backward (BACKWARD_ITEM)."""

    division: int
    items: Items


class Reduce(msgspec.Struct, tag="reduce", frozen=True, eq=False):
    """Blockwise reduction: merge a received partial (src) into an accumulator (dst), in order."""

    items: Items


class Copy(msgspec.Struct, tag="copy", frozen=True, eq=False):
    """Blockwise copy: an accumulator (src) into its home output (dst), cast to the spec's dtype."""

    items: Items


class CommLaunch(msgspec.Struct, tag="launch", frozen=True, eq=False):
    """Start all messages of a step without waiting.

    Items with the same peer are one message, packed in the order of the items; both ends list
    them in the same order. Send slots may be reused as soon as the launch has returned. That
    sends have left is waited for at the end of the program.
    """

    step: int
    sends: Items
    receives: Items


class CommWait(msgspec.Struct, tag="wait", frozen=True, eq=False):
    """Wait until the receives of a step stand in their slots."""

    step: int


Instruction: TypeAlias = Attention | Reduce | Copy | CommLaunch | CommWait


class Program(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """One rank's work in one phase.

    Attributes:
        instructions: In order.
        slots: SLOT records, [slots]; `group` is -1 in arenas.
        arena_rows: Rows of each buffer's arena, [buffers]; 0 for home buffers.
        mask_ptr, mask_slices: The masks that items name, as in `BlockGraph`.
        kept: KEPT_ITEM records of what stands in slots of arrivals as backward begins, because
            forward left it in slots at the same places; empty in forward. The arenas of these
            slots are forward's, handed over.
    """

    instructions: list[Instruction]
    slots: Items
    arena_rows: IntArray
    mask_ptr: IntArray
    mask_slices: IntArray
    kept: Items = msgspec.field(default_factory=lambda: np.zeros(0, dtype=KEPT_ITEM))

    @property
    def kept_buffers(self) -> tuple[Buffer, ...]:
        """Arenas that are handed over."""
        return tuple(map(Buffer, np.unique(self.slots["buffer"][self.kept["slot"]]).tolist()))


class RankPlan(msgspec.Struct, frozen=True, eq=False):
    """What one rank executes.

    Attributes:
        rank: Its number in the context-parallel group.
        home_blocks: Token blocks it is home to, ascending, [h]: the order of its local tensors.
        forward, backward: Its programs.
    """

    rank: int
    home_blocks: IntArray
    forward: Program
    backward: Program

    def program(self, phase: Phase) -> Program:
        """Its program of one phase."""
        return self.forward if phase == "forward" else self.backward
