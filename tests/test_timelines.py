"""Timelines taken apart: known answers, and files that others open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_runs import random_inputs, run_both_ways
from hypothesis import given
from hypothesis import strategies as st
from timelines import (
    BATCH,
    SPEC,
    check_chrome_trace,
    flight,
    nanoseconds,
    plan_of,
    span,
)

import dcp
from dcp.profiling import intervals
from dcp.profiling.accuracy import compare_traces
from dcp.profiling.chrome import chrome_trace, write_chrome_trace
from dcp.profiling.decomposition import decompose
from dcp.profiling.flights import measured_trace
from dcp.profiling.simulated import simulated_trace
from dcp.profiling.trace import Trace
from dcp.runtime import tracing
from dcp.simulator import messages_of, simulate_plan

moments = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def points(rows: Any) -> set[int]:
    return {point for begin, end in rows for point in range(begin, end)}


@pytest.mark.property
@given(moments, moments)
def test_intervals_are_sets_of_points(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, other = intervals.union(a), intervals.union(b)
    for found, expected in (
        (one, points(a)),
        (intervals.union(a, b), points(a) | points(b)),
        (intervals.without(one, other), points(a) - points(b)),
    ):
        assert points(found.tolist()) == expected
        assert intervals.length(found) == len(expected)
        assert (np.diff(found.reshape(-1)) > 0).all(), "not merged or not ascending"
    assert intervals.common(one, other) == len(points(a) & points(b))


def test_a_timeline_with_a_known_answer() -> None:
    spans = [
        span(0, "setup", 0, 10),
        span(0, "phase", 10, 205),
        span(0, "division", 10, 110),
        span(0, "launch", 15, 20),
        span(0, "attention", 20, 100),
        span(0, "wait", 110, 130, division=1),
        span(0, "reduce", 130, 135, division=1),
        span(0, "attention", 140, 190, division=1),
        span(0, "copy", 190, 200, division=1),
        span(0, "finish", 200, 205),
        span(1, "phase", 50, 250),
        span(1, "attention", 50, 250),
    ]
    flights = [
        flight(0, 30, 60),
        flight(0, 50, 130),  # 30 to 100 of the attention before the wait, which it ends with
        flight(0, 180, 400),  # and 10 of the other
        flight(1, 0, 70),
        flight(1, 240, 245),
    ]
    (found,) = decompose(Trace(plan="", spans=spans, flights=flights), 3)
    assert [nanoseconds(parts) for parts in found.ranks] == [
        [25, 80, 50, 50, 45],
        [0, 25, 175, 0, 50],
        [0, 0, 0, 0, 250],
    ]
    assert [parts.total_s for parts in found.ranks] == pytest.approx([250e-9] * 3)
    assert found.mean.idle_s == pytest.approx(345e-9 / 3)
    assert (found.phase, found.runs) == ("forward", 1)


def test_runs_are_averaged_and_phases_kept_apart() -> None:
    spans = [
        span(0, "attention", 0, 10),
        span(0, "attention", 100, 130, run=1),
        span(0, "wait", 500, 507, phase="backward"),
    ]
    forward, backward = decompose(Trace(plan="", spans=spans, flights=[]), 1)
    assert nanoseconds(forward.mean) == [0, 0, 20, 0, 0]
    assert forward.runs == 2
    assert nanoseconds(backward.mean) == [7, 0, 0, 0, 0]


@st.composite
def timelines(draw: st.DrawFn) -> Trace:
    """What ranks could do: instructions in a row, with gaps, and messages at any time."""
    spans = []
    kinds = st.sampled_from(["setup", "wait", "reduce", "launch", "attention", "copy", "finish"])
    for rank in range(3):
        now = draw(st.integers(0, 50))
        for kind in draw(st.lists(kinds, max_size=6)):
            begin = now + draw(st.integers(0, 5))
            now = begin + draw(st.integers(0, 20))
            spans.append(span(rank, kind, begin, now))  # type: ignore[arg-type]
    ends = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99), st.integers(0, 99))))
    flights = [flight(dst, *sorted(times)) for dst, *times in ends]
    return Trace(plan="", spans=spans, flights=flights)


@pytest.mark.property
@given(timelines())
def test_parts_add_up_to_the_time_of_the_phase(trace: Trace) -> None:
    for found in decompose(trace, 3):
        begin = min(one.begin_ns for one in trace.spans)
        total = max(one.end_ns for one in trace.spans) - begin
        for parts in (*found.ranks, found.mean):
            assert parts.total_s * 1e9 == pytest.approx(total, abs=1e-6)
            assert min(nanoseconds(parts)) >= 0


def test_times_are_compared_kind_by_kind() -> None:
    measured = Trace(
        plan="",
        spans=[span(0, "attention", 0, 40), span(0, "attention", 100, 160, run=1),
               span(0, "wait", 160, 170, run=1)],
        flights=[],
    )  # fmt: skip
    simulated = Trace(plan="", spans=[span(0, "attention", 0, 75), span(0, "copy", 75, 80)],
                      flights=[])  # fmt: skip
    found = {one.kind: one for one in compare_traces(measured, simulated, 1)}
    assert list(found) == ["wait", "attention", "copy", "phase"]
    assert found["attention"].measured_s == pytest.approx(50e-9)
    assert found["attention"].error == pytest.approx(0.5)
    assert found["wait"].error == pytest.approx(-1)
    assert found["copy"].error is None
    assert found["phase"].measured_s == pytest.approx(55e-9)
    assert found["phase"].simulated_s == pytest.approx(80e-9)


def _recorded(plan: dcp.ExecutionPlan) -> Trace:
    with tracing.record() as recorder:
        run_both_ways(plan, random_inputs(BATCH, SPEC))
    return measured_trace(plan, recorder.spans(plan.digest))


@pytest.mark.parametrize("baseline", ["ring", "zigzag", "ulysses"])
def test_messages_are_under_way_from_both_launches_to_the_wait(baseline: str) -> None:
    plan = plan_of(3, baseline)
    trace = _recorded(plan)
    for phase in ("forward", "backward"):
        sent = messages_of(plan, phase)
        found = [one for one in trace.flights if one.phase == phase]
        assert [(one.src, one.dst, one.division, one.bytes) for one in found] == list(
            zip(*(x.tolist() for x in (sent.src, sent.dst, sent.step, sent.message_bytes)),
                strict=True)
        )  # fmt: skip
        ends = {
            (one.kind, one.rank, one.division): one.end_ns
            for one in trace.spans
            if one.phase == phase
        }
        for one in found:
            launches = (ends["launch", rank, one.division - 1] for rank in (one.src, one.dst))
            assert one.begin_ns == max(launches)
            assert one.end_ns == ends["wait", one.dst, one.division] >= one.begin_ns


def test_chrome_traces_hold_every_span(tmp_path: Path) -> None:
    plan = plan_of()
    measured, simulated = _recorded(plan), simulated_trace(plan, simulate_plan(plan))
    file = tmp_path / "trace.json"
    write_chrome_trace(file, {"measured": measured, "simulated": simulated})
    slices = check_chrome_trace(json.loads(file.read_text()), 2)
    assert len(slices) == len(measured.spans) + len(simulated.spans)
    names = {one["name"] for one in slices}
    assert {"setup", "forward", "backward", "division 0", "attention 0", "finish"} <= names


def test_a_trace_without_spans_is_a_document_too() -> None:
    assert chrome_trace({"measured": Trace(plan="", spans=[], flights=[])})["traceEvents"] == []
