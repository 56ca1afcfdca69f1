"""Finished plans played through the cost model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import dcp
from dcp.cli import app
from dcp.cost import Timeline
from dcp.errors import SpecError
from dcp.profiling.decomposition import decompose
from dcp.profiling.simulated import simulated_trace
from dcp.profiling.trace import GROUPS, runs_of
from dcp.program_facts import facts_of
from dcp.scheduling import EventModel, Schedule, SchedulingProblem
from dcp.simulator import programs_of, simulate_plan

SPEC = dcp.AttentionSpec(num_q_heads=8, num_kv_heads=2, head_dim=64)
BATCH = dcp.Batch([2100, 0, 700, 30, 1])
CLUSTER = dcp.Cluster(nodes=2, devices_per_node=2)
WAYS: list[dict[str, Any]] = [
    {"baseline": "ring"},
    {"baseline": "zigzag"},
    {"baseline": "ulysses"},
    {"baseline": "usp"},
    {"baseline": "allgather"},
    {"partitioner": "greedy", "scheduler": "sequential"},
    {"partitioner": "greedy", "scheduler": "paper"},
    {"partitioner": "greedy", "scheduler": "overlap"},
]


def plan_of(cluster: dcp.Cluster = CLUSTER, **way: Any) -> dcp.ExecutionPlan:
    return dcp.plan(BATCH, SPEC, cluster, block_size=128, **(way or {"baseline": "zigzag"}))


def _estimates(plan: dcp.ExecutionPlan) -> list[Any]:
    return [plan.forward_estimate, plan.backward_estimate]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "+".join(way.values()))
def test_programs_take_the_time_that_was_estimated_from_their_schedule(way: Any) -> None:
    """Exactly, where copying costs nothing; the estimate takes all copies to be in the last
    step, and only those of O and dQ."""
    free = replace(CLUSTER.device, memory_bytes_per_s=1e30, launch_s=0.0)
    plan = plan_of(replace(CLUSTER, device=free), **way)
    for simulated, estimate in zip(simulate_plan(plan), _estimates(plan), strict=True):
        found = simulated.timeline.estimate()
        for name in ("total_s", "exposed_comm_s", "overlapped_comm_s", "idle_s"):
            assert getattr(found, name) == pytest.approx(
                getattr(estimate, name), rel=1e-9, abs=1e-15
            )


def test_going_on_with_a_sum_of_an_earlier_division_costs_reading_and_writing_it() -> None:
    """Ring: every rank goes on with every row that it owns, in each of the later divisions."""
    cluster = dcp.Cluster(nodes=1, devices_per_node=4)
    plan = dcp.plan(dcp.Batch([1024], mask=dcp.masks.full()), SPEC, cluster, baseline="ring")
    once = replace(cluster.device, memory_bytes_per_s=1e30)
    forward, _ = simulate_plan(plan)
    without, _ = simulate_plan(plan, replace(cluster, device=once))
    more = forward.timeline.work.attention_s - without.timeline.work.attention_s
    row_bytes = 8 * (64 + 1) * 4  # out and lse in float32, of all heads
    again = 2 * 256 * row_bytes / cluster.device.memory_bytes_per_s
    assert more.tolist() == pytest.approx(np.array(4 * [[0.0, again, again, again]]))


class Remembering(EventModel):
    """Keeps the timelines that it was asked for; the last two are the plan's."""

    timelines: ClassVar[list[Timeline]] = []

    def timeline(self, problem: SchedulingProblem, schedule: Schedule) -> Timeline:
        self.timelines.append(super().timeline(problem, schedule))
        return self.timelines[-1]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "+".join(way.values()))
def test_attention_takes_the_time_that_was_estimated_also_where_memory_is_slow(way: Any) -> None:
    slow = replace(CLUSTER.device, memory_bytes_per_s=1e6)
    plan = plan_of(replace(CLUSTER, device=slow), cost_model=Remembering(), **way)
    for simulated, estimated in zip(simulate_plan(plan), Remembering.timelines[-2:], strict=True):
        assert simulated.timeline.work.attention_s == pytest.approx(estimated.work.attention_s)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "+".join(way.values()))
def test_copies_explain_the_rest(way: Any) -> None:
    plan = plan_of(**way)
    for simulated, estimate in zip(simulate_plan(plan), _estimates(plan), strict=True):
        copying = simulated.timeline.work.copy_s.sum(axis=1).max()
        assert copying > 0
        # Copies delay launches, so a rank may wait for those of another.
        assert abs(simulated.total_s - estimate.total_s) <= 2 * copying


def test_every_instruction_is_a_span_within_its_division() -> None:
    plan = plan_of()
    trace = simulated_trace(plan, simulate_plan(plan))
    for run in runs_of(trace):
        for rank, program in enumerate(programs_of(plan, run.phase)):
            spans = [span for span in run.spans if span.rank == rank]
            found = [
                (span.kind, span.division, span.bytes, span.pairs)
                for span in spans
                if span.kind not in GROUPS
            ]
            facts = facts_of(plan.blocks, program)
            assert found == [(one.kind, one.division, one.bytes, one.pairs) for one in facts]
            divisions = {span.division: span for span in spans if span.kind == "division"}
            for span in spans:
                if span.kind != "phase":
                    outer = divisions[span.division]
                    assert outer.begin_ns <= span.begin_ns <= span.end_ns <= outer.end_ns


def test_decomposition_agrees_with_the_totals_of_the_timeline() -> None:
    plan = plan_of()
    phases = simulate_plan(plan)
    found = decompose(simulated_trace(plan, phases), len(plan.ranks))
    assert [one.phase for one in found] == ["forward", "backward"]
    for one, simulated in zip(found, phases, strict=True):
        estimate = simulated.timeline.estimate()
        work = simulated.timeline.work
        near = {"abs": 1e-7}  # spans are in whole nanoseconds
        assert one.mean.total_s == pytest.approx(estimate.total_s, **near)
        assert one.mean.exposed_comm_s == pytest.approx(estimate.exposed_comm_s, **near)
        assert one.mean.idle_s == pytest.approx(estimate.idle_s, **near)
        attention = work.attention_s.sum(axis=1).mean()
        assert one.mean.overlapped_comm_s + one.mean.attention_s == pytest.approx(attention, **near)
        timeline = simulated.timeline
        moving = timeline.unpack_s + work.reduce_s + timeline.pack_s + work.copy_s
        other = moving.sum(axis=1).mean()
        assert one.mean.other_s == pytest.approx(other, **near)


def test_backward_begins_where_forward_ends() -> None:
    plan = plan_of()
    forward, backward = runs_of(simulated_trace(plan, simulate_plan(plan)))
    assert min(span.begin_ns for span in backward.spans) == max(s.end_ns for s in forward.spans)


def test_a_faster_cluster_takes_less_time() -> None:
    plan = plan_of()
    slow, fast = (
        simulate_plan(plan, dcp.Cluster.preset(name, nodes=2, devices_per_node=2))
        for name in ("local", "dgx_h100")
    )
    assert all(b.total_s < a.total_s for a, b in zip(slow, fast, strict=True))


def test_a_cluster_of_another_size_is_refused() -> None:
    with pytest.raises(SpecError, match="4 ranks but the cluster has 3 devices"):
        simulate_plan(plan_of(), dcp.Cluster(devices_per_node=3))


def test_an_empty_batch_takes_no_time() -> None:
    plan = dcp.plan(dcp.Batch([]), SPEC, CLUSTER, baseline="zigzag")
    assert [one.total_s for one in simulate_plan(plan)] == [0.0, 0.0]
    assert all(one.mean.total_s == 0 for one in decompose(
        simulated_trace(plan, simulate_plan(plan)), 4
    ))  # fmt: skip


# The command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "80"})


def test_the_command_simulates_a_plan_file(tmp_path: Path) -> None:
    plan = plan_of()
    plan.save(tmp_path / "a.plan")
    result = run("simulate", tmp_path / "a.plan", "--trace", tmp_path / "t.json", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["digest"] == plan.digest
    for phase, simulated in zip(("forward", "backward"), simulate_plan(plan), strict=True):
        assert len(found["simulated"][phase]["ranks"]) == 4
        for parts in found["simulated"][phase]["ranks"]:
            assert parts["total_s"] == pytest.approx(simulated.total_s, abs=1e-7)
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_the_command_plans_what_it_is_asked_for(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("600\n50\n")
    result = run("simulate", "--lengths", lengths, "--cluster", "1x2", "--baseline", "ring")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "by ring, 2 ranks" in lines[0]
    first = [line.split()[0] for line in lines if line.strip()]
    assert [word for word in first if word in ("forward", "backward")] == ["forward", "backward"]
    assert first.count("mean") == 2


def test_a_plan_file_excludes_options_that_plan(tmp_path: Path) -> None:
    plan_of().save(tmp_path / "a.plan")
    for extra in (("--tokens", 100), ("--baseline", "ring"), ("--mask", "full")):
        result = run("simulate", tmp_path / "a.plan", *extra)
        assert result.exit_code == 2
        assert "one or the other" in result.stderr
