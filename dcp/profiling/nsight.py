"""Traces from SQLite exports of Nsight Systems.

Its ranges are those of the executor (`dcp.profiling.range_text`). Where GPU work was started inside
them, the trace holds that work: kernels and copies as spans of the instruction that started them,
NCCL kernels as flights, and as waits what of these runs beside no other work of the rank. Where
there is none, as on CPUs, it holds the ranges themselves.

Tables appear in an export only when there is something in them, and columns differ by version, so
both are asked for before they are read.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from dcp.errors import ProfileError
from dcp.execution_plan import ExecutionPlan
from dcp.profiling import intervals, range_text
from dcp.profiling.flights import measured_trace
from dcp.profiling.trace import GROUPS, Flight, Range, Span, Subject, Trace
from dcp.scheduling import Phase

_KERNELS, _API = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
_GPU_WORK = (_KERNELS, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_RANGE_TYPES = (59, 60)  # NvtxPushPopRange, NvtxStartEndRange
_THREAD_BITS = 24  # of a global thread id; the bits above are the process


class _ThreadSpan(NamedTuple):
    """A range, and the thread that it was on."""

    thread: int
    span: Span


class _Work(NamedTuple):
    """Something that ran on a GPU, the thread that started it and when."""

    thread: int
    started_ns: int
    begin_ns: int
    end_ns: int
    is_nccl: bool


def read_export(path: str | Path, plan: ExecutionPlan, *, skip_runs: int = 0) -> Trace:
    """Read the runs of a plan.

    Args:
        path: File that `nsys export --type sqlite` or `nsys profile --export=sqlite` wrote.
        plan: The plan that ran; ranges of others are left out.
        skip_runs: Runs of each phase at the beginning to leave out, for warming up.

    Raises:
        ProfileError: not such a file, or without what is needed; the message names it.
    """
    file = Path(path)
    if not file.is_file():
        raise ProfileError(f"there is no file {file}; give an SQLite export of Nsight Systems")
    try:
        with closing(sqlite3.connect(f"file:{file.resolve()}?mode=ro", uri=True)) as database:
            export = _Export(file, database)
            ranges = _with_runs(export.ranges(plan.digest))
            work = list(export.gpu_work())
    except sqlite3.DatabaseError as error:
        raise ProfileError(f"{file} is no SQLite export of Nsight Systems: {error}") from error
    ranges = [
        one._replace(span=msgspec.structs.replace(one.span, run=one.span.run - skip_runs))
        for one in ranges
        if one.span.run >= skip_runs
    ]
    if not ranges:
        raise ProfileError(
            f"{file} holds no ranges of plan {plan.digest[: range_text.DIGEST_LETTERS]}; was it "
            "profiled with --trace=nvtx, and is the package nvtx installed where it ran?"
        )
    spans, flights = _on_gpu(ranges, work)
    if spans or flights:
        return Trace(plan=plan.digest, spans=spans, flights=flights)
    return measured_trace(plan, [one.span for one in ranges])


class _Export:
    """A database, and what is known of its tables."""

    def __init__(self, file: Path, database: sqlite3.Connection) -> None:
        self._file = file
        self._database = database
        names = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._columns = {name: self._columns_of(name) for (name,) in names.fetchall()}

    def ranges(self, digest: str) -> Iterator[_ThreadSpan]:
        """Ranges of a plan, in order of time; `run` is still 0."""
        self._require("NVTX_EVENTS", "start", "end", "eventType", "globalTid")
        types = ", ".join(map(str, _RANGE_TYPES))
        rows = self._database.execute(
            f"SELECT globalTid, start, end, {self._text()} FROM NVTX_EVENTS "
            f"WHERE eventType IN ({types}) AND end IS NOT NULL ORDER BY start, end DESC"
        )
        for thread, begin, end, text in rows:
            found = range_text.parse(text or "")
            if found is not None and digest.startswith(found[0].digest):
                yield _ThreadSpan(thread, _span(*found, begin, end))

    def gpu_work(self) -> Iterator[_Work]:
        """Kernels, copies and fills; none where CUDA was not traced or not used."""
        for table in _GPU_WORK:
            if table in self._columns:
                self._require(table, "start", "end", "correlationId", "globalPid")
                self._require(_API, "start", "globalTid", "correlationId")
                rows = self._database.execute(
                    f"SELECT api.globalTid, api.start, work.start, work.end, {self._name(table)} "
                    f"FROM {table} AS work JOIN {_API} AS api "
                    "ON api.correlationId = work.correlationId "
                    f"AND api.globalTid >> {_THREAD_BITS} = work.globalPid >> {_THREAD_BITS}"
                )
                for thread, started, begin, end, name in rows:
                    yield _Work(thread, started, begin, end, (name or "").startswith("nccl"))

    def _text(self) -> str:
        """Expression for a range's text, which stands in the row or among the strings."""
        own = "text" in self._columns["NVTX_EVENTS"]
        if "textId" not in self._columns["NVTX_EVENTS"] or "StringIds" not in self._columns:
            self._require("NVTX_EVENTS", "text")
            return "text"
        shared = "(SELECT value FROM StringIds WHERE id = textId)"
        return f"COALESCE(text, {shared})" if own else shared

    def _name(self, table: str) -> str:
        if table != _KERNELS:
            return "''"
        self._require(table, "shortName")
        self._require("StringIds", "id", "value")
        return "(SELECT value FROM StringIds WHERE id = work.shortName)"

    def _columns_of(self, table: str) -> set[str]:
        rows = self._database.execute("SELECT name FROM pragma_table_info(?)", (table,))
        return {name for (name,) in rows}

    def _require(self, table: str, *columns: str) -> None:
        if table not in self._columns:
            raise ProfileError(
                f"{self._file} has no table {table}; profile with --trace=nvtx,cuda, with the "
                "package nvtx installed, and export all of it"
            )
        missing = [column for column in columns if column not in self._columns[table]]
        if missing:
            raise ProfileError(
                f"table {table} of {self._file} has no column {', '.join(missing)}; export with "
                "another version of Nsight Systems"
            )


def _span(subject: Subject, what: Range, begin_ns: int, end_ns: int) -> Span:
    return Span(
        rank=subject.rank,
        phase=subject.phase,
        run=0,
        kind=what.kind,
        division=what.division,
        begin_ns=begin_ns,
        end_ns=end_ns,
        bytes=what.bytes,
        pairs=what.pairs,
    )


def _with_runs(ranges: Iterator[_ThreadSpan]) -> list[_ThreadSpan]:
    """Number the runs: each begins with its setup; what comes before the first is cut off."""
    begun: Counter[tuple[int, Phase]] = Counter()
    found = []
    for thread, span in ranges:
        key = span.rank, span.phase
        begun[key] += span.kind == "setup"
        if begun[key]:
            found.append(_ThreadSpan(thread, msgspec.structs.replace(span, run=begun[key] - 1)))
    return found


def _on_gpu(ranges: list[_ThreadSpan], work: list[_Work]) -> tuple[list[Span], list[Flight]]:
    """Spans and flights of the GPU work that was started inside the ranges."""
    threads: dict[int, list[Span]] = defaultdict(list)
    for thread, span in ranges:
        if span.kind not in GROUPS:
            threads[thread].append(span)
    begins = {thread: [span.begin_ns for span in spans] for thread, spans in threads.items()}
    received = {
        (span.rank, span.phase, span.run, span.division): span.bytes
        for _, span in ranges
        if span.kind == "wait"
    }
    spans: list[Span] = []
    flights: list[Flight] = []
    for one in work:
        place = bisect_right(begins.get(one.thread, []), one.started_ns) - 1
        if place < 0 or threads[one.thread][place].end_ns < one.started_ns:
            continue  # started outside of our ranges
        span = threads[one.thread][place]
        if one.is_nccl:
            division = span.division + 1
            size = received.get((span.rank, span.phase, span.run, division), 0)
            flights.append(_flight(span, division, one, size))
        else:
            spans.append(msgspec.structs.replace(span, begin_ns=one.begin_ns, end_ns=one.end_ns))
    return spans + list(_exposed(spans, flights)), flights


def _flight(span: Span, division: int, work: _Work, size: int) -> Flight:
    return Flight(
        src=-1,
        dst=span.rank,
        phase=span.phase,
        run=span.run,
        division=division,
        begin_ns=work.begin_ns,
        end_ns=work.end_ns,
        bytes=size,
    )


def _exposed(spans: list[Span], flights: list[Flight]) -> Iterator[Span]:
    """Waits: when a rank communicates and nothing else of it runs."""
    busy: dict[tuple[int, Phase, int], list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        busy[span.rank, span.phase, span.run].append((span.begin_ns, span.end_ns))
    moving: dict[tuple[int, Phase, int], list[tuple[int, int]]] = defaultdict(list)
    for flight in flights:
        moving[flight.dst, flight.phase, flight.run].append((flight.begin_ns, flight.end_ns))
    for (rank, phase, run), moments in moving.items():
        working = intervals.union(busy.get((rank, phase, run), []))
        for begin, end in intervals.without(intervals.union(moments), working).tolist():
            what = Range("wait", -1, 0, 0)
            yield msgspec.structs.replace(
                _span(Subject("", rank, phase), what, begin, end), run=run
            )
