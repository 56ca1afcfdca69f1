"""Divisions chosen by simulated time: inputs arrive behind the work that covers them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from dcp.backends.overlap_inputs import Inputs
from dcp.backends.overlap_work import DeviceWork
from dcp.checks import check_integer
from dcp.scheduling import Schedule, Scheduler, SchedulingProblem, Transfers

# Simulated time does not know all that a division costs; for less than this they are not worth it.
_AS_FAST = 1.01


@dataclass(frozen=True, kw_only=True)
class OverlapSchedule(Scheduler):
    """The schedule with the least simulated time among a few, for each phase by itself.

    All devices are given divisions of one length, so that none keeps others waiting for what it
    is to send. Each device lets its inputs arrive in the order of the work that they unlock for
    a second of sending, as many at a step as a division covers, and no home sends more than that
    at a step. Work whose result goes to another device is done as soon as it can be, and what
    stays at home fills the rest: it covers the results on their way. An input that several
    devices of a node need crosses to the node once and is relayed inside, and results of a node
    are added up before they cross.

    What is tried is how many divisions, and whether less than fits arrives at a step, so that no
    queues form, or more, where sending takes longer than computing anyway.

    Args:
        most_divisions: Most divisions tried, 1 or more; a device may need a few more for results
            and relays on their way.

    Raises:
        SpecError: most_divisions below 1.

    Source: list scheduling (Graham 1969) on the dependencies of blocks, inputs and results.
    """

    name: ClassVar[str] = "overlap"
    most_divisions: int = 24

    def __post_init__(self) -> None:
        check_integer("most_divisions", self.most_divisions)

    def schedule(self, problem: SchedulingProblem) -> Schedule:
        """Answer a problem."""
        inputs = Inputs.of(problem)
        work = DeviceWork.of(problem, inputs)

        def candidates(choices: list[_Choice]) -> list[_Candidate]:
            fitting = [each for each in choices if each.divisions <= self.most_divisions]
            return [_candidate(problem, inputs, work, choice) for choice in fitting]

        tried = candidates([_Choice(divisions=count) for count in (1, 6, 12)])
        many = min(tried, key=_time).choice.divisions == 12
        tried += candidates([_Choice(divisions=24 if many else 3)])
        best_two = sorted(tried, key=_time)[:2]
        tried += candidates(
            [
                replace(each.choice, ahead=0.7 if each.choice.divisions >= 12 else 2.0)
                for each in best_two
            ]
        )
        return _simplest(tried).schedule


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """One candidate: equal divisions of all work, and how much of one arrives at a step."""

    divisions: int
    ahead: float = 1.0


class _Candidate(NamedTuple):
    """A choice carried out, and its simulated time."""

    choice: _Choice
    schedule: Schedule
    total_s: float


def _time(candidate: _Candidate) -> float:
    return candidate.total_s


def _simplest(tried: list[_Candidate]) -> _Candidate:
    """The one of fewest divisions among those that are as fast as the fastest, but for little."""
    enough_s = _AS_FAST * min(map(_time, tried))
    fast = [candidate for candidate in tried if candidate.total_s <= enough_s]
    return min(fast, key=lambda candidate: (candidate.schedule.num_divisions, candidate.total_s))


def _candidate(
    problem: SchedulingProblem, inputs: Inputs, work: DeviceWork, choice: _Choice
) -> _Candidate:
    schedule = _arranged(problem, inputs, work, choice)
    return _Candidate(choice, schedule, problem.timeline(schedule).total_s)


def _arranged(
    problem: SchedulingProblem, inputs: Inputs, work: DeviceWork, choice: _Choice
) -> Schedule:
    """The schedule of one choice."""
    division_s = work.longest_s / choice.divisions
    step = inputs.arrivals(choice.divisions, choice.ahead * division_s)
    division = work.divisions(step, division_s)
    target, leave = inputs.departures(division)
    kind, block, group, which, returns = inputs.moves
    device, devices = inputs.device[which], problem.cluster.num_devices
    src = np.where(returns, device, inputs.source[which])
    dst = np.where(returns, target[which], device)
    when = np.where(returns, leave[which], step[which])
    moves = Transfers(kind=kind, block=block, group=group, src=src, dst=dst, step=when)
    order = np.argsort((when * devices + src) * devices + dst, kind="stable")
    return Schedule(
        phase=problem.phase,
        num_divisions=int(division.max(initial=0)) + 1,
        comp_division=division,
        transfers=moves.chosen(order),
    )
