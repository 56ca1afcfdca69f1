"""Sharing arenas: slots that never overlap, reused once their content is dead. Compiled."""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.compiled import compiled, inner

_NEVER = np.iinfo(np.int64).max


def allocate(
    arena: IntArray, birth: IntArray, death: IntArray, rows: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Give every content a slot for its life; the smallest free slot that fits is reused.

    Args:
        arena: Arena of each content, ascending, [n].
        birth: First time of each content, ascending within an arena, [n].
        death: Last time of each content, [n].
        rows: Rows that each content needs, [n].

    Returns:
        The slot of every content, [n]; the arena and the rows of every slot, [slots]. Slots are
        numbered over all arenas, in the order of the arenas.
    """
    slot, slot_arena, slot_rows, busy_until, busy, free = np.empty((6, len(arena)), np.int64)
    slots = _allocate(
        arena, birth, death, rows, slot, slot_arena, slot_rows, busy_until, busy, free
    )
    return slot, slot_arena[:slots], slot_rows[:slots]


@compiled
def _allocate(
    arena: IntArray,
    birth: IntArray,
    death: IntArray,
    rows: IntArray,
    slot: IntArray,
    slot_arena: IntArray,
    slot_rows: IntArray,
    busy_until: IntArray,
    busy: IntArray,
    free: IntArray,
) -> int:
    """Fill in the slot of every content and what the slots are; returns how many there are.

    Args:
        arena, birth, death, rows: Of each content.
        slot, slot_arena, slot_rows, busy_until: To be filled in.
        busy, free: Room for slots of an arena: those in use, in any order, and keys of those that
            are not, ascending with rows and number.
    """
    slots = num_busy = num_free = 0
    soonest = np.int64(_NEVER)
    for content in range(len(arena)):
        if content and arena[content] != arena[content - 1]:
            num_busy, num_free, soonest = 0, 0, np.int64(_NEVER)
        if soonest < birth[content]:
            checked, num_busy, soonest = num_busy, 0, np.int64(_NEVER)
            for one in busy[:checked]:
                if busy_until[one] < birth[content]:
                    _insert(free, num_free, slot_rows[one] << 32 | one)
                    num_free += 1
                else:
                    busy[num_busy] = one
                    num_busy += 1
                    soonest = min(soonest, busy_until[one])
        at = _position(free, num_free, rows[content] << 32)
        if at < num_free:
            chosen = free[at] & 0xFFFFFFFF
            num_free -= 1
            for place in range(at, num_free):
                free[place] = free[place + 1]
        else:
            chosen = slots
            slot_arena[chosen], slot_rows[chosen] = arena[content], rows[content]
            slots += 1
        slot[content] = chosen
        busy_until[chosen] = death[content]
        soonest = min(soonest, death[content])
        busy[num_busy] = chosen
        num_busy += 1
    return slots


@inner
def _insert(keys: IntArray, count: int, key: int) -> None:
    """Put a key among so many ascending ones."""
    at = _position(keys, count, key)
    for place in range(count, at, -1):
        keys[place] = keys[place - 1]
    keys[at] = key


@inner
def _position(keys: IntArray, count: int, key: int) -> int:
    """How many of so many ascending keys are below this one."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low
