"""Traces in the Trace Event Format, which Perfetto and chrome://tracing open.

A rank is a process. In it every timeline is a track of nested slices (phase, division,
instruction), and messages to the rank are asynchronous slices, which may overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dcp.profiling.trace import GROUPS, Flight, Span, Trace


def write_chrome_trace(path: str | Path, traces: Mapping[str, Trace]) -> None:
    """Write timelines by name, each from its own zero; see `chrome_trace`."""
    Path(path).write_text(json.dumps(chrome_trace(traces)), encoding="utf-8")


def chrome_trace(traces: Mapping[str, Trace]) -> dict[str, Any]:
    """One document; times in microseconds from the first span of each timeline."""
    events: list[dict[str, Any]] = []
    ranks = sorted({span.rank for trace in traces.values() for span in trace.spans})
    for rank in ranks:
        events.append(_name("process_name", rank, 0, f"rank {rank}"))
        events += [_name("thread_name", rank, track, name) for track, name in enumerate(traces)]
    for track, (name, trace) in enumerate(traces.items()):
        zero = min((span.begin_ns for span in trace.spans), default=0)
        # Of slices that begin together the longest comes first: it holds the others.
        spans = sorted(trace.spans, key=lambda span: (span.begin_ns, -span.end_ns, _depth(span)))
        events += [_slice(span, track, zero) for span in spans]
        for number, flight in enumerate(trace.flights):
            events += _message(flight, f"{name} {number}", track, zero)
    plans = {name: trace.plan for name, trace in traces.items()}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"plans": plans}}


def _depth(span: Span) -> int:
    return GROUPS.index(span.kind) if span.kind in GROUPS else len(GROUPS)


def _name(kind: str, rank: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": track, "args": {"name": name}}


def _slice(span: Span, track: int, zero_ns: int) -> dict[str, Any]:
    name: str = span.phase if span.kind == "phase" else span.kind
    if span.division >= 0:
        name += f" {span.division}"
    return {
        "ph": "X",
        "name": name,
        "cat": span.phase,
        "pid": span.rank,
        "tid": track,
        "ts": (span.begin_ns - zero_ns) / 1e3,
        "dur": span.duration_ns / 1e3,
        "args": {"run": span.run, "bytes": span.bytes, "pairs": span.pairs},
    }


def _message(flight: Flight, number: str, track: int, zero_ns: int) -> Iterator[dict[str, Any]]:
    source = "messages" if flight.src < 0 else f"from rank {flight.src}"
    common = {
        "name": f"{source} for division {flight.division}",
        "cat": "message",
        "id": number,
        "pid": flight.dst,
        "tid": track,
    }
    details = {"run": flight.run, "phase": flight.phase, "bytes": flight.bytes}
    yield {"ph": "b", "ts": (flight.begin_ns - zero_ns) / 1e3, **common, "args": details}
    yield {"ph": "e", "ts": (flight.end_ns - zero_ns) / 1e3, **common}
