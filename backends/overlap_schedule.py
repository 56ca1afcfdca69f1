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

        tried: list[_Candidate] = []
        # Only of the choice so far: schedules of large batches take much memory.
        held: dict[_Choice, Schedule] = {}

        def consider(choice: _Choice) -> None:
            if choice.divisions <= self.most_divisions:
                schedule = _arranged(problem, inputs, work, choice)
                total_s = problem.estimate(schedule).total_s
                tried.append(_Candidate(choice, schedule.num_divisions, total_s))
                if _chosen(tried) == choice:
                    held.clear()
                    held[choice] = schedule

        for count in (1, 6, 12):
            consider(_Choice(divisions=count))
        many = _by_time(tried)[0].divisions == 12
        consider(_Choice(divisions=24 if many else 3))
        for choice in _by_time(tried)[:2]:
            consider(replace(choice, ahead=0.7 if choice.divisions >= 12 else 2.0))
        chosen = _chosen(tried)
        return held[chosen] if chosen in held else _arranged(problem, inputs, work, chosen)


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """One candidate: equal divisions of all work, and how much of one arrives at a step."""

    divisions: int
    ahead: float = 1.0


class _Candidate(NamedTuple):
    """A choice, the divisions of its schedule and its simulated time."""

    choice: _Choice
    num_divisions: int
    total_s: float


def _by_time(tried: list[_Candidate]) -> list[_Choice]:
    return [one.choice for one in sorted(tried, key=lambda each: each.total_s)]


def _chosen(tried: list[_Candidate]) -> _Choice:
    """Of the choices that are as fast as the fastest, but for little, that of fewest divisions."""
    longest_s = _AS_FAST * min(one.total_s for one in tried)
    good = [one for one in tried if one.total_s <= longest_s]
    return min(good, key=lambda one: (one.num_divisions, one.total_s)).choice


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
