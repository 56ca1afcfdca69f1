"""Built-in partitioners and schedulers pass the suites for plug-ins; bad plug-ins fail by name."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from dcp import registry
from dcp.backend import Availability
from dcp.backends.sequential_schedule import SequentialSchedule
from dcp.placement import Assignment, Partitioner, PlacementProblem
from dcp.scheduling import Schedule, Scheduler, SchedulingProblem, Transfers
from dcp.verification.conformance import PartitionerConformance, SchedulerConformance
from dcp.verification.conformance_problems import SAMPLES, Sample


def created(group: str, name: str):
    availability = registry.load(group, name).availability()
    if not availability.available:
        pytest.skip(f"{name}: {availability.reason}")
    return registry.create(group, name)


class TestPartitioners(PartitionerConformance):
    must_be_feasible = True

    @pytest.fixture(params=registry.BUILT_IN["partitioners"])
    def partitioner(self, request: pytest.FixtureRequest) -> Partitioner:
        return created("partitioners", request.param)


class TestSchedulers(SchedulerConformance):
    @pytest.fixture(params=registry.BUILT_IN["schedulers"])
    def scheduler(self, request: pytest.FixtureRequest) -> Scheduler:
        return created("schedulers", request.param)


def sample(name: str) -> Sample:
    return next(one for one in SAMPLES if one.name == name)


@dataclass(frozen=True, kw_only=True)
class BadPartitioner(Partitioner):
    """Round robin with one fault."""

    name: ClassVar[str] = "bad"
    fault: str = "none"

    def place(self, problem: PlacementProblem) -> Assignment:
        devices = problem.cluster.num_devices
        home = np.arange(len(problem.token_tokens)) % devices
        if self.fault == "one home too few":
            return Assignment(home[1:], home[problem.comp_q])
        if self.fault == "a device too many":
            home = home + 1
        if self.fault == "fractional homes":
            home = home / 1.0
        if self.fault == "a bare tuple":
            return home, home[problem.comp_q]  # type: ignore[return-value]
        if self.fault == "homes drawn without a seed":
            home = np.random.permutation(home)
        if self.fault == "homes by hash":
            home = np.array([hash(f"block {block}") % devices for block in range(len(home))])
        if self.fault == "writes into the problem":
            problem.comp_flops[:] += 1
        if self.fault == "needs a largest block":
            home = home * (problem.token_tokens.max() > 0)
        if self.fault == "all on device 0":
            home = home * 0
        return Assignment(home, home[problem.comp_q])


SUITE = PartitionerConformance()


@pytest.mark.parametrize(
    ("check", "fault", "on", "message"),
    [
        (SUITE.test_answers_are_valid_and_within_the_limits, *row)
        for row in (
            ("one home too few", "causal", r"token_home has shape \(9,\).*shape \(10,\)"),
            ("a device too many", "causal", "token_home names devices 1 … 4; legal: 0 … 3"),
            ("fractional homes", "causal", "dtype float64; it must be integers"),
            ("a bare tuple", "causal", "returns a tuple; it must be a .*Assignment"),
            ("needs a largest block", "no sequences", "raises ValueError: zero-size array"),
        )
    ]
    + [
        (SUITE.test_equal_problems_get_equal_answers, "homes drawn without a seed", "causal",
         "a copy asked again gives another answer"),
        (SUITE.test_problems_are_left_alone, "writes into the problem", "causal",
         "writes into the problem's arrays"),
        (SUITE.test_plans_are_proven_and_equal_dense_attention, "one home too few", "causal",
         "token_home has shape"),
    ],
)  # fmt: skip
def test_a_bad_partitioner_fails_by_name(check, fault: str, on: str, message: str) -> None:
    with pytest.raises(AssertionError, match=f"'bad' on '{on}': .*{message}"):
        check(BadPartitioner(fault=fault), sample(on))


def test_a_partitioner_that_depends_on_the_process_fails() -> None:
    with pytest.raises(AssertionError, match="another process gives another answer"):
        SUITE.test_a_fresh_process_gives_the_same_answers(BadPartitioner(fault="homes by hash"))


def test_broken_limits_are_reported_and_fail_where_the_author_says_so() -> None:
    everywhere = BadPartitioner(fault="all on device 0")
    with pytest.raises(pytest.xfail.Exception, match=r"'bad' on 'causal': device 0 holds 72"):
        SUITE.test_answers_are_valid_and_within_the_limits(everywhere, sample("causal"))
    with pytest.raises(AssertionError, match=r"'bad' on 'causal': device 0 holds 72"):
        TestPartitioners().test_answers_are_valid_and_within_the_limits(
            everywhere, sample("causal")
        )


@dataclass(frozen=True, kw_only=True)
class BadScheduler(SequentialSchedule):
    """`sequential` with one fault."""

    name: ClassVar[str] = "bad"
    fault: str = "none"

    def schedule(self, problem: SchedulingProblem) -> Schedule:
        if self.fault == "writes into the problem":
            problem.token_home.sort()
        answer = super().schedule(problem)
        moves = answer.transfers
        if self.fault == "the last transfer lost":
            kept = {name: column[:-1] for name, column in vars(moves).items()}
            return replace(answer, transfers=Transfers(**kept))
        if self.fault == "work before its inputs":
            return replace(answer, comp_division=answer.comp_division * 0)
        if self.fault == "always forward":
            return super().schedule(replace(problem, phase="forward"))
        if self.fault == "divisions drawn without a seed":
            later = np.random.permutation(len(answer.comp_division)) % 2
            return replace(answer, num_divisions=4, comp_division=answer.comp_division + later)
        return answer


@pytest.mark.parametrize(
    ("check", "fault", "message"),
    [
        ("schedules_can_be_executed", "the last transfer lost", "scattered, forward: .*not send"),
        ("schedules_can_be_executed", "work before its inputs", "has not received Q of block"),
        ("schedules_can_be_executed", "always forward", "backward: the schedule is for 'forward'"),
        ("equal_problems_get_equal_schedules", "divisions drawn without a seed", "another answer"),
        ("problems_are_left_alone", "writes into the problem", "writes into the problem's arrays"),
        ("plans_are_proven_and_equal_dense_attention", "the last transfer lost", "not send on"),
    ],
)
def test_a_bad_scheduler_fails_by_name(check: str, fault: str, message: str) -> None:
    test = getattr(SchedulerConformance(), f"test_{check}")
    with pytest.raises(AssertionError, match=f"'bad' on 'causal'.*{message}"):
        test(BadScheduler(fault=fault), sample("causal"))


def test_a_wrong_number_is_found_though_the_plan_is_sound(monkeypatch) -> None:
    monkeypatch.setattr("dcp.verification.local_run.check_within_budget", _off)
    with pytest.raises(
        AssertionError, match="'sequential' on 'causal': AssertionError: out is off"
    ):
        SchedulerConformance().test_plans_are_proven_and_equal_dense_attention(
            SequentialSchedule(), sample("causal")
        )


def _off(*_):
    raise AssertionError("out is off by 1")


class Mutable(Partitioner):
    """A partitioner that is no dataclass."""

    name = "mutable"

    def place(self, problem: PlacementProblem) -> Assignment:
        raise AssertionError("never asked")


@dataclass
class Changeable(Mutable):
    """A dataclass that can be changed."""

    passes: int = 1


@dataclass(frozen=True)
class Positional(Mutable):
    """Its option may be given by position."""

    passes: int = 1


@dataclass(frozen=True, kw_only=True)
class Stateful(Mutable):
    """It keeps what no other process can have."""

    rule: Any = field(default_factory=lambda: lambda block: block)


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (SequentialSchedule(), "SequentialSchedule is no Partitioner"),
        (Mutable(), "'mutable' is no dataclass"),
        (Changeable(), "'mutable' can be changed"),
        (Positional(), "'mutable' has positional fields"),
    ],
)
def test_plugins_are_frozen_keyword_only_dataclasses(plugin: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        SUITE.test_it_is_a_frozen_keyword_only_dataclass_with_a_name(plugin)


def test_a_plugin_that_cannot_be_sent_to_a_process_fails() -> None:
    with pytest.raises(AssertionError, match=r"'mutable' cannot be pickled .*lambda"):
        SUITE.test_it_survives_pickling(Stateful())


HEAVY_PLUGIN = """
import torch
from dcp.placement import Partitioner

class Heavy(Partitioner):
    name = "heavy"

    def place(self, problem):
        raise AssertionError("never asked")
"""


def test_a_plugin_that_loads_torch_when_it_is_listed_fails(tmp_path, monkeypatch) -> None:
    (tmp_path / "heavy_plugin.py").write_text(HEAVY_PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    heavy = importlib.import_module("heavy_plugin").Heavy()
    with pytest.raises(AssertionError, match=r"availability\(\) loads torch.*function that uses"):
        SUITE.test_availability_is_told_without_importing_anything_heavy(heavy)


def test_a_plugin_that_cannot_run_here_says_why() -> None:
    class Absent(Mutable):
        @classmethod
        def availability(cls):
            return Availability(False, "install example[absent]")

    with pytest.raises(AssertionError, match=r"cannot run here: install example\[absent\]"):
        SUITE.test_availability_is_told_without_importing_anything_heavy(Absent())


def test_a_suite_without_its_fixture_says_so(tmp_path) -> None:
    (tmp_path / "test_empty.py").write_text(
        "from dcp.verification.conformance import SchedulerConformance\n"
        "class TestEmpty(SchedulerConformance):\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 1
    assert "TestEmpty supplies no fixture `scheduler`" in done.stdout


def test_proving_plans_needs_no_pytest() -> None:
    code = "import sys, dcp.verification; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
