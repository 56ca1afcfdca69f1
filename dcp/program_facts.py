"""What every instruction of a program moves and computes."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import IntArray
from dcp.blocks import BlockGraph
from dcp.instructions import Attention, CommLaunch, CommWait, Copy, Items, Program, Reduce
from dcp.traffic import item_bytes

InstructionKind = Literal["wait", "reduce", "launch", "attention", "copy"]


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction in numbers.

    Attributes:
        kind: Which of the five.
        division: The round of wait, reduce, launch, attention and copy that it belongs to; a
            launch sends what the division after it needs.
        bytes: As on the wire: sent (launch), received (wait), merged (reduce) or copied (copy).
        pairs: Allowed pairs computed, summed over query heads (attention).
    """

    kind: InstructionKind
    division: int
    bytes: int = 0
    pairs: int = 0


def facts_of(blocks: BlockGraph, program: Program) -> list[Fact]:
    """Facts of every instruction, in the order of the program."""
    areas = mask_areas(program)
    facts: list[Fact] = []
    division, incoming = 0, dict[int, int]()
    for instruction in program.instructions:
        match instruction:
            case CommWait(step=division):
                moved = incoming.pop(division, 0)
                facts.append(Fact(kind="wait", division=division, bytes=moved))
            case Reduce(items=items):
                moved = _bytes(blocks, program, items, "src")
                facts.append(Fact(kind="reduce", division=division, bytes=moved))
            case CommLaunch(step=step, sends=sends, receives=receives):
                division = step - 1
                incoming[step] = _bytes(blocks, program, receives, "slot")
                moved = _bytes(blocks, program, sends, "slot")
                facts.append(Fact(kind="launch", division=division, bytes=moved))
            case Attention(division=division, items=items):
                heads = blocks.groups.q_count[items["group"]]
                pairs = int((item_pairs(blocks, areas, items) * heads).sum())
                facts.append(Fact(kind="attention", division=division, pairs=pairs))
            case Copy(items=items):
                moved = _bytes(blocks, program, items, "src")
                facts.append(Fact(kind="copy", division=division, bytes=moved))
    return facts


def mask_areas(program: Program) -> IntArray:
    """Allowed pairs of every mask of a program, [masks]; 0 for mask 0, which has no slices."""
    sizes = slice_ops.size(program.mask_slices)
    return np.array(
        [int(sizes[low:high].sum()) for low, high in pairwise(program.mask_ptr.tolist())],
        dtype=np.int64,
    )


def item_pairs(blocks: BlockGraph, areas: IntArray, items: Items) -> IntArray:
    """Allowed pairs, a head, of each item of an attention instruction, [items]."""
    rectangle = blocks.token_length[items["q_block"]] * blocks.token_length[items["kv_block"]]
    pairs: IntArray = np.where(items["mask"] == 0, rectangle, areas[items["mask"]])
    return pairs


def _bytes(blocks: BlockGraph, program: Program, items: Items, slot: str) -> int:
    return int(item_bytes(blocks, program, items, slot).sum())
