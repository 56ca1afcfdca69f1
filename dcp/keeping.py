"""Inputs that forward has received, kept for backward, so that they are not sent again.

A computation runs on the same device in both phases. So what forward brought a device of a kind
of input is all that backward reads of it there, and where a kind is kept, backward sends none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.blocks import BlockGraph, Kind
from dcp.cluster import Cluster
from dcp.instructions import (
    ARRIVAL,
    KEPT_ITEM,
    KIND_OF_BUFFER,
    SLOT,
    Attention,
    Buffer,
    CommLaunch,
    Copy,
    Instruction,
    Items,
    Program,
    Reduce,
)
from dcp.ordering import row_order
from dcp.scheduling import Schedule
from dcp.slot_table import offsets_within

_CHOICES = ((), (Kind.KV,), (Kind.Q,), (Kind.Q, Kind.KV))
# Fields of attention items that name slots of inputs, their kinds, and the fields of their blocks.
_INPUTS = (("q", Kind.Q, "q_block"), ("kv", Kind.KV, "kv_block"))


def choose_kept(
    blocks: BlockGraph,
    cluster: Cluster,
    forward: Schedule,
    backward: Schedule,
    keep_bytes: int | None,
) -> tuple[Kind, ...]:
    """Choose the kinds of input to keep.

    Args:
        blocks: The batch in blocks.
        cluster: Devices and links.
        forward, backward: Both phases, in which everything is sent.
        keep_bytes: Most bytes that a device may keep; None for any number.

    Returns:
        Of the kinds, alone or together, that fit on every device, those that save backward the
        most bytes between nodes, and then the most bytes in all; the fewest of equals.
    """

    def most_kept(kinds: tuple[Kind, ...]) -> int:
        moved = forward.transfers
        chosen = np.isin(moved.kind, kinds)
        kept = np.bincount(moved.dst[chosen], moved.bytes_of(blocks)[chosen])
        return int(kept.max(initial=0))

    def saved(kinds: tuple[Kind, ...]) -> tuple[int, int]:
        moved = backward.transfers
        size = moved.bytes_of(blocks) * np.isin(moved.kind, kinds)
        crosses = cluster.device_node[moved.src] != cluster.device_node[moved.dst]
        return int(size[crosses].sum()), int(size.sum())

    if keep_bytes == 0:
        return ()
    fitting = [k for k in _CHOICES if keep_bytes is None or most_kept(k) <= keep_bytes]
    return max(fitting, key=saved)


def without(schedule: Schedule, kinds: tuple[Kind, ...]) -> Schedule:
    """A schedule that does not send some kinds of input."""
    if not kinds:
        return schedule
    moved = schedule.transfers
    sent = ~np.isin(moved.kind, kinds)
    return replace(schedule, transfers=moved.chosen(sent))


def hand_over(
    blocks: BlockGraph,
    token_home: IntArray,
    forward: list[Program],
    backward: list[Program],
    kinds: tuple[Kind, ...],
) -> tuple[list[Program], list[Program]]:
    """Let what forward receives of some kinds stay where it is until backward has read it.

    Args:
        blocks: The batch in blocks.
        token_home: Home of every token block, [T].
        forward: Programs of all ranks.
        backward: Those of a schedule that does not send these kinds.
        kinds: Kinds of input that are kept.

    Returns:
        Programs in which these kinds' arenas have one slot for each block, the same in both.
    """
    if not kinds:
        return forward, backward
    held, read = [], []
    for rank, (giver, taker) in enumerate(zip(forward, backward, strict=True)):
        kept, at_home = _Kept.of(blocks, giver, kinds), token_home == rank
        held.append(_on_slots(giver, kept, at_home))
        taken = _on_slots(taker, kept, at_home)
        items = np.zeros(len(kept.slots), dtype=KEPT_ITEM)
        items["slot"] = np.arange(len(taken.slots) - len(items), len(taken.slots))
        items["block"], items["group"] = kept.block, kept.group
        read.append(msgspec.structs.replace(taken, kept=items))
    return held, read


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kept:
    """What a rank keeps.

    Attributes:
        kinds, buffers: Kinds that are kept, and their arenas.
        slots: SLOT records, [n].
        block, group: What each slot holds, [n].
        key: A number for kind, block and group together, in an array of this shape, [n].
    """

    kinds: tuple[Kind, ...]
    buffers: tuple[Buffer, ...]
    slots: Items
    block: IntArray
    group: IntArray
    key: IntArray
    shape: tuple[int, ...]

    @classmethod
    def of(cls, blocks: BlockGraph, program: Program, kinds: tuple[Kind, ...]) -> _Kept:
        """One slot for everything that a forward program receives of these kinds.

        What arrives together gets neighbouring slots in the order of its tokens.
        """
        buffers = tuple(ARRIVAL[kind] for kind in kinds)
        launches = [one for one in program.instructions if isinstance(one, CommLaunch)]
        rows = [(one.step, *row) for one in launches for row in one.receives.tolist()]
        step, _, slot, block, group = np.array(rows, dtype=np.int64).reshape(-1, 5).T
        buffer = program.slots["buffer"][slot]
        order = row_order(buffer, step, group, block)
        order = order[np.isin(buffer[order], buffers)]
        buffer, block, group = buffer[order], block[order], group[order]
        kind = KIND_OF_BUFFER[buffer]
        slots = np.zeros(len(order), dtype=SLOT)
        slots["buffer"], slots["group"] = buffer, -1
        heads = np.where(kind == Kind.Q, blocks.groups.q_count[group], 1)
        slots["size"] = blocks.token_length[block] * heads
        slots["offset"] = offsets_within(buffer, slots["size"])
        shape = blocks.data_bytes.shape
        key = np.ravel_multi_index((kind, block, group), shape)
        return cls(
            kinds=kinds,
            buffers=buffers,
            slots=slots,
            block=block,
            group=group,
            key=key,
            shape=shape,
        )

    def number(self, kind: IntArray, block: IntArray, group: IntArray) -> IntArray:
        """Position of the slot of each data block."""
        order, keys = self._sorted
        wanted = np.ravel_multi_index((kind, block, group), self.shape)
        found: IntArray = order[np.searchsorted(keys, wanted)]
        return found

    @cached_property
    def _sorted(self) -> tuple[IntArray, IntArray]:
        """Positions in the order of their keys, and the keys, [n] each."""
        order = np.argsort(self.key)
        return order, self.key[order]


def _on_slots(program: Program, kept: _Kept, at_home: BoolArray) -> Program:
    """A program with the slots of what is kept in place of its own for these kinds."""
    stays = ~np.isin(program.slots["buffer"], kept.buffers)
    places = _Places(
        kept=kept,
        at_home=at_home,
        buffer=program.slots["buffer"],
        number=np.cumsum(stays) - 1,
        first=int(stays.sum()),
    )
    rows = program.arena_rows.copy()
    rows[list(kept.buffers)] = 0
    np.add.at(rows, kept.slots["buffer"], kept.slots["size"])
    return msgspec.structs.replace(
        program,
        instructions=[places.instruction(one) for one in program.instructions],
        slots=np.concatenate([program.slots[stays], kept.slots]),
        arena_rows=rows,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Places:
    """Where a program's operands are once its slots are renumbered.

    Attributes:
        kept: What is kept, whose slots come last.
        at_home: Whether the rank is home to a token block, [T].
        buffer: Buffer of each slot before.
        number: Its number after, where it stays.
        first: Number of the first slot of what is kept.
    """

    kept: _Kept
    at_home: BoolArray
    buffer: IntArray
    number: IntArray
    first: int

    def instruction(self, old: Instruction) -> Instruction:
        """An instruction on the new slots."""
        match old:
            case Attention(items=items):
                return msgspec.structs.replace(old, items=self._attention(items))
            case Reduce(items=items) | Copy(items=items):
                return msgspec.structs.replace(old, items=self._moving(items, "src", "dst"))
            case CommLaunch(sends=sends, receives=receives):
                sends, receives = self._moving(sends, "slot"), self._moving(receives, "slot")
                return msgspec.structs.replace(old, sends=sends, receives=receives)
        return old

    def _attention(self, items: Items) -> Items:
        new = items.copy()
        for field in {"dout", "out", "dq", "dkv"} & set(items.dtype.names or ()):
            new[field] = self.number[items[field]]
        for field, kind, block in _INPUTS:
            kinds = np.full(len(items), kind)
            new[field] = self._slots(items[field], kinds, items[block], items["group"])
        return new

    def _moving(self, items: Items, *fields: str) -> Items:
        new = items.copy()
        for field in fields:
            kinds = KIND_OF_BUFFER[self.buffer[items[field]]]
            new[field] = self._slots(items[field], kinds, items["block"], items["group"])
        return new

    def _slots(self, slot: IntArray, kind: IntArray, block: IntArray, group: IntArray) -> IntArray:
        """New slots of data blocks; where a block is kept, its old slot means nothing."""
        is_kept = np.isin(kind, self.kept.kinds) & ~self.at_home[block]
        new = np.empty(len(slot), dtype=np.int64)
        new[is_kept] = self.first + self.kept.number(kind[is_kept], block[is_kept], group[is_kept])
        new[~is_kept] = self.number[slot[~is_kept]]
        return new
