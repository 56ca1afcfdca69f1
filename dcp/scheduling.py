"""When blocks are computed and sent: the scheduler's problem, its answer, and how long it takes.

One rule of time holds for every scheme. Divisions 0 … n-1 hold computation blocks. A transfer of
step s is launched when division s-1 begins, before its work, and has arrived before division s
begins. Steps beyond n belong to virtual divisions without work, so results sent home after the
last division n-1 have step n+1: launched when (virtual) division n begins.

* Inputs (Q, KV, DO): the source is the home, or received the block in an earlier step (rings
  forward, nodes relay). No rank receives an input twice, nor one that it is home to.
* Partial results (O, DQ, DKV): a rank adds up what it computes and what it receives. A transfer
  sends the sum as it stands at its launch and empties it. Each sum must end at the home.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from dcp.arrays import BoolArray, FloatArray, IntArray
from dcp.backend import Backend
from dcp.blocks import BlockGraph, Kind
from dcp.cluster import Cluster
from dcp.cost import (
    Estimate,
    Messages,
    Timeline,
    Work,
    attention_seconds,
    in_kernels,
    memory_seconds,
    rewriting_seconds,
    simulate,
    summed,
)
from dcp.ordering import row_order
from dcp.sums import Sums

Phase = Literal["forward", "backward"]
PHASES: tuple[Phase, ...] = ("forward", "backward")

QUERY_INPUTS: dict[Phase, tuple[Kind, ...]] = {
    "forward": (Kind.Q,),
    "backward": (Kind.Q, Kind.DO),
}
QUERY_RESULT: dict[Phase, Kind] = {"forward": Kind.O, "backward": Kind.DQ}
KEY_INPUT = Kind.KV
KEY_RESULT = Kind.DKV  # backward only
PHASE_RESULTS: dict[Phase, tuple[Kind, ...]] = {
    "forward": (Kind.O,),
    "backward": (Kind.DQ, Kind.DKV),
}
RESULTS = (Kind.O, Kind.DQ, Kind.DKV)
_IS_RESULT = np.isin(np.arange(len(Kind)), RESULTS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Transfers:
    """Arrays [n], ordered by (step, src, dst, kind, block, group); time as in the module's rule."""

    kind: IntArray
    block: IntArray
    group: IntArray
    src: IntArray
    dst: IntArray
    step: IntArray

    @classmethod
    def of(cls, rows: IntArray) -> Transfers:
        """From rows (kind, block, group, src, dst, step), [n, 6], in any order."""
        kind, block, group, src, dst, step = np.asarray(rows, dtype=np.int64).reshape(-1, 6).T
        given = cls(kind=kind, block=block, group=group, src=src, dst=dst, step=step)
        return given.chosen(row_order(step, src, dst, kind, block, group))

    def chosen(self, which: IntArray | BoolArray) -> Transfers:
        """Some of the transfers, by number or by mask; or all in another order."""
        return Transfers(
            kind=self.kind[which],
            block=self.block[which],
            group=self.group[which],
            src=self.src[which],
            dst=self.dst[which],
            step=self.step[which],
        )

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def is_result(self) -> BoolArray:
        """Whether a transfer moves a partial result rather than an input, [n]."""
        chosen: BoolArray = _IS_RESULT[self.kind]
        return chosen

    def bytes_of(self, blocks: BlockGraph) -> IntArray:
        """Bytes of every transfer, [n]."""
        return blocks.data_bytes[self.kind, self.block, self.group]


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """When each computation block runs, [C], and what is sent."""

    phase: Phase
    num_divisions: int
    comp_division: IntArray
    transfers: Transfers


class CostModel(Backend):
    """Says how long a phase takes."""

    @abstractmethod
    def estimate(self, problem: SchedulingProblem, schedule: Schedule) -> Estimate:
        """Time that a schedule takes. Pure: equal arguments give equal estimates."""


@dataclass(frozen=True, kw_only=True)
class EventModel(CostModel):
    """Compute rates, shared links and ranks that wait, event by event; see `dcp.cost`."""

    name: ClassVar[str] = "event"

    def estimate(self, problem: SchedulingProblem, schedule: Schedule) -> Estimate:
        """Totals of the timeline."""
        return self.timeline(problem, schedule).estimate()

    def timeline(self, problem: SchedulingProblem, schedule: Schedule) -> Timeline:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class SchedulingProblem:
    """Blocks, where they are, and one phase to schedule.

    Attributes:
        blocks: The batch in blocks.
        token_home, comp_device: The placement, [T] and [C].
        cluster: Devices and links.
        phase: "forward" or "backward".
        cost_model: What the time of a schedule is judged by.
    """

    blocks: BlockGraph
    token_home: IntArray
    comp_device: IntArray
    cluster: Cluster
    phase: Phase
    cost_model: CostModel = field(default_factory=EventModel)

    @cached_property
    def comp_s(self) -> FloatArray:
        """Seconds of every computation block inside a running kernel, [C]."""
        blocks = self.blocks
        return attention_seconds(
            self.cluster.device,
            backward=self.phase == "backward",
            flops_a_pair=blocks.flops_a_pair[blocks.comp_group],
            pairs=blocks.comp_pairs,
            q_tokens=blocks.token_length[blocks.comp_q],
            kv_tokens=blocks.token_length[blocks.comp_kv],
        )

    @cached_property
    def sums(self) -> list[Sums]:
        """What devices add up, for each kind of result of the phase."""
        kinds = PHASE_RESULTS[self.phase]
        return [Sums.of(self.blocks, self.comp_device, kind) for kind in kinds]

    def estimate(self, schedule: Schedule) -> Estimate:
        """Time that an answer takes."""
        return self.cost_model.estimate(self, schedule)


class Scheduler(Backend):
    """Orders work and transfers."""

    @abstractmethod
    def schedule(self, problem: SchedulingProblem) -> Schedule:
        """Answer a problem. Pure: equal problems give equal answers."""


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
