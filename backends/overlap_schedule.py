"""Divisions chosen by simulated time: inputs arrive behind the work that covers them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from dcp.backends.overlap_inputs import Inputs
from dcp.checks import check_integer
from dcp.scheduling import Schedule, Scheduler, SchedulingProblem, Transfers


@dataclass(frozen=True, kw_only=True)
class OverlapSchedule(Scheduler):
    """The schedule with the least simulated time among a few, for each phase by itself.

    Each device orders its inputs by the work that they unlock for a second of sending, and lets
    as many arrive at a step as the division before covers: local work covers the first. What is
    tried is how many steps to allow, whether an input that several devices of a node need
    crosses to the node once and is relayed inside, and whether partial results go home as soon
    as they are complete or all at the end.

    Args:
        most_steps: Most steps of input transfers tried, 1 or more.

    Raises:
        SpecError: most_steps below 1.

    Source: list scheduling (Graham 1969) on the dependencies of blocks, inputs and results.
    """

    name: ClassVar[str] = "overlap"
    most_steps: int = 8

    def __post_init__(self) -> None:
        check_integer("most_steps", self.most_steps)

    def schedule(self, problem: SchedulingProblem) -> Schedule:
        """Answer a problem."""
        inputs = Inputs.of(problem)
        counts = [1 << power for power in range(self.most_steps.bit_length())]
        best = min(
            (_candidate(problem, inputs, _Choice(steps=count)) for count in counts), key=_time
        )
        tried = (_candidate(problem, inputs, choice) for choice in _relayed(problem, best.choice))
        best = min([best, *tried], key=_time)
        early = _candidate(problem, inputs, replace(best.choice, results_early=True))
        return min(best, early, key=_time).schedule


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """One candidate."""

    steps: int
    relay: bool = False
    results_early: bool = False


class _Candidate(NamedTuple):
    """A choice carried out, and its simulated time."""

    choice: _Choice
    schedule: Schedule
    total_s: float


def _time(candidate: _Candidate) -> float:
    return candidate.total_s


def _candidate(problem: SchedulingProblem, inputs: Inputs, choice: _Choice) -> _Candidate:
    schedule = _arranged(problem, inputs, choice)
    return _Candidate(choice, schedule, problem.timeline(schedule).total_s)


def _relayed(problem: SchedulingProblem, choice: _Choice) -> list[_Choice]:
    """With relays, which take a step more: the same steps, and twice as many."""
    cluster = problem.cluster
    if cluster.nodes == 1 or cluster.devices_per_node == 1:
        return []
    return [replace(choice, relay=True, steps=steps) for steps in (choice.steps, 2 * choice.steps)]


def _arranged(problem: SchedulingProblem, inputs: Inputs, choice: _Choice) -> Schedule:
    """The schedule of one choice."""
    source, step = inputs.arrivals(choice.steps, relay=choice.relay)
    steps = np.append(step, 0)
    division = np.maximum(steps[inputs.of_query], steps[inputs.of_key])
    target, leave = inputs.departures(division, early=choice.results_early, relay=choice.relay)
    kind, block, group, which, returns = inputs.moves
    device, devices = inputs.device[which], problem.cluster.num_devices
    src = np.where(returns, device, source[which])
    dst = np.where(returns, target[which], device)
    when = np.where(returns, leave[which], step[which])
    order = np.argsort((when * devices + src) * devices + dst, kind="stable")
    return Schedule(
        phase=problem.phase,
        num_divisions=int(division.max(initial=0)) + 1,
        comp_division=division,
        transfers=Transfers(
            kind=kind[order],
            block=block[order],
            group=group[order],
            src=src[order],
            dst=dst[order],
            step=when[order],
        ),
    )
