"""What can be said of a program without running it: slots, operands and masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.blocks import Kind
from dcp.errors import PlanCheckError
from dcp.instructions import (
    ACCUMULATOR,
    ARRIVAL,
    BACKWARD_ITEM,
    COPY_ITEM,
    FORWARD_ITEM,
    HOME_INPUT,
    HOME_OUTPUT,
    KEPT_ITEM,
    KIND_OF_BUFFER,
    MESSAGE_ITEM,
    REDUCE_ITEM,
    Attention,
    Buffer,
    CommLaunch,
    CommWait,
    Copy,
    Instruction,
    Items,
    Program,
    Reduce,
)
from dcp.scheduling import KEY_INPUT, PHASE_RESULTS, QUERY_INPUTS, Phase
from dcp.verification.facts import Facts
from dcp.verification.faults import Site
from dcp.verification.mask_proof import wrong_masks
from dcp.verification.slot_check import NOT_HOME, check_slots

ATTENTION_ITEM: dict[Phase, np.dtype[np.void]] = {
    "forward": FORWARD_ITEM,
    "backward": BACKWARD_ITEM,
}
KEPT_KINDS = (Kind.Q, Kind.KV)
NO_INSTRUCTION = -1
FRESH_FLAG = {"out": "fresh", "dq": "fresh_dq", "dkv": "fresh_dkv"}
# Fields of attention items that name slots, with the field that holds the block.
INPUT_FIELDS: dict[Phase, dict[str, tuple[Kind, str]]] = {
    "forward": {"q": (Kind.Q, "q_block"), "kv": (Kind.KV, "kv_block")},
    "backward": {
        "q": (Kind.Q, "q_block"),
        "kv": (Kind.KV, "kv_block"),
        "dout": (Kind.DO, "q_block"),
    },
}
SUM_FIELDS: dict[Phase, dict[str, tuple[Kind, str]]] = {
    "forward": {"out": (Kind.O, "q_block")},
    "backward": {"dq": (Kind.DQ, "q_block"), "dkv": (Kind.DKV, "kv_block")},
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """Items of all instructions of one kind, in order, and the instruction of each, [n]."""

    items: Items
    index: IntArray

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedProgram:
    """A program whose numbers all lie in range.

    Attributes:
        site: Whose program it is, for messages.
        program: The program.
        slot_kind: Kind of data that each slot is for, [slots].
        home_content: Data block of each home slot, as block × groups + group; NOT_HOME in arenas.
        attention, sends, receives: Its items.
        pair: Pair of blocks of each attention item.
    """

    site: Site
    program: Program
    slot_kind: IntArray
    home_content: IntArray
    attention: Gathered
    sends: Gathered
    receives: Gathered
    pair: IntArray


def check_program(
    facts: Facts, site: Site, program: Program, home_blocks: IntArray
) -> CheckedProgram:
    """Check slots, the range and type of every operand, and the masks of one program.

    Args:
        facts: What the batch asks for.
        site: Rank and phase.
        program: The program.
        home_blocks: Token blocks in the order of the rank's local tensors.
    Raises:
        PlanCheckError: the first fault.
    """
    home_content = check_slots(facts, site, program, home_blocks)
    _check_mask_table(site, program)
    phase, results = site.phase, PHASE_RESULTS[site.phase]
    attention = _gather(site, Attention, "items", ATTENTION_ITEM[phase])
    reduce = _gather(site, Reduce, "items", REDUCE_ITEM)
    copy = _gather(site, Copy, "items", COPY_ITEM)
    sends = _gather(site, CommLaunch, "sends", MESSAGE_ITEM)
    receives = _gather(site, CommLaunch, "receives", MESSAGE_ITEM)
    _check_types(site)

    check = _OperandCheck(facts, site, program, home_content)
    for name, (kind, block) in {**INPUT_FIELDS[phase], **SUM_FIELDS[phase]}.items():
        buffers = (ACCUMULATOR,) if kind in results else (HOME_INPUT, ARRIVAL)
        check(attention, name, buffers, kinds=(kind,), block=block)
    check(reduce, "src", (ARRIVAL,), kinds=results)
    check(reduce, "dst", (ACCUMULATOR,), kinds=results, same_kind_as="src")
    check(copy, "src", (ACCUMULATOR,), kinds=results)
    check(copy, "dst", (HOME_OUTPUT,), kinds=results, same_kind_as="src")
    moved = (*QUERY_INPUTS[phase], KEY_INPUT, *results)
    check(sends, "slot", (HOME_INPUT, ARRIVAL, ACCUMULATOR), kinds=moved)
    check(receives, "slot", (ARRIVAL,), kinds=moved)
    kept = _kept(site, program)
    check(kept, "slot", (ARRIVAL,), kinds=KEPT_KINDS)
    _check_kept_is_only_read(site, program, receives)
    for field in SUM_FIELDS[phase]:
        check.range(attention, FRESH_FLAG[field], 2)
    check.range(reduce, "fresh", 2)
    check.range(attention, "mask", len(program.mask_ptr) - 1)
    return CheckedProgram(
        site=site,
        program=program,
        slot_kind=KIND_OF_BUFFER[program.slots["buffer"]],
        home_content=home_content,
        attention=attention,
        sends=sends,
        receives=receives,
        pair=_check_pairs(facts, site, program, attention),
    )


def _kept(site: Site, program: Program) -> Gathered:
    """What stands in slots at the start; no instruction put it there."""
    items = program.kept
    if items.dtype != KEPT_ITEM or items.ndim != 1:
        raise site.fault(f"kept are {items.dtype}, not {KEPT_ITEM}")
    if len(items) and site.phase == "forward":
        raise site.fault(f"{len(items)} blocks are kept for forward, which has no phase before it")
    return Gathered(items=items, index=np.full(len(items), NO_INSTRUCTION))


def _check_kept_is_only_read(site: Site, program: Program, receives: Gathered) -> None:
    """Backward may run again, on the same arenas; of its instructions only receives fill them."""
    buffer = program.slots["buffer"][receives.items["slot"]]
    into_kept = np.isin(buffer, program.kept_buffers)
    if into_kept.any():
        first = int(into_kept.argmax())
        text = (
            f"receives into slot {receives.items['slot'][first]} of {Buffer(buffer[first]).name}, "
            "an arena that forward hands over, which is only read"
        )
        raise _item_fault(site, receives, first, text)


def _check_mask_table(site: Site, program: Program) -> None:
    ptr, rows = program.mask_ptr, program.mask_slices
    sound = len(ptr) > 1 and ptr[0] == 0 and ptr[1] == 0 and ptr[-1] == len(rows)
    if not (sound and (np.diff(ptr) >= 0).all() and rows.shape == (len(rows), 6)):
        raise site.fault(f"mask_ptr {ptr.tolist()} does not cut {len(rows)} mask slices into masks")


def _check_types(site: Site) -> None:
    legal = (Attention, Reduce, Copy, CommLaunch, CommWait)
    for index, instruction in enumerate(site.instructions):
        if not isinstance(instruction, legal):
            raise site.fault("is none of the five instructions", index=index)


def _gather(site: Site, kind: type[Instruction], field: str, dtype: np.dtype[np.void]) -> Gathered:
    parts: list[Items] = []
    indices: list[IntArray] = []
    for index, instruction in enumerate(site.instructions):
        if isinstance(instruction, kind):
            items = getattr(instruction, field)
            if items.dtype != dtype or items.ndim != 1:
                raise site.fault(f"{field} are {items.dtype}, not {dtype}", index=index)
            parts.append(items)
            indices.append(np.full(len(items), index, dtype=np.int64))
    if not parts:
        return Gathered(items=np.zeros(0, dtype=dtype), index=np.zeros(0, dtype=np.int64))
    return Gathered(items=np.concatenate(parts), index=np.concatenate(indices))


class _OperandCheck:
    """Operands name existing slots, of a legal buffer, big enough, and the right home block."""

    def __init__(self, facts: Facts, site: Site, program: Program, home_content: IntArray) -> None:
        self._facts, self._site, self._slots = facts, site, program.slots
        self._home_content = home_content

    def __call__(
        self,
        table: Gathered,
        field: str,
        buffers: tuple[dict[Kind, Buffer], ...],
        *,
        kinds: tuple[Kind, ...],
        block: str = "block",
        same_kind_as: str | None = None,
    ) -> None:
        facts = self._facts
        self.range(table, block, facts.num_blocks)
        self.range(table, "group", facts.num_groups)
        self.range(table, field, len(self._slots))
        items = table.items
        slot = items[field]
        buffer, size = self._slots["buffer"][slot], self._slots["size"][slot]
        kind = KIND_OF_BUFFER[buffer]

        legal = [of_kind[one] for of_kind in buffers for one in kinds if one in of_kind]
        wrong = ~np.isin(buffer, legal)
        if same_kind_as is not None:
            wrong |= kind != KIND_OF_BUFFER[self._slots["buffer"][items[same_kind_as]]]
        self._refuse(table, block, wrong, lambda i: (
            f"{field} is slot {slot[i]}, in buffer {Buffer(buffer[i]).name}; "
            f"legal: {', '.join(one.name for one in legal)}"
        ))  # fmt: skip
        rows = facts.slot_rows[kind, items[block], items["group"]]
        home = self._home_content[slot]
        self._refuse(table, block, (rows == 0) | ((home == NOT_HOME) & (size < rows)), lambda i: (
            f"{field} is slot {slot[i]} with {size[i]} rows; {Kind(kind[i]).name} of this block "
            f"has {rows[i]}"
        ))  # fmt: skip
        label = items[block].astype(np.int64) * facts.num_groups + items["group"]
        self._refuse(table, block, (home != NOT_HOME) & (home != label), lambda i: (
            f"{field} is slot {slot[i]}, the home of block {home[i] // facts.num_groups} group "
            f"{home[i] % facts.num_groups} in {Buffer(buffer[i]).name}"
        ))  # fmt: skip

    def range(self, table: Gathered, field: str, count: int) -> None:
        """Values of a field lie in 0 … count - 1."""
        values = table.items[field]
        wrong = (values < 0) | (values >= count)
        if wrong.any():
            first = int(wrong.argmax())
            raise self._site.fault(
                f"{field} is {values[first]}; legal: 0 … {count - 1}",
                index=int(table.index[first]),
            )

    def _refuse(
        self, table: Gathered, block: str, wrong: BoolArray, text: Callable[[int], str]
    ) -> None:
        if wrong.any():
            first = int(wrong.argmax())
            raise _item_fault(self._site, table, first, text(first), block)


def _item_fault(
    site: Site, table: Gathered, position: int, text: str, block: str = "block"
) -> PlanCheckError:
    item, index = table.items[position], int(table.index[position])
    return site.fault(
        text,
        index=None if index == NO_INSTRUCTION else index,
        block=int(item[block]),
        group=int(item["group"]),
    )


def _check_pairs(facts: Facts, site: Site, program: Program, table: Gathered) -> IntArray:
    """Pair of blocks of every attention item, whose mask must be that of the sequence."""
    q, kv = (table.items[name].astype(np.int64) for name in ("q_block", "kv_block"))
    pair = facts.find_pairs(q, kv)
    if (pair < 0).any():
        first = int((pair < 0).argmax())
        text = f"computes (q {q[first]}, kv {kv[first]}), where the mask allows nothing"
        raise _item_fault(site, table, first, text, "q_block")
    wrong = wrong_masks(facts, program, table.items["mask"].astype(np.int64), pair)
    if wrong.any():
        first = int(wrong.argmax())
        text = (
            f"mask {table.items['mask'][first]} of (q {q[first]}, kv {kv[first]}) is not what "
            "the sequence's mask allows there"
        )
        raise _item_fault(site, table, first, text, "q_block")
    return pair
