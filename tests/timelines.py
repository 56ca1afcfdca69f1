"""Plans, spans and flights that timelines are made of, and checks of what comes of them."""

from __future__ import annotations

from typing import Any

from nsight_exports import Export

import dcp
from dcp.profiling.decomposition import PARTS, Parts
from dcp.profiling.trace import Flight, Span, SpanKind
from dcp.scheduling import Phase

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


def check_chrome_trace(document: Any, ranks: int) -> list[Any]:
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


def export_of_processes(plan: dcp.ExecutionPlan) -> Export:
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
