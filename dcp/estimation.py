"""A placed and scheduled phase put to the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.cluster import Cluster
from dcp.cost import Messages, Timeline, Work, attention_seconds, memory_seconds, simulate
from dcp.scheduling import QUERY_RESULT, RESULTS, CostModel, Schedule, SchedulingProblem


@dataclass(frozen=True, kw_only=True)
class EventModel(CostModel):
    """Compute rates, shared links and ranks that wait, event by event; see `dcp.cost`."""

    name: ClassVar[str] = "event"

    def simulate(self, problem: SchedulingProblem, schedule: Schedule) -> Timeline:
        """Play a schedule through."""
        blocks, cluster, moved = problem.blocks, problem.cluster, schedule.transfers
        moved_bytes = moved.bytes_of(blocks)
        steps = max(schedule.num_divisions, int(moved.step.max(initial=0)) + 1)
        shape = (cluster.num_devices, steps)
        partial = np.isin(moved.kind, RESULTS)
        merged = (moved.dst[partial], moved.step[partial])
        work = Work(
            reduce_s=_merging_seconds(cluster, shape, merged, moved_bytes[partial]),
            attention_s=_attention_seconds(problem, schedule, shape),
            copy_s=_final_copy_seconds(problem, shape),
        )
        messages = Messages.joined(moved.src, moved.dst, moved.step, moved_bytes)
        return simulate(work, messages, cluster)


def _attention_seconds(
    problem: SchedulingProblem, schedule: Schedule, shape: tuple[int, int]
) -> FloatArray:
    """Seconds of every division: its blocks in one kernel."""
    total = np.zeros(shape)
    where = (problem.comp_device, schedule.comp_division)
    np.add.at(total, where, comp_seconds(problem))
    return total + (total > 0) * problem.cluster.device.launch_s


def _final_copy_seconds(problem: SchedulingProblem, shape: tuple[int, int]) -> FloatArray:
    """Seconds to copy results to their homes, all taken to become final in the last step."""
    result_bytes = problem.blocks.data_bytes[QUERY_RESULT[problem.phase]].sum(axis=1)
    where = (problem.token_home, np.full(len(problem.token_home), shape[1] - 1))
    return _merging_seconds(problem.cluster, shape, where, result_bytes)


def comp_seconds(problem: SchedulingProblem) -> FloatArray:
    """Seconds of every computation block inside a running kernel, [C]."""
    blocks = problem.blocks
    return attention_seconds(
        problem.cluster.device,
        backward=problem.phase == "backward",
        flops_a_pair=4 * blocks.spec.head_dim * blocks.groups.q_count[blocks.comp_group],
        pairs=blocks.comp_pairs,
        q_tokens=blocks.token_length[blocks.comp_q],
        kv_tokens=blocks.token_length[blocks.comp_kv],
    )


def _merging_seconds(
    cluster: Cluster,
    shape: tuple[int, int],
    where: tuple[IntArray, IntArray],
    touched_bytes: IntArray,
) -> FloatArray:
    """Seconds of every step: all that is merged or copied in it, in one kernel."""
    total = np.zeros(shape)
    np.add.at(total, where, memory_seconds(cluster.device, touched_bytes))
    return total + (total > 0) * cluster.device.launch_s
