"""The common form of a timeline, whether it was measured, read from a profile or simulated."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from dcp.scheduling import PHASES, Phase

SpanKind = Literal[
    "setup", "phase", "division", "wait", "reduce", "launch", "attention", "copy", "finish"
]
GROUPS: tuple[SpanKind, ...] = ("phase", "division")
"""Kinds that hold others."""


class Subject(NamedTuple):
    """A program that is observed."""

    digest: str
    rank: int
    phase: Phase


class Range(NamedTuple):
    """What a program does at one time, known before it runs; fields as in `Span`."""

    kind: SpanKind
    division: int
    bytes: int
    pairs: int


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a rank did.

    Attributes:
        rank: Who.
        phase: Forward or backward.
        run: How often this rank had begun this phase before.
        kind: An instruction; "setup" before them and "finish" after them; or what groups them.
        division: The round it belongs to; -1 for setup, finish and phase.
        begin_ns, end_ns: On a clock that all ranks of the trace share.
        bytes, pairs: As in `dcp.program_facts.Fact`.
    """

    rank: int
    phase: Phase
    run: int
    kind: SpanKind
    division: int
    begin_ns: int
    end_ns: int
    bytes: int = 0
    pairs: int = 0

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.begin_ns


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """A message under way, or all that reach a rank in one division.

    Attributes:
        src: Its source; -1 where it stands for several.
        dst: The rank that it reaches.
        phase, run: As in `Span`.
        division: The division that it is for.
        begin_ns, end_ns: When it started, and when it was there or at the latest had to be.
        bytes: On the wire.
    """

    src: int
    dst: int
    phase: Phase
    run: int
    division: int
    begin_ns: int
    end_ns: int
    bytes: int


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Spans and flights of all ranks.

    Attributes:
        plan: Digest of the plan.
        spans: In any order.
        flights: In any order.
    """

    plan: str
    spans: list[Span]
    flights: list[Flight]


class Run(NamedTuple):
    """One run of one phase: what `Trace.spans` and `.flights` hold of it."""

    phase: Phase
    run: int
    spans: list[Span]
    flights: list[Flight]


def runs_of(trace: Trace) -> list[Run]:
    """Split a trace into runs: forward before backward, in their order."""
    found: dict[tuple[Phase, int], Run] = {}
    for one in trace.spans:
        key = one.phase, one.run
        found.setdefault(key, Run(*key, [], [])).spans.append(one)
    for flight in trace.flights:
        key = flight.phase, flight.run
        found.setdefault(key, Run(*key, [], [])).flights.append(flight)
    return [found[key] for key in sorted(found, key=lambda key: (PHASES.index(key[0]), key[1]))]
