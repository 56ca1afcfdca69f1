"""Conformance suites for partitioners and schedulers: a plug-in proven by supplying one fixture.

In a test module of the plug-in's own:

    import pytest
    from dcp.verification.conformance import PartitionerConformance

    class TestMine(PartitionerConformance):
        must_be_feasible = True

        @pytest.fixture
        def partitioner(self):
            return Mine()

pytest then runs every check below on it; what fails names the plug-in, the request and the
reason. Checks on real tensors need torch.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pytest

from dcp.backend import Availability, Backend
from dcp.errors import PlacementError, ScheduleError
from dcp.placement import Assignment, Partitioner, Placement, evaluate
from dcp.schedule_validation import validate_schedule
from dcp.scheduling import PHASES, Schedule, Scheduler, SchedulingProblem
from dcp.verification.conformance_problems import EXECUTED, SAMPLES, Sample
from dcp.verification.fresh_process import (
    answers,
    call_in_fresh_process,
    heavy_modules_of_availability,
)
from dcp.verification.plan_checker import check_plan

_ACROSS_PROCESSES = ("causal", "mixed masks", "grouped heads")
_EFFORTS = ((1, 1.0), (2**32, 0.1), (0, 2.0))

_each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)
_each_executed_sample = pytest.mark.parametrize("sample", EXECUTED, ids=str)


class _PluginConformance:
    """What is asked of every plug-in, whatever its kind."""

    interface: ClassVar[type[Backend]]

    @pytest.fixture
    def plugin(self) -> Backend:
        """The plug-in, whatever its kind."""
        raise NotImplementedError

    def test_it_is_a_frozen_keyword_only_dataclass_with_a_name(self, plugin: Backend) -> None:
        """Its options are its fields: `name:option=value` sets them, and nothing changes them."""
        kind = type(plugin)
        if not isinstance(plugin, self.interface):
            raise AssertionError(f"{kind.__name__} is no {self.interface.__name__}")
        if not (isinstance(plugin.name, str) and plugin.name):
            raise AssertionError(f"{kind.__name__}.name is {plugin.name!r}; give it a name")
        if not dataclasses.is_dataclass(kind):
            raise AssertionError(f"{plugin.name!r} is no dataclass, so it can have no options")
        if not kind.__dataclass_params__.frozen:
            raise AssertionError(f"{plugin.name!r} can be changed; write dataclass(frozen=True)")
        if not all(field.kw_only for field in dataclasses.fields(kind)):
            raise AssertionError(f"{plugin.name!r} has positional fields; write kw_only=True")

    def test_it_survives_pickling(self, plugin: Backend) -> None:
        """Other processes get it as a copy."""
        try:
            copy = pickle.loads(pickle.dumps(plugin))
        except Exception as error:
            raise AssertionError(
                f"{plugin.name!r} cannot be pickled ({error}); define its class at module level "
                "and keep only plain values in its fields"
            ) from error
        if copy != plugin:
            raise AssertionError(f"{plugin.name!r} comes back from pickling as {copy!r}")

    def test_availability_is_told_without_importing_anything_heavy(self, plugin: Backend) -> None:
        """`dcp backends` asks every plug-in; packages are imported where they are used."""
        told = plugin.availability()
        if not isinstance(told, Availability):
            raise AssertionError(f"availability() of {plugin.name!r} returns {told!r}")
        if not told.available:
            raise AssertionError(f"{plugin.name!r} cannot run here: {told.reason}")
        heavy = call_in_fresh_process(heavy_modules_of_availability, type(plugin))
        if heavy:
            raise AssertionError(
                f"importing {plugin.name!r} and asking its availability() loads "
                f"{', '.join(heavy)}; import them in the function that uses them"
            )


class PartitionerConformance(_PluginConformance):
    """Proves a partitioner; subclass it and supply the fixture `partitioner`.

    Attributes:
        must_be_feasible: Whether an answer outside the limits fails. Otherwise it is reported as
            an expected failure with the limit that does not hold, so pytest's summary counts them.
    """

    interface = Partitioner
    must_be_feasible: ClassVar[bool] = False

    @pytest.fixture
    def partitioner(self) -> Partitioner:
        """The partitioner to prove."""
        raise NotImplementedError(f"{type(self).__name__} supplies no fixture `partitioner`")

    @pytest.fixture
    def plugin(self, partitioner: Partitioner) -> Partitioner:
        """The partitioner."""
        return partitioner

    @_each_sample
    def test_answers_are_valid_and_within_the_limits(
        self, partitioner: Partitioner, sample: Sample
    ) -> None:
        """One device that exists for every block; whether limits may break, the author says."""
        placement = _evaluated(partitioner, sample, _place(partitioner, sample))
        if placement.feasible:
            return
        broken = f"{_who(partitioner, sample)}: {'; '.join(placement.violations)}"
        if self.must_be_feasible:
            raise AssertionError(broken)
        pytest.xfail(broken)

    @_each_sample
    def test_equal_problems_get_equal_answers(
        self, partitioner: Partitioner, sample: Sample
    ) -> None:
        """Also from a copy of it, and whatever state global random generators are in."""
        first = _place(partitioner, sample)
        copy = pickle.loads(pickle.dumps(partitioner))
        with _other_random_state():
            second = _place(copy, sample)
        _assert_equal(_who(partitioner, sample), first, second, "a copy asked again")

    def test_a_fresh_process_gives_the_same_answers(self, partitioner: Partitioner) -> None:
        """Ranks that plan for themselves have to agree."""
        problems = {name: _sample(name).placement_problem() for name in _ACROSS_PROCESSES}
        others = call_in_fresh_process(answers, partitioner.place, problems)
        for name, problem in problems.items():
            who = _who(partitioner, _sample(name))
            _assert_equal(who, partitioner.place(problem), others[name], "another process")

    @pytest.mark.parametrize(("seed", "budget"), _EFFORTS)
    def test_every_seed_and_budget_is_served_and_repeats(
        self, partitioner: Partitioner, seed: int, budget: float
    ) -> None:
        """A seed may change the answer; the same seed gives the same one."""
        sample, options = _sample("mixed masks"), {"seed": seed, "budget": budget}
        first, second = (_place(partitioner, sample, **options) for _ in range(2))
        _evaluated(partitioner, sample, first)
        _assert_equal(_who(partitioner, sample), first, second, f"again with {options}")

    @_each_sample
    def test_problems_are_left_alone(self, partitioner: Partitioner, sample: Sample) -> None:
        """Their arrays belong to the planner, which goes on using them."""
        problem = sample.placement_problem()
        _write_protect(problem)
        _called(partitioner, sample, partitioner.place, problem)

    @_each_executed_sample
    def test_plans_are_proven_and_equal_dense_attention(
        self, partitioner: Partitioner, sample: Sample
    ) -> None:
        """`check_plan` proves the plan; outputs and gradients match the float64 oracle."""
        _check_plan_of(partitioner, sample, partitioner, "sequential")


class SchedulerConformance(_PluginConformance):
    """Proves a scheduler; subclass it and supply the fixture `scheduler`."""

    interface = Scheduler

    @pytest.fixture
    def scheduler(self) -> Scheduler:
        """The scheduler to prove."""
        raise NotImplementedError(f"{type(self).__name__} supplies no fixture `scheduler`")

    @pytest.fixture
    def plugin(self, scheduler: Scheduler) -> Scheduler:
        """The scheduler."""
        return scheduler

    @_each_sample
    def test_schedules_can_be_executed(self, scheduler: Scheduler, sample: Sample) -> None:
        """By the rules of `dcp.scheduling`, for placements of every kind, in both phases."""
        for who, problem in _scheduling_problems(scheduler, sample):
            schedule = _scheduled(scheduler, sample, problem)
            if schedule.phase != problem.phase:
                raise AssertionError(f"{who}: the schedule is for {schedule.phase!r}")
            try:
                validate_schedule(
                    problem.blocks,
                    problem.token_home,
                    problem.comp_device,
                    problem.cluster.num_devices,
                    schedule,
                )
            except ScheduleError as error:
                raise AssertionError(f"{who}: the schedule cannot be executed: {error}") from error

    @_each_sample
    def test_equal_problems_get_equal_schedules(self, scheduler: Scheduler, sample: Sample) -> None:
        """Also from a copy of it, and whatever state global random generators are in."""
        copy = pickle.loads(pickle.dumps(scheduler))
        for who, problem in _scheduling_problems(scheduler, sample):
            first = _scheduled(scheduler, sample, problem)
            with _other_random_state():
                second = _scheduled(copy, sample, problem)
            _assert_equal(who, _arrays(first), _arrays(second), "a copy asked again")

    def test_a_fresh_process_gives_the_same_schedules(self, scheduler: Scheduler) -> None:
        """Ranks that plan for themselves have to agree."""
        problems = {
            who: problem
            for name in _ACROSS_PROCESSES
            for who, problem in _scheduling_problems(scheduler, _sample(name))
        }
        others = call_in_fresh_process(answers, scheduler.schedule, problems)
        for who, problem in problems.items():
            mine, other = _arrays(scheduler.schedule(problem)), _arrays(others[who])
            _assert_equal(who, mine, other, "another process")

    @_each_sample
    def test_problems_are_left_alone(self, scheduler: Scheduler, sample: Sample) -> None:
        """Their arrays belong to the planner, which goes on using them."""
        for _, problem in _scheduling_problems(scheduler, sample):
            _write_protect(problem)
            _called(scheduler, sample, scheduler.schedule, problem)

    @_each_executed_sample
    def test_plans_are_proven_and_equal_dense_attention(
        self, scheduler: Scheduler, sample: Sample
    ) -> None:
        """`check_plan` proves the plans; outputs and gradients match the float64 oracle."""
        from dcp.verification.any_placement import AnyPlacement

        for seed in (1, 2):
            _check_plan_of(scheduler, sample, AnyPlacement(seed=seed), scheduler)


def _sample(name: str) -> Sample:
    return next(sample for sample in SAMPLES if sample.name == name)


def _who(plugin: Backend, sample: Sample) -> str:
    return f"{plugin.name!r} on {sample.name!r}"


def _called(plugin: Backend, sample: Sample, method: Callable[[Any], Any], problem: Any) -> Any:
    try:
        return method(problem)
    except Exception as error:
        reason = f"raises {type(error).__name__}: {error}"
        if isinstance(error, ValueError) and "read-only" in str(error):
            reason = f"writes into the problem's arrays, which it has to copy first ({error})"
        raise AssertionError(f"{_who(plugin, sample)}: {reason}") from error


def _place(partitioner: Partitioner, sample: Sample, **options: Any) -> Assignment:
    problem = sample.placement_problem(**options)
    answer = _called(partitioner, sample, partitioner.place, problem)
    if not isinstance(answer, Assignment):
        raise AssertionError(
            f"{_who(partitioner, sample)}: place() returns a {type(answer).__name__}; "
            "it must be a dcp.placement.Assignment"
        )
    return answer


def _evaluated(partitioner: Partitioner, sample: Sample, answer: Assignment) -> Placement:
    try:
        return evaluate(sample.placement_problem(), answer)
    except PlacementError as error:
        raise AssertionError(f"{_who(partitioner, sample)}: {error}") from error


def _scheduling_problems(
    scheduler: Scheduler, sample: Sample
) -> Iterator[tuple[str, SchedulingProblem]]:
    """Both phases of every placement, each with words for messages."""
    for name, placed in sample.placements():
        for phase in PHASES:
            who = f"{_who(scheduler, sample)}, {name}, {phase}"
            yield who, sample.scheduling_problem(placed, phase)


def _scheduled(scheduler: Scheduler, sample: Sample, problem: SchedulingProblem) -> Schedule:
    schedule = _called(scheduler, sample, scheduler.schedule, problem)
    if not isinstance(schedule, Schedule):
        raise AssertionError(
            f"{_who(scheduler, sample)}: schedule() returns a {type(schedule).__name__}; "
            "it must be a dcp.scheduling.Schedule"
        )
    return schedule


def _arrays(schedule: Schedule) -> tuple[Any, ...]:
    moves = vars(schedule.transfers).values()
    return (np.array(schedule.num_divisions), schedule.comp_division, *moves)


def _assert_equal(who: str, first: Any, second: Any, whose: str) -> None:
    if not all(np.array_equal(one, other) for one, other in zip(first, second, strict=True)):
        raise AssertionError(f"{who}: {whose} gives another answer; equal problems need equal ones")


def _check_plan_of(
    plugin: Backend, sample: Sample, partitioner: Partitioner, scheduler: str | Scheduler
) -> None:
    from dcp.verification.local_run import check_numbers

    try:
        plan = sample.plan(partitioner, scheduler)
        check_plan(plan)
        check_numbers(sample.batch, plan)
    except Exception as error:
        who = _who(plugin, sample)
        raise AssertionError(f"{who}: {type(error).__name__}: {error}") from error


@contextmanager
def _other_random_state() -> Iterator[None]:
    """Within it, numpy's and Python's global generators stand elsewhere."""
    states = random.getstate(), np.random.get_state()
    random.seed(314159)
    np.random.seed(314159)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _write_protect(problem: Any) -> None:
    """Make every array of a problem read-only, and those that follow from them."""
    for name in dir(type(problem)):
        if isinstance(getattr(type(problem), name), cached_property):
            getattr(problem, name)
    for value in vars(problem).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
        elif dataclasses.is_dataclass(value):
            _write_protect(value)
