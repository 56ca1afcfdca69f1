"""The slot table of a program: arenas without overlap, home slots that are blocks at home."""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.instructions import (
    ARENAS,
    HOME_INPUT,
    HOME_OUTPUT,
    KIND_OF,
    SLOT,
    Buffer,
    Program,
)
from dcp.verification.facts import KEY_KINDS, Facts
from dcp.verification.faults import Site

NOT_HOME = -1


def check_slots(facts: Facts, site: Site, program: Program, home_blocks: IntArray) -> IntArray:
    """Check the slot table.

    Args:
        facts: What the batch asks for.
        site: Rank and phase.
        program: Its slots and arena sizes.
        home_blocks: Token blocks in the order of the rank's local tensors.
    Returns:
        Data block that each home slot is, as block × groups + group; NOT_HOME in arenas, [slots].
    Raises:
        PlanCheckError: the first fault.
    """
    slots = program.slots
    if slots.dtype != SLOT or program.arena_rows.shape != (len(Buffer),):
        raise site.fault("the slot table does not have the layout of a plan")
    buffer = slots["buffer"]
    if ((buffer < 0) | (buffer >= len(Buffer))).any():
        raise site.fault(f"slots lie in buffers {buffer.min()} … {buffer.max()} of {len(Buffer)}")
    _check_arenas(site, program)
    content = np.full(len(slots), NOT_HOME, dtype=np.int64)
    for home in (*HOME_INPUT.values(), *HOME_OUTPUT.values()):
        mine = np.flatnonzero(buffer == home)
        content[mine] = _home_content(facts, site, program, home, mine, home_blocks)
    return content


def check_memory(site: Site, program: Program) -> None:
    """Arenas are no larger than their slots.

    Raises:
        PlanCheckError: one is.
    """
    in_arena = np.isin(program.slots["buffer"], ARENAS)
    slots = program.slots[in_arena]
    used = np.bincount(slots["buffer"], slots["size"], len(Buffer)).astype(np.int64)
    if (program.arena_rows > used).any():
        raise site.fault(
            f"arena_rows are {program.arena_rows.tolist()}; the slots fill {used.tolist()}"
        )


def _check_arenas(site: Site, program: Program) -> None:
    """Slots of an arena lie inside it and share no row; only arenas have rows."""
    rows = program.arena_rows
    if (rows < 0).any() or rows[np.setdiff1d(np.arange(len(Buffer)), ARENAS)].any():
        raise site.fault(
            f"arena_rows are {rows.tolist()}; 0 for home tensors, 0 or more for arenas"
        )
    number = np.flatnonzero(np.isin(program.slots["buffer"], ARENAS))
    slots = program.slots[number]
    buffer, begin = slots["buffer"], slots["offset"]
    end = begin + slots["size"]
    outside = (begin < 0) | (slots["size"] < 0) | (end > program.arena_rows[buffer])
    if outside.any():
        first = int(outside.argmax())
        name = Buffer(buffer[first]).name
        raise site.fault(
            f"slot {number[first]} takes rows {begin[first]} … {end[first]} of arena {name}, "
            f"which has {program.arena_rows[buffer[first]]}"
        )
    order = np.lexsort((end, begin, buffer))
    before, after = order[:-1], order[1:]
    shared = (buffer[before] == buffer[after]) & (end[before] > begin[after])
    if shared.any():
        first = int(shared.argmax())
        name = Buffer(buffer[before[first]]).name
        raise site.fault(
            f"slots {number[before[first]]} and {number[after[first]]} overlap in arena {name}"
        )


def _home_content(
    facts: Facts,
    site: Site,
    program: Program,
    home: Buffer,
    mine: IntArray,
    home_blocks: IntArray,
) -> IntArray:
    """Data blocks of the slots `mine` of one home tensor."""
    carries = facts.has_kv if KIND_OF[home] in KEY_KINDS else facts.has_q
    blocks = home_blocks[carries[home_blocks]]
    length = facts.length[blocks]
    begin = np.cumsum(length) - length
    slots = program.slots[mine]
    group = slots["group"].astype(np.int64)
    at = np.searchsorted(begin, slots["offset"])
    known = (at < len(blocks)) & (group >= 0) & (group < facts.num_groups)
    at, group = at[known], group[known]
    right = (begin[at] == slots["offset"][known]) & (length[at] == slots["size"][known])
    known[known] = right
    if not known.all():
        first = int(np.argmin(known))
        offset, size = int(slots["offset"][first]), int(slots["size"][first])
        raise site.fault(
            f"slot {mine[first]} takes tokens {offset} … {offset + size} and group "
            f"{slots['group'][first]} of {home.name}: no token block at home here"
        )
    content: IntArray = blocks[at] * facts.num_groups + group
    return content
