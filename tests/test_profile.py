"""Timelines taken apart: known answers, files that others open, and `dcp profile`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_runs import random_inputs, run_both_ways
from clock_ranks import AHEAD_NS, measure
from hypothesis import given
from hypothesis import strategies as st
from nsight_exports import Export
from typer.testing import CliRunner, Result

import dcp
from dcp.cli import app
from dcp.cli.local_processes import local_processes
from dcp.errors import ProfileError
from dcp.profiling import intervals
from dcp.profiling.accuracy import compare_traces
from dcp.profiling.chrome import chrome_trace, write_chrome_trace
from dcp.profiling.decomposition import PARTS, Parts, decompose
from dcp.profiling.flights import measured_trace
from dcp.profiling.nsight import read_export
from dcp.profiling.trace import Flight, Span, SpanKind, Trace
from dcp.runtime import tracing
from dcp.scheduling import Phase
from dcp.simulator import messages_of, simulate_plan, simulated_trace

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="float32")
BATCH = dcp.Batch([300, 50, 1])


def plan_of(ranks: int = 2, baseline: str = "ring") -> dcp.ExecutionPlan:
    cluster = dcp.Cluster(devices_per_node=ranks)
    return dcp.plan(BATCH, SPEC, cluster, block_size=64, baseline=baseline)


def span(
    rank: int,
    kind: SpanKind,
    begin: int,
    end: int,
    *,
    division: int = 0,
    phase: Phase = "forward",
    run: int = 0,
) -> Span:
    return Span(
        rank=rank,
        phase=phase,
        run=run,
        kind=kind,
        division=division,
        begin_ns=begin,
        end_ns=end,
    )


def flight(dst: int, begin: int, end: int, *, run: int = 0) -> Flight:
    return Flight(
        src=9 - dst, dst=dst, phase="forward", run=run, division=1, begin_ns=begin, end_ns=end,
        bytes=1,
    )  # fmt: skip


def nanoseconds(parts: Parts) -> list[int]:
    return [round(getattr(parts, name) * 1e9) for name in PARTS]


# Intervals

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


# Decomposition


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


# Messages


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


# Chrome traces


def _check_chrome_trace(document: Any, ranks: int) -> list[Any]:
    events = document["traceEvents"]
    assert {event["ph"] for event in events} <= {"M", "X", "b", "e"}
    for event in events:
        assert isinstance(event["name"], str)
        assert event["pid"] in range(ranks)
        assert isinstance(event["tid"], int)
        if event["ph"] != "M":
            assert event["ts"] >= 0
    slices = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 for event in slices)
    for track in {(event["pid"], event["tid"]) for event in slices}:
        _check_slices_nest([one for one in slices if (one["pid"], one["tid"]) == track])
    begun = {event["id"]: event["ts"] for event in events if event["ph"] == "b"}
    ended = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
    assert begun.keys() == ended.keys()
    assert all(begun[number] <= ended[number] for number in begun)
    return slices


def _check_slices_nest(slices: list[Any]) -> None:
    """In their order, a slice lies inside the innermost open one or after it."""
    open_until: list[float] = []
    for event in slices:
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_until and open_until[-1] <= begin + 1e-3:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3
        open_until.append(end)


def test_chrome_traces_hold_every_span(tmp_path: Path) -> None:
    plan = plan_of()
    measured, simulated = _recorded(plan), simulated_trace(plan, simulate_plan(plan))
    file = tmp_path / "trace.json"
    write_chrome_trace(file, {"measured": measured, "simulated": simulated})
    slices = _check_chrome_trace(json.loads(file.read_text()), 2)
    assert len(slices) == len(measured.spans) + len(simulated.spans)
    names = {one["name"] for one in slices}
    assert {"setup", "forward", "backward", "division 0", "attention 0", "finish"} <= names


def test_a_trace_without_spans_is_a_document_too() -> None:
    assert chrome_trace({"measured": Trace(plan="", spans=[], flights=[])})["traceEvents"] == []


# Nsight Systems


def _export_of_processes(plan: dcp.ExecutionPlan) -> Export:
    """Two runs on CPUs, of which only the executor's ranges are seen; rank 1 begins later."""
    export = Export(digest=plan.digest)
    export.range(0, "forward", "finish", -1, 0, 5)  # of a run whose beginning was not seen
    for start in (100, 1100):
        for rank in (0, 1):
            begin = start + 10 * rank
            export.range(rank, "forward", "setup", -1, begin, begin + 10)
            export.range(rank, "forward", "phase", -1, begin + 10, begin + 200)
            export.range(rank, "forward", "division", 0, begin + 10, begin + 100)
            export.range(rank, "forward", "launch", 0, begin + 10, begin + 20)
            export.range(rank, "forward", "attention", 0, begin + 20, begin + 100)
            export.range(rank, "forward", "division", 1, begin + 100, begin + 195)
            export.range(rank, "forward", "wait", 1, begin + 100, begin + 130)
            export.range(rank, "forward", "attention", 1, begin + 130, begin + 180)
            export.range(rank, "forward", "copy", 1, begin + 180, begin + 195)
            export.range(rank, "forward", "finish", -1, begin + 195, begin + 200)
    export.ranges.append((1, 0, 99, "range of somebody else"))
    export.ranges.append((1, 0, 99, export.ranges[-2][3].replace(plan.digest[:12], "0" * 12)))
    return export


@pytest.mark.parametrize("strings", [True, False], ids=["string table", "text in the row"])
def test_ranges_of_an_export_are_decomposed(tmp_path: Path, strings: bool) -> None:
    plan = plan_of()
    file = _export_of_processes(plan).write(tmp_path / "a.sqlite", strings=strings)
    trace = read_export(file, plan)
    (found,) = decompose(trace, 2)
    assert found.runs == 2
    # Messages are under way from the later launch, which ends at 30 from rank 0's begin.
    assert [nanoseconds(parts) for parts in found.ranks] == [
        [35, 70, 60, 35, 10],
        [35, 80, 50, 35, 10],
    ]
    assert decompose(read_export(file, plan, skip_runs=1), 2)[0].runs == 1


def test_work_on_gpus_is_decomposed_by_when_it_ran(tmp_path: Path) -> None:
    """The host is done long before: its ranges say only what started what."""
    plan = plan_of()
    export = Export(digest=plan.digest)
    export.range(0, "forward", "setup", -1, 0, 1)
    export.range(0, "forward", "phase", -1, 1, 60)
    export.range(0, "forward", "launch", 0, 10, 20)
    export.range(0, "forward", "attention", 0, 20, 30)
    export.range(0, "forward", "wait", 1, 30, 40, 4096)
    export.range(0, "forward", "attention", 1, 40, 50)
    export.range(0, "forward", "copy", 1, 50, 60)
    export.range(1, "forward", "setup", -1, 0, 1)
    export.range(1, "forward", "attention", 0, 20, 30)
    export.gpu(0, 5, 0, 7000, "kernel of somebody else")
    export.gpu(0, 12, 1000, 1010, "pack", "MEMCPY")
    export.gpu(0, 15, 1010, 1300, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)")
    export.gpu(0, 22, 1020, 1120, "flash_fwd_kernel")
    export.gpu(0, 25, 1130, 1180, "flash_fwd_kernel")
    export.gpu(0, 42, 1300, 1500, "flash_fwd_kernel")
    export.gpu(0, 55, 1510, 1530, "cast")
    export.gpu(1, 22, 1005, 1405, "flash_fwd_kernel")
    trace = read_export(export.write(tmp_path / "a.sqlite"), plan)
    (found,) = decompose(trace, 2)
    # Rank 0 communicates alone in 1010-1020, 1120-1130 and 1180-1300.
    assert [nanoseconds(parts) for parts in found.ranks] == [
        [140, 150, 200, 40, 0],
        [0, 0, 400, 0, 130],
    ]
    (message,) = trace.flights
    assert (message.dst, message.division, message.bytes) == (0, 1, 4096)


def test_an_export_without_what_is_needed_is_refused(tmp_path: Path) -> None:
    plan = plan_of()
    export = _export_of_processes(plan)
    missing = tmp_path / "missing.sqlite"
    with pytest.raises(ProfileError, match=r"no file .*missing\.sqlite"):
        read_export(missing, plan)
    garbage = tmp_path / "garbage.sqlite"
    garbage.write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(ProfileError, match="is no SQLite export"):
        read_export(garbage, plan)
    empty = export.write(tmp_path / "empty.sqlite", without=["NVTX_EVENTS"])
    with pytest.raises(ProfileError, match=r"no table NVTX_EVENTS.*--trace=nvtx,cuda"):
        read_export(empty, plan)
    with pytest.raises(ProfileError, match=r"no ranges of plan .*package nvtx"):
        read_export(export.write(tmp_path / "a.sqlite"), plan_of(baseline="zigzag"))
    export.gpu(0, 125, 130, 140, "flash_fwd_kernel")
    half = export.write(tmp_path / "half.sqlite", without=["CUPTI_ACTIVITY_KIND_RUNTIME"])
    with pytest.raises(ProfileError, match="no table CUPTI_ACTIVITY_KIND_RUNTIME"):
        read_export(half, plan)


# The command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "80"})


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    file = tmp_path / "a.plan"
    plan_of().save(file)
    return file


@pytest.mark.distributed
def test_the_command_runs_a_plan_and_takes_it_apart(plan_file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    asked = ("profile", plan_file, "--iterations", 2, "--trace", trace, "--against", "simulation")
    result = run(*asked, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    for phase in ("forward", "backward"):
        assert found["measured"][phase]["runs"] == 2
        ranks = found["measured"][phase]["ranks"]
        assert len(ranks) == 2
        for parts in ranks:
            assert sum(parts[name] for name in PARTS) == pytest.approx(ranks[0]["total_s"])
            assert min(parts.values()) >= -1e-12
    kinds = {(one["phase"], one["kind"]) for one in found["against_simulation"]}
    assert {("forward", "attention"), ("backward", "wait"), ("backward", "phase")} <= kinds
    slices = _check_chrome_trace(json.loads(trace.read_text()), 2)
    assert {one["args"]["run"] for one in slices} == {0, 1}
    text = run("profile", plan_file, "--iterations", 1, "--trace", trace).stdout
    *lines, last = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("exposed" in line for line in lines)
    assert last.startswith(f"trace written to {trace}")


@pytest.mark.distributed
def test_clocks_of_ranks_are_brought_together(tmp_path: Path) -> None:
    with local_processes(measure, 3, str(tmp_path / "rendezvous"), str(tmp_path)) as context:
        while not context.join():
            pass
    for rank in range(3):
        offset = int((tmp_path / str(rank)).read_text())
        assert offset == pytest.approx(rank * AHEAD_NS, abs=100e6)  # on a busy machine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--iterations", 0), "give 1 or more"),
        (("--against", "hope"), "legal: simulation"),
        (("--tokens", 100), "one or the other"),
        (("--nsys", "--export", "a.sqlite"), "leave --nsys out"),
    ],
)
def test_illegal_requests_are_refused(
    plan_file: Path, arguments: tuple[object, ...], message: str
) -> None:
    result = run("profile", plan_file, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_more_ranks_than_processes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "many.plan"
    plan_of(17).save(file)
    result = run("profile", file)
    assert result.exit_code == 2
    assert "at most 16 devices" in result.stderr


def test_an_export_is_read_instead_of_running(plan_file: Path, tmp_path: Path) -> None:
    export = _export_of_processes(plan_of()).write(tmp_path / "a.sqlite")
    trace = tmp_path / "trace.json"
    result = run("profile", plan_file, "--export", export, "--trace", trace, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["measured"]["forward"]["runs"] == 2
    _check_chrome_trace(json.loads(trace.read_text()), 2)


def test_without_nsys_the_command_says_so(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("profile", plan_file, "--nsys", "--trace", tmp_path / "trace.json")
    assert result.exit_code == 2
    assert "`nsys` in PATH" in result.stderr


FAKE_NVTX = """
import atexit, json, os, threading, time
from types import SimpleNamespace

class Domain:
    def __init__(self):
        self.open, self.done = [], []
        atexit.register(self.write)
    def get_event_attributes(self, message):
        return SimpleNamespace(message=message)
    def push_range(self, attributes):
        self.open.append((attributes.message, time.perf_counter_ns()))
    def pop_range(self):
        self.done.append((*self.open.pop(), time.perf_counter_ns()))
    def write(self):
        with open(os.path.join(os.environ["SEEN"], f"{os.getpid()}.json"), "w") as file:
            json.dump(self.done, file)

domain = Domain()
def get_domain(name):
    assert name == "dcp"
    return domain
"""

FAKE_NSYS = """\
#!{python}
import json, os, pathlib, subprocess, sys
sys.path.insert(0, {tests!r})
from nsight_exports import Export
assert sys.argv[1] == "profile" and "--trace=nvtx,cuda" in sys.argv
assert "--export=sqlite" in sys.argv
(output,) = (one.partition("=")[2] for one in sys.argv if one.startswith("--output="))
command = sys.argv[max(i for i, one in enumerate(sys.argv) if one.startswith("--")) + 1:]
path = os.pathsep.join([{nvtx!r}, os.environ["PYTHONPATH"]])
done = subprocess.run(command, env=dict(os.environ, PYTHONPATH=path))
export = Export(digest="")
for number, file in enumerate(pathlib.Path(os.environ["SEEN"]).glob("*.json")):
    for text, begin, end in json.loads(file.read_text()):
        export.ranges.append((number, begin, end, text))
export.write(pathlib.Path(output + ".sqlite"))
sys.exit(done.returncode)
"""


@pytest.mark.distributed
def test_a_run_under_nsys_is_read_from_its_export(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for nsys and nvtx, which keep to how they are called and what they write."""
    tools, seen = tmp_path / "tools", tmp_path / "seen"
    (tools / "nvtx").mkdir(parents=True)
    seen.mkdir()
    (tools / "nvtx" / "__init__.py").write_text(FAKE_NVTX)
    nsys = tools / "nsys"
    nsys.write_text(
        FAKE_NSYS.format(python=sys.executable, tests=str(Path(__file__).parent), nvtx=str(tools))
    )
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tools), os.environ["PATH"]]))
    monkeypatch.setenv("SEEN", str(seen))
    asked = ("profile", plan_file, "--nsys", "--iterations", 2)
    result = run(*asked, "--trace", tmp_path / "trace.json", "--json")
    assert result.exit_code == 0, result.output
    for found in json.loads(result.stdout)["measured"].values():
        assert found["runs"] == 2
        for parts in found["ranks"]:
            assert parts["attention_s"] + parts["overlapped_comm_s"] > 0
            assert sum(parts[name] for name in PARTS) == pytest.approx(found["mean"]["total_s"])
