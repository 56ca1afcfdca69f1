"""Symbolic execution: what stands in which slot of which rank, instruction by instruction.

A slot holds the code of a data block (kind, block, group). A sum also holds the set of its
contributions as the bits of an integer: bit i of an O or dQ is the i-th key block that its query
block sees, bit i of a dKV the i-th query block that sees its key block.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from dcp.blocks import Kind
from dcp.errors import PlanCheckError
from dcp.instructions import Attention, CommLaunch, CommWait, Copy, Instruction, Items, Reduce
from dcp.scheduling import RESULTS
from dcp.verification.facts import KEY_KINDS, Facts
from dcp.verification.faults import Site
from dcp.verification.program_check import FRESH_FLAG, INPUT_FIELDS, SUM_FIELDS, CheckedProgram
from dcp.verification.slot_check import NOT_HOME

EMPTY, IN_FLIGHT = -1, -2

Mail: TypeAlias = dict[tuple[int, int, int], list[tuple[int, int]]]
"""(source, destination, step) to what was sent: codes and contributions, in order."""


class Simulated(NamedTuple):
    """What a phase ends with.

    Attributes:
        results: Codes of the results that reached their homes complete.
        contents: Codes of what each rank's slots hold, [slots] a rank.
    """

    results: set[int]
    contents: list[list[int]]


def simulate(facts: Facts, programs: list[CheckedProgram]) -> Simulated:
    """Run all ranks of one phase, each until it has to wait, round and round.

    Args:
        facts: What the batch asks for.
        programs: Checked programs of all ranks, whose messages match.
    Raises:
        PlanCheckError: the first fault, or ranks that wait for one another.
    """
    mail: Mail = {}
    ranks = [SymbolicRank(facts, program, mail) for program in programs]
    running = ranks
    while running:
        moved = [rank.run() for rank in running]
        running = [rank for rank in running if not rank.finished]
        if running and not any(moved):
            raise running[0].deadlock([rank.waits_for() for rank in running])
    for rank in ranks:
        rank.check_end()
    results = set[int]().union(*(rank.outputs for rank in ranks))
    return Simulated(results, [rank.contents for rank in ranks])


class SymbolicRank:
    """One rank's slots, and how far its program has come.

    Attributes:
        site: Rank and phase.
        outputs: Codes of the results that it has copied to their homes.
    """

    def __init__(self, facts: Facts, program: CheckedProgram, mail: Mail) -> None:
        self.site: Site = program.site
        self.outputs: set[int] = set()
        self._facts, self._mail = facts, mail
        self._instructions = program.program.instructions
        self._position = 0
        self._kind: list[int] = program.slot_kind.tolist()
        at_home = program.slot_kind * (facts.num_blocks * facts.num_groups) + program.home_content
        at_home[program.home_content == NOT_HOME] = EMPTY
        kept = program.program.kept
        at_home[kept["slot"]] = facts.data_code(
            program.slot_kind[kept["slot"]], kept["block"], kept["group"]
        )
        self._content: list[int] = at_home.tolist()
        self._held = [0] * len(self._content)
        self._pair = program.pair
        self._items_done = 0
        # Step to (launching instruction, source to slots) of what is on its way.
        self._pending: dict[int, tuple[int, dict[int, list[int]]]] = {}

    @property
    def contents(self) -> list[int]:
        """Codes of what its slots hold."""
        return self._content

    @property
    def finished(self) -> bool:
        """Whether the program has ended."""
        return self._position == len(self._instructions)

    def run(self) -> bool:
        """Go on until the end or a wait for something not yet sent; whether anything was done."""
        start = self._position
        while not self.finished and self._execute(self._instructions[self._position]):
            self._position += 1
        return self._position > start

    def _execute(self, instruction: Instruction) -> bool:
        match instruction:
            case Attention(items=items):
                self._attend(items)
            case Reduce(items=items):
                self._reduce(items)
            case Copy(items=items):
                self._copy(items)
            case CommLaunch():
                self._launch(instruction)
            case CommWait(step=step):
                return self._arrive(step)
        return True

    # --- instructions --------------------------------------------------------------------

    def _attend(self, items: Items) -> None:
        facts, phase = self._facts, self.site.phase
        for field, (kind, block_field) in INPUT_FIELDS[phase].items():
            codes = facts.data_code(kind, items[block_field], items["group"])
            for slot, code in zip(items[field].tolist(), codes.tolist(), strict=True):
                if self._content[slot] != code:
                    raise self._fault(code, f"reads it from {self._describe(slot)}")
        pairs = self._pair[self._items_done : self._items_done + len(items)]
        self._items_done += len(items)
        for field, (kind, block_field) in SUM_FIELDS[phase].items():
            codes = facts.data_code(kind, items[block_field], items["group"])
            place = (facts.place_in_column if kind in KEY_KINDS else facts.place_in_row)[pairs]
            columns = (items[field], codes, place, items[FRESH_FLAG[field]])
            for slot, code, bit, fresh in zip(*(x.tolist() for x in columns), strict=True):
                self._add(slot, code, 1 << bit, fresh)

    def _reduce(self, items: Items) -> None:
        for src, dst, block, group, fresh in items.tolist():
            code = self._code(src, block, group)
            self._add(dst, code, self._take(src, code), fresh)

    def _copy(self, items: Items) -> None:
        for src, _, block, group in items.tolist():
            code = self._code(src, block, group)
            held = self._take(src, code)
            if code in self.outputs:
                raise self._fault(code, "copies it to its home a second time")
            self._check_complete(code, held)
            self.outputs.add(code)

    def _launch(self, launch: CommLaunch) -> None:
        sent = set()
        for peer, slot, block, group in launch.sends.tolist():
            code = self._code(slot, block, group)
            held = 0
            if self._kind[slot] in RESULTS:
                held = self._take(slot, code)
            elif self._content[slot] != code:
                raise self._fault(code, f"sends it from {self._describe(slot)}")
            sent.add(slot)
            self._mail.setdefault((self.site.rank, peer, launch.step), []).append((code, held))
        sources: dict[int, list[int]] = {}
        for peer, slot, block, group in launch.receives.tolist():
            code = self._code(slot, block, group)
            if slot in sent or self._held[slot] or self._content[slot] == IN_FLIGHT:
                raise self._fault(code, f"receives it into {self._describe(slot)}, still in use")
            self._content[slot] = IN_FLIGHT
            sources.setdefault(peer, []).append(slot)
        if sources:
            self._pending[launch.step] = (self._position, sources)

    def _arrive(self, step: int) -> bool:
        """Put what has arrived into its slots; False where a message is still to be sent."""
        _, sources = self._pending[step]
        if not all((peer, self.site.rank, step) in self._mail for peer in sources):
            return False
        for peer, slots in sources.items():
            message = self._mail.pop((peer, self.site.rank, step))
            for slot, (code, held) in zip(slots, message, strict=True):
                self._content[slot], self._held[slot] = code, held
        del self._pending[step]
        return True

    # --- sums ----------------------------------------------------------------------------

    def _add(self, slot: int, code: int, bits: int, fresh: int) -> None:
        held = self._held[slot]
        if fresh:
            if held:
                raise self._fault(code, f"overwrites {self._describe(slot)}, which would be lost")
            self._content[slot] = code
        elif self._content[slot] != code or not held:
            raise self._fault(code, f"adds to {self._describe(slot)}")
        elif held & bits:
            raise self._fault(code, f"adds {self._pair_name(code, held & bits)} a second time")
        self._held[slot] = held | bits

    def _take(self, slot: int, code: int) -> int:
        """Contributions of a sum, which is thereby used up."""
        held = self._held[slot]
        if self._content[slot] != code or not held:
            raise self._fault(code, f"takes it from {self._describe(slot)}")
        self._content[slot], self._held[slot] = EMPTY, 0
        return held

    def _check_complete(self, code: int, held: int) -> None:
        kind, block, _ = self._facts.split_code(code)
        missing = ((1 << self._facts.contributions(kind, block)) - 1) & ~held
        if missing:
            raise self._fault(code, f"copies it home without {self._pair_name(code, missing)}")

    # --- the end, and words --------------------------------------------------------------

    def check_end(self) -> None:
        """Everything that was received has been waited for."""
        for step, (index, sources) in self._pending.items():
            raise self.site.fault(
                f"the receives of step {step} (from rank {', '.join(map(str, sources))}) are "
                "never waited for",
                index=index,
            )

    def waits_for(self) -> str:
        """What a rank that cannot go on waits for."""
        wait = self._instructions[self._position]
        assert isinstance(wait, CommWait)
        missing = [
            peer
            for peer in self._pending[wait.step][1]
            if (peer, self.site.rank, wait.step) not in self._mail
        ]
        return (
            f"rank {self.site.rank} waits at instruction {self._position} for step {wait.step} "
            f"from rank {', '.join(map(str, missing))}"
        )

    def deadlock(self, waits: list[str]) -> PlanCheckError:
        """The error for ranks that wait for one another, of which this is the first."""
        return self.site.fault(f"no rank can go on: {'; '.join(waits)}", index=self._position)

    def _code(self, slot: int, block: int, group: int) -> int:
        facts = self._facts
        return (self._kind[slot] * facts.num_blocks + block) * facts.num_groups + group

    def _fault(self, code: int, text: str) -> PlanCheckError:
        kind, block, group = self._facts.split_code(code)
        return self.site.fault(
            f"{kind.name}: {text}", index=self._position, block=block, group=group
        )

    def _describe(self, slot: int) -> str:
        content = self._content[slot]
        if content == EMPTY:
            return f"slot {slot}, which holds nothing"
        if content == IN_FLIGHT:
            return f"slot {slot}, whose data has not been waited for"
        return f"slot {slot}, which holds {self._facts.name_of(content)}"

    def _pair_name(self, code: int, bits: int) -> str:
        kind, block, _ = self._facts.split_code(code)
        pair = self._facts.contribution(kind, block, (bits & -bits).bit_length() - 1)
        return f"the contribution of (q {self._facts.pair_q[pair]}, kv {self._facts.pair_kv[pair]})"


def missing_result(facts: Facts, kind: Kind, done: set[int]) -> tuple[int, int] | None:
    """Block and group of the first result with contributions that is not done."""
    for block in range(facts.num_blocks):
        for group in range(facts.num_groups) if facts.contributions(kind, block) else ():
            if int(facts.data_code(kind, block, group)) not in done:
                return block, group
    return None
