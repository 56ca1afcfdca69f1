"""When messages were under way, as far as the programs of both ends can tell."""

from __future__ import annotations

from dcp.execution_plan import ExecutionPlan
from dcp.profiling.trace import Flight, Run, Span, Trace, runs_of
from dcp.scheduling import PHASES, Phase
from dcp.simulator import messages_of


def measured_trace(plan: ExecutionPlan, spans: list[Span]) -> Trace:
    """A trace of recorded spans, with the messages between them.

    A message is taken to be under way from when both its ends have launched it until its receiver
    has waited for it. It may have arrived earlier: transports do not tell, so the time that
    communication overlaps with attention is an upper bound.

    Args:
        plan: The plan that ran.
        spans: Of all ranks, on one clock.
    """
    bare = Trace(plan=plan.digest, spans=spans, flights=[])
    sent = {phase: _rows(plan, phase) for phase in PHASES}
    flights = [flight for run in runs_of(bare) for flight in _flights(run, sent[run.phase])]
    return Trace(plan=plan.digest, spans=spans, flights=flights)


def _rows(plan: ExecutionPlan, phase: Phase) -> list[tuple[int, int, int, int]]:
    """Source, destination, step and bytes of every message."""
    sent = messages_of(plan, phase)
    columns = (sent.src, sent.dst, sent.step, sent.message_bytes)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _flights(run: Run, messages: list[tuple[int, int, int, int]]) -> list[Flight]:
    ends = {
        (span.kind, span.rank, span.division): span.end_ns
        for span in run.spans
        if span.kind in ("launch", "wait")
    }
    found = []
    for src, dst, step, size in messages:
        launches = [ends.get(("launch", rank, step - 1)) for rank in (src, dst)]
        known = [end for end in launches if end is not None]
        arrived = ends.get(("wait", dst, step))
        if arrived is not None and known:
            found.append(
                Flight(
                    src=src,
                    dst=dst,
                    phase=run.phase,
                    run=run.run,
                    division=step,
                    begin_ns=min(max(known), arrived),
                    end_ns=arrived,
                    bytes=size,
                )
            )
    return found
