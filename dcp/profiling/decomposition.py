"""Where the time of a phase goes: the parts of figure 22 of arXiv 2510.10620, on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dcp.arrays import IntArray
from dcp.profiling import intervals
from dcp.profiling.trace import GROUPS, Flight, Run, Span, SpanKind, Trace, runs_of
from dcp.scheduling import PHASES, Phase

WAITS: tuple[SpanKind, ...] = ("wait", "finish")


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one rank in one phase. They add up to the phase's time on the slowest rank.

    Attributes:
        exposed_comm_s: Waiting for messages that are to come, or at the end to leave.
        overlapped_comm_s: Computing attention while a message to this rank is under way.
        attention_s: Computing attention while none is.
        other_s: Everything else between its begin and its end.
        idle_s: Before its begin and after its end, while other ranks are at work.
    """

    exposed_comm_s: float
    overlapped_comm_s: float
    attention_s: float
    other_s: float
    idle_s: float

    @property
    def total_s(self) -> float:
        """The sum."""
        return float(sum(getattr(self, name) for name in PARTS))


PARTS = Parts.__struct_fields__


class Decomposition(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of one phase.

    Attributes:
        phase: Forward or backward.
        runs: How many runs the means are over.
        ranks: Of every rank, means over runs.
        mean: Means over ranks.
    """

    phase: Phase
    runs: int
    ranks: list[Parts]
    mean: Parts


def decompose(trace: Trace, num_ranks: int) -> list[Decomposition]:
    """Decompose every phase of a trace.

    A rank without any span in a run is idle for all of it.

    Args:
        trace: Spans of all ranks on one clock.
        num_ranks: Ranks of the plan.
    """
    runs = runs_of(trace)
    found = []
    for phase in PHASES:
        parts = [_run_parts(run, num_ranks) for run in runs if run.phase == phase and run.spans]
        if parts:
            ranks = [mean_of(of_rank) for of_rank in zip(*parts, strict=True)]
            found.append(
                Decomposition(phase=phase, runs=len(parts), ranks=ranks, mean=mean_of(ranks))
            )
    return found


def mean_of(parts: Sequence[Parts]) -> Parts:
    """Part by part."""
    return Parts(**{name: sum(getattr(one, name) for one in parts) / len(parts) for name in PARTS})


def _run_parts(run: Run, num_ranks: int) -> list[Parts]:
    begin = min(span.begin_ns for span in run.spans)
    end = max(span.end_ns for span in run.spans)
    spans: list[list[Span]] = [[] for _ in range(num_ranks)]
    flights: list[list[Flight]] = [[] for _ in range(num_ranks)]
    for span in run.spans:
        spans[span.rank].append(span)
    for flight in run.flights:
        flights[flight.dst].append(flight)
    return [_parts(*of_rank, begin, end) for of_rank in zip(spans, flights, strict=True)]


def _parts(spans: list[Span], flights: list[Flight], begin_ns: int, end_ns: int) -> Parts:
    """Parts of one rank; the phase lasts from begin_ns to end_ns."""
    first = min((span.begin_ns for span in spans), default=end_ns)
    last = max((span.end_ns for span in spans), default=end_ns)
    attention = _moments_of(spans, ("attention",))
    waiting = intervals.without(_moments_of(spans, WAITS), attention)
    under_way = intervals.union([(flight.begin_ns, flight.end_ns) for flight in flights])
    exposed, computing = intervals.length(waiting), intervals.length(attention)
    overlapped = intervals.common(attention, under_way)
    return Parts(
        exposed_comm_s=exposed / 1e9,
        overlapped_comm_s=overlapped / 1e9,
        attention_s=(computing - overlapped) / 1e9,
        other_s=(last - first - exposed - computing) / 1e9,
        idle_s=(first - begin_ns + end_ns - last) / 1e9,
    )


def _moments_of(spans: list[Span], kinds: tuple[SpanKind, ...]) -> IntArray:
    return intervals.union([(span.begin_ns, span.end_ns) for span in spans if span.kind in kinds])


def seconds_by_kind(trace: Trace, num_ranks: int) -> dict[Phase, dict[SpanKind, float]]:
    """Seconds that every kind of span takes in a run, mean over runs and ranks; no groups."""
    found: dict[Phase, dict[SpanKind, float]] = {}
    runs = runs_of(trace)
    for run in runs:
        count = num_ranks * sum(other.phase == run.phase for other in runs)
        total = found.setdefault(run.phase, {})
        for span in run.spans:
            if span.kind not in GROUPS:
                seconds = span.duration_ns / 1e9 / count
                total[span.kind] = total.get(span.kind, 0.0) + seconds
    return found
