"""Sharing arenas: slots that never overlap, reused once their content is dead. Compiled."""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.compiled import compiled


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
    slot, slot_arena, slot_rows, busy_until = np.empty((4, len(arena)), np.int64)
    slots = _allocate(arena, birth, death, rows, slot, slot_arena, slot_rows, busy_until)
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
) -> int:
    """Fill in the slot of every content and what the slots are; returns how many there are."""
    slots = first = 0
    for content in range(len(arena)):
        if content and arena[content] != arena[content - 1]:
            first = slots
        best = -1
        for candidate in range(first, slots):
            if busy_until[candidate] >= birth[content] or slot_rows[candidate] < rows[content]:
                continue
            if best < 0 or slot_rows[candidate] < slot_rows[best]:
                best = candidate
        if best < 0:
            best = slots
            slot_arena[best] = arena[content]
            slot_rows[best] = rows[content]
            slots += 1
        slot[content] = best
        busy_until[best] = death[content]
    return slots
