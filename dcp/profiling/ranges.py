"""What a program does, grouped by division."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from dcp.profiling.trace import Range, SpanKind
from dcp.program_facts import Fact


class ProgramRanges(NamedTuple):
    """The ranges of a program, known before it runs."""

    phase: Range
    divisions: list[tuple[Range, list[Range]]]

    @classmethod
    def of(cls, facts: list[Fact]) -> ProgramRanges:
        """Group instructions by division, and add up what they move and compute."""
        divisions = []
        for division, inside in groupby(facts, key=lambda fact: fact.division):
            ranges = [Range(one.kind, division, one.bytes, one.pairs) for one in inside]
            divisions.append((_sum("division", division, ranges), ranges))
        return cls(_sum("phase", -1, [total for total, _ in divisions]), divisions)


def _sum(kind: SpanKind, division: int, inside: list[Range]) -> Range:
    received = sum(one.bytes for one in inside if one.kind in ("wait", "division"))
    return Range(kind, division, received, sum(one.pairs for one in inside))
