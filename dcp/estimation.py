"""A placed and scheduled phase put to the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.arrays import FloatArray
from dcp.cost import (
    Messages,
    Timeline,
    Work,
    in_kernels,
    memory_seconds,
    rewriting_seconds,
    simulate,
    summed,
)
from dcp.scheduling import QUERY_RESULT, CostModel, Schedule, SchedulingProblem


@dataclass(frozen=True, kw_only=True)
class EventModel(CostModel):
    """Compute rates, shared links and ranks that wait, event by event; see `dcp.cost`."""

    name: ClassVar[str] = "event"

    def simulate(self, problem: SchedulingProblem, schedule: Schedule) -> Timeline:
        """Play a schedule through."""
        device, moved = problem.cluster.device, schedule.transfers
        moved_bytes = moved.bytes_of(problem.blocks)
        steps = max(schedule.num_divisions, int(moved.step.max(initial=0)) + 1)
        shape = (problem.cluster.num_devices, steps)
        merged = np.flatnonzero(moved.is_result)
        work = Work(
            reduce_s=in_kernels(
                device,
                summed(
                    memory_seconds(device, moved_bytes[merged]),
                    moved.dst[merged],
                    moved.step[merged],
                    shape,
                ),
            ),
            attention_s=in_kernels(
                device,
                summed(problem.comp_s, problem.comp_device, schedule.comp_division, shape)
                + _continuing_seconds(problem, schedule, shape),
            ),
            copy_s=in_kernels(device, _final_copies(problem, shape)),
        )
        messages = Messages.joined(moved.src, moved.dst, moved.step, moved_bytes)
        return simulate(work, messages, problem.cluster)


def _continuing_seconds(
    problem: SchedulingProblem, schedule: Schedule, shape: tuple[int, int]
) -> FloatArray:
    """Seconds of every division for sums that its device has begun in an earlier one."""
    total = np.zeros(shape)
    for sums in problem.sums:
        number, division = sums.continued(schedule.comp_division, shape[1])
        seconds = rewriting_seconds(problem.cluster.device, sums.accumulator_bytes[number])
        total += summed(seconds, sums.device[number], division, shape)
    return total


def _final_copies(problem: SchedulingProblem, shape: tuple[int, int]) -> FloatArray:
    """Seconds to copy results to their homes, all taken to become final in the last step."""
    result_bytes = problem.blocks.data_bytes[QUERY_RESULT[problem.phase]].sum(axis=1)
    seconds = memory_seconds(problem.cluster.device, result_bytes)
    return summed(seconds, problem.token_home, np.full(len(seconds), shape[1] - 1), shape)
