"""Backends are found by name, configured by options, and other packages add theirs."""

from importlib.metadata import EntryPoint

import pytest

from dcp import registry
from dcp.backend import Availability
from dcp.errors import MissingPackageError, SpecError, UnknownBackendError
from dcp.scheduling import Scheduler


class Absent(Scheduler):
    """A scheduler whose package is not there."""

    name = "absent"

    @classmethod
    def availability(cls):
        return Availability(False, "install example[absent]")

    def schedule(self, problem):
        raise AssertionError("never asked")


@pytest.fixture
def plugins(monkeypatch):
    """Entry points as installed packages would declare them."""
    points = []
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [p for p in points if p.group == group]
    )
    registry._plugins.cache_clear()
    yield points
    registry._plugins.cache_clear()


def test_options_behind_the_name_configure_a_backend():
    assert registry.create("schedulers", "paper:divisions=7").divisions == 7
    assert registry.create("schedulers", "paper").divisions == 4


def test_an_unknown_name_lists_the_names_that_exist():
    with pytest.raises(
        UnknownBackendError, match=r"no scheduler is named 'magic'.*paper, overlap, sequential"
    ):
        registry.create("schedulers", "magic")


@pytest.mark.parametrize(
    ("group", "name", "kind"),
    [
        ("partitioners", "ring", "baseline"),
        ("schedulers", "usp", "baseline"),
        ("baselines", "greedy", "partitioner"),
        ("baselines", "overlap", "scheduler"),
        ("partitioners", "overlap", "scheduler"),
    ],
)
def test_a_name_of_another_group_says_how_to_ask_for_it(group, name, kind):
    message = f"'{name}' is a {kind}: ask for {kind}=\"{name}\" or --{kind} {name}$"
    with pytest.raises(UnknownBackendError, match=message):
        registry.create(group, name)


def test_of_a_name_of_no_group_only_the_names_that_exist_are_listed():
    with pytest.raises(UnknownBackendError) as refused:
        registry.create("partitioners", "magic")
    assert "ask for" not in str(refused.value)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("paper:speed=3", "no option 'speed'; legal: divisions"),
        ("paper:divisions", "write name:option=value"),
        ("paper:divisions=many", "divisions"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(request_, message):
    with pytest.raises(SpecError, match=message):
        registry.create("schedulers", request_)


def test_another_package_adds_a_backend_by_an_entry_point(plugins):
    plugins.append(
        EntryPoint(
            "theirs", "dcp.backends.sequential_schedule:SequentialSchedule", "dcp.schedulers"
        )
    )
    assert "theirs" in registry.names("schedulers")
    assert registry.create("schedulers", "theirs").name == "sequential"


def test_a_backend_without_its_package_says_what_to_install(plugins):
    plugins.append(EntryPoint("absent", f"{__name__}:Absent", "dcp.schedulers"))
    with pytest.raises(MissingPackageError, match=r"install example\[absent\]"):
        registry.create("schedulers", "absent")


def test_a_plugin_that_fails_to_load_is_listed_with_the_reason_and_hides_no_other(plugins):
    plugins.append(EntryPoint("broken", "no.such.module:Thing", "dcp.schedulers"))
    listed = {entry.name: entry.availability for entry in registry.entries("schedulers")}
    assert not listed["broken"].available
    assert "no.such.module" in listed["broken"].reason or "No module" in listed["broken"].reason
    assert listed["sequential"].available


def test_a_plugin_cannot_replace_a_built_in(plugins):
    plugins.append(EntryPoint("paper", f"{__name__}:Absent", "dcp.schedulers"))
    assert registry.create("schedulers", "paper").name == "paper"
