"""The `dcp` command: help, and its smaller commands."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from command_line import ABSENT, SMALL, run, run_json
from plan_damage import instructions_of, with_items, without

import dcp
from dcp import registry
from dcp.cli.options import read_cluster, read_heads
from dcp.instructions import CommLaunch


def test_the_command_starts_without_torch() -> None:
    code = "import sys, dcp.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "command", ["compare", "plan", "check", "fuzz", "profile", "simulate", "backends"]
)
def test_every_command_has_help(command: str) -> None:
    assert command in run("--help").stdout
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_the_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    pyproject = (Path(dcp.__file__).parents[1] / "pyproject.toml").read_text()

    def version(distribution: str) -> str:
        assert f'name = "{distribution}"' in pyproject
        return "1.2.3"

    monkeypatch.setattr(metadata, "version", version)
    assert dcp.__version__ == "1.2.3"
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, "dcp 1.2.3\n")
    assert run("--version", "no such command").stdout == "dcp 1.2.3\n"


def test_without_an_installed_distribution_there_is_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(distribution: str) -> str:
        raise metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(AttributeError, match="dcp has no __version__: it runs from a checkout"):
        _ = dcp.__version__
    result = run("--version")
    assert (result.exit_code, result.stdout) == (
        0,
        "dcp, run from a checkout that is not installed\n",
    )


def test_help_has_a_short_name() -> None:
    assert run("plan", "-h").stdout == run("plan", "--help").stdout


@pytest.fixture
def plan_file(lengths: Path, tmp_path: Path) -> Path:
    path = tmp_path / "p.plan"
    asked = ("--lengths", lengths, *SMALL, "--mask", "lambda:sink=4,window=32")
    result = run("plan", *asked, "--partitioner", "greedy", "--out", path)
    assert result.exit_code == 0, result.output
    assert f"saved to {path}" in result.stdout.replace("\n", "")
    return path


def test_a_plan_is_saved_and_proven(plan_file: Path) -> None:
    plan = dcp.ExecutionPlan.load(plan_file)
    assert plan.cluster.num_devices == 4
    assert plan.origin.partitioner == "greedy"
    result = run("check", plan_file)
    assert result.exit_code == 0, result.output
    assert "proven (greedy + " in result.stdout
    (found,) = run_json("check", plan_file)
    assert found["proven"]
    assert found["digest"] == plan.digest


def test_the_plan_report_shows_every_figure(lengths: Path) -> None:
    asked = ("plan", "--lengths", lengths, *SMALL, "--baseline", "zigzag")
    found = run_json(*asked)
    assert found["plan"]["baseline"] == "zigzag"
    assert found["file"] is None
    report = dcp.plan(
        dcp.Batch([300, 70, 41, 5]),
        read_heads("8/2", 16, "bfloat16"),
        read_cluster("2x2"),
        block_size=64,
        baseline="zigzag",
    ).report()
    assert found["plan"]["comm_bytes"] == report.comm_bytes
    text = run(*asked).stdout
    for name in (
        "digest",
        "compute imbalance",
        "feasible",
        "planning",
        "lower bound",
        "idle",
        "overlapped comm",
    ):
        assert name in text


def test_what_backward_is_to_keep_can_be_asked_for(lengths: Path) -> None:
    asked = ("plan", "--lengths", lengths, *SMALL, "--baseline", "ring")
    sent = run_json(*asked)["plan"]
    kept = run_json(*asked, "--keep-bytes", "all")["plan"]
    assert sent["kept_bytes"] == 0 < kept["kept_bytes"]
    assert kept["backward_comm_bytes"] < sent["backward_comm_bytes"]
    assert run_json(*asked, "--keep-bytes", kept["kept_bytes"] - 1)["plan"]["kept_bytes"] == 0


def test_check_names_the_fault_and_shows_the_other_plans(plan_file: Path, tmp_path: Path) -> None:
    plan = dcp.ExecutionPlan.load(plan_file)
    damaged, cut_off = tmp_path / "damaged.plan", tmp_path / "cut_off.plan"
    cut_off.write_bytes(plan_file.read_bytes()[:-9])
    rank, index = next(
        (rank, index)
        for rank, index, one in instructions_of(plan, "forward", CommLaunch)
        if len(one.receives)
    )
    with_items(
        plan, rank, "forward", index, lambda items: without(items, 0), field="receives"
    ).save(damaged)
    result = run("check", damaged, plan_file, cut_off, "--json")
    assert result.exit_code == 1
    first, second, third = json.loads(result.stdout)
    assert not first["proven"]
    assert "rank" in first["fault"]
    assert second["proven"]
    assert not third["proven"]
    assert "NOT PROVEN" in run("check", damaged).stdout


def test_check_and_plan_refuse_bad_paths(tmp_path: Path, lengths: Path) -> None:
    assert run("check", tmp_path / "none.plan").exit_code == 2
    result = run("plan", "--lengths", lengths, *SMALL, "--out", tmp_path / "no" / "p.plan")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    asked = ("--baseline", "ring", "--scheduler", "paper")
    assert "brings its own" in run("plan", "--lengths", lengths, *SMALL, *asked).stderr


def test_fuzzing_counts_the_requests_that_hold() -> None:
    found = run_json("fuzz", "--examples", "3")
    assert found == {"held": 3, "fault": None, "request": None}


def test_fuzzing_shows_the_request_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from dcp.verification import fuzz

    request: Any = "a request"
    failed = fuzz.FuzzResult(examples=7, case=request, error=ValueError("wrong"))
    monkeypatch.setattr(fuzz, "fuzz", lambda **_: failed)
    result = run("fuzz", "--examples", "9")
    assert result.exit_code == 1
    assert result.stdout == "ValueError: wrong\nrequest: 'a request'\n7 requests held before it\n"


def test_fuzzing_without_hypothesis_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    result = run("fuzz")
    assert result.exit_code == 2
    assert "dynamic-context-parallel[dev]" in result.stderr


def test_illegal_fuzzing_is_refused() -> None:
    for option, value, message in (
        ("--seconds", "0", "--seconds 0 was given; give more than 0"),
        ("--examples", "0", "--examples 0 was given; give 1 or more"),
        ("--dtype", "int8", "dtype is 'int8'"),
    ):
        result = run("fuzz", option, value)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {message}")


def test_backends_are_listed_with_options_and_what_to_install(
    partitioners: dict[str, str],
) -> None:
    partitioners["absent"] = ABSENT
    partitioners["lost"] = "dcp.no_such_module:Lost"
    found = run_json("backends")
    assert set(found) == set(registry.BUILT_IN)
    listed = {entry["name"]: entry for entry in found["partitioners"]}
    assert listed["greedy"]["available"]
    assert listed["absent"]["reason"] == "run pip install absent"
    assert "No module named 'dcp.no_such_module'" in listed["lost"]["reason"]
    assert listed["lost"]["options"] == {}
    (usp,) = (entry for entry in found["baselines"] if entry["name"] == "usp")
    assert "layout" in usp["options"]
    text = run("backends").stdout
    assert "absent: run pip install absent" in text
    assert "None" not in text, "what the backend chooses has no default to show"
    assert "ulysses_degree," in text
    assert max(map(len, text.splitlines())) <= 80
