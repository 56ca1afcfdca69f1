"""A simulation as a trace, like one that was measured."""

from __future__ import annotations

from collections.abc import Iterator

from dcp.cost import Timeline
from dcp.execution_plan import ExecutionPlan
from dcp.profiling.ranges import ProgramRanges
from dcp.profiling.trace import Flight, Range, Span, SpanKind, Trace
from dcp.scheduling import Phase
from dcp.simulator import SimulatedPhase


def simulated_trace(plan: ExecutionPlan, phases: list[SimulatedPhase]) -> Trace:
    """Spans and flights of a simulation; each phase begins when the one before has ended."""
    spans: list[Span] = []
    flights: list[Flight] = []
    start_s = 0.0
    for simulated in phases:
        spans += _spans(simulated, start_s)
        flights += _flights(simulated, start_s)
        start_s += simulated.total_s
    return Trace(plan=plan.digest, spans=spans, flights=flights)


def _spans(simulated: SimulatedPhase, start_s: float) -> Iterator[Span]:
    timeline = simulated.timeline
    for rank, facts in enumerate(simulated.facts):
        ranges = ProgramRanges.of(facts)
        end = timeline.end_s[rank, -1]
        yield _span(simulated.phase, rank, ranges.phase, start_s, start_s + end)
        for division, inside in ranges.divisions:
            moments = _moments(timeline, rank, division.division, start_s)
            times = moments["wait"][0], moments["copy"][1]
            yield _span(simulated.phase, rank, division, *times)
            for one in inside:
                yield _span(simulated.phase, rank, one, *moments[one.kind])


def _span(phase: Phase, rank: int, what: Range, begin_s: float, end_s: float) -> Span:
    return Span(
        rank=rank,
        phase=phase,
        run=0,
        kind=what.kind,
        division=what.division,
        begin_ns=_ns(begin_s),
        end_ns=_ns(end_s),
        bytes=what.bytes,
        pairs=what.pairs,
    )


def _moments(
    timeline: Timeline, rank: int, division: int, start_s: float
) -> dict[SpanKind, tuple[float, float]]:
    """Begin and end of each kind of instruction in one division.

    A launch packs its messages. They are unpacked between wait and reduce.
    """
    at = rank, division
    wait, begin, launch, end = (
        float(start_s + times[at])
        for times in (timeline.wait_s, timeline.begin_s, timeline.launch_s, timeline.end_s)
    )
    computed = end - float(timeline.work.copy_s[at])
    reduced = launch - float(timeline.pack_s[at])
    return {
        "wait": (wait, begin),
        "reduce": (begin + float(timeline.unpack_s[at]), reduced),
        "launch": (reduced, launch),
        "attention": (launch, computed),
        "copy": (computed, end),
    }


def _flights(simulated: SimulatedPhase, start_s: float) -> Iterator[Flight]:
    timeline, messages = simulated.timeline, simulated.timeline.messages
    columns = (messages.src, messages.dst, messages.step, messages.message_bytes)
    times = (timeline.sent_s, timeline.arrived_s)
    rows = (column.tolist() for column in (*columns, *times))
    for src, dst, step, size, sent, arrived in zip(*rows, strict=True):
        yield Flight(
            src=src,
            dst=dst,
            phase=simulated.phase,
            run=0,
            division=step,
            begin_ns=_ns(start_s + sent),
            end_ns=_ns(start_s + arrived),
            bytes=size,
        )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
