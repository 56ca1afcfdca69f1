"""`dcp profile`: runs, exports and bad requests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from clock_ranks import AHEAD_NS, measure
from timelines import (
    check_chrome_trace,
    export_of_processes,
    plan_of,
)
from typer.testing import CliRunner, Result

from dcp.cli import app
from dcp.cli.local_processes import local_processes
from dcp.profiling.decomposition import PARTS


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "80"})


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    file = tmp_path / "a.plan"
    plan_of().save(file)
    return file


@pytest.mark.distributed
def test_the_command_runs_a_plan_and_takes_it_apart(plan_file: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    asked = ("profile", plan_file, "--iterations", 2, "--trace", trace, "--against", "simulation")
    result = run(*asked, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    for phase in ("forward", "backward"):
        assert found["measured"][phase]["runs"] == 2
        ranks = found["measured"][phase]["ranks"]
        assert len(ranks) == 2
        for parts in ranks:
            assert sum(parts[name] for name in PARTS) == pytest.approx(ranks[0]["total_s"])
            assert min(parts.values()) >= -1e-12
    kinds = {(one["phase"], one["kind"]) for one in found["against_simulation"]}
    assert {("forward", "attention"), ("backward", "wait"), ("backward", "phase")} <= kinds
    slices = check_chrome_trace(json.loads(trace.read_text()), 2)
    assert {one["args"]["run"] for one in slices} == {0, 1}
    text = run("profile", plan_file, "--iterations", 1, "--trace", trace).stdout
    *lines, last = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("exposed" in line for line in lines)
    assert last.startswith(f"trace written to {trace}")


@pytest.mark.distributed
def test_clocks_of_ranks_are_brought_together(tmp_path: Path) -> None:
    with local_processes(measure, 3, str(tmp_path / "rendezvous"), str(tmp_path)) as context:
        while not context.join():
            pass
    for rank in range(3):
        offset = int((tmp_path / str(rank)).read_text())
        assert offset == pytest.approx(rank * AHEAD_NS, abs=100e6)  # on a busy machine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--iterations", 0), "give 1 or more"),
        (("--against", "hope"), "legal: simulation"),
        (("--kernel", "magic"), "error: no kernel is named 'magic'; there are: torch"),
        (("--tokens", 100), "one or the other"),
        (("--nsys", "--export", "a.sqlite"), "leave --nsys out"),
        (("--kernel", "torch", "--export", "a.sqlite"), "leave --kernel out"),
        (("--iterations", 5, "--export", "a.sqlite"), "leave --iterations out"),
    ],
)
def test_illegal_requests_are_refused(
    plan_file: Path, arguments: tuple[object, ...], message: str
) -> None:
    result = run("profile", plan_file, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_export_without_its_plan_is_refused() -> None:
    result = run("profile", "--export", "a.sqlite")
    assert result.exit_code == 2
    assert "give the plan file that ran" in result.stderr
    assert "leave" not in result.stderr


def test_more_ranks_than_processes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "many.plan"
    plan_of(17).save(file)
    result = run("profile", file)
    assert result.exit_code == 2
    assert "at most 16 devices" in result.stderr


def test_an_export_is_read_instead_of_running(plan_file: Path, tmp_path: Path) -> None:
    export = export_of_processes(plan_of()).write(tmp_path / "a.sqlite")
    trace = tmp_path / "trace.json"
    result = run("profile", plan_file, "--export", export, "--trace", trace, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["measured"]["forward"]["runs"] == 2
    check_chrome_trace(json.loads(trace.read_text()), 2)


def test_without_nsys_the_command_says_so(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("profile", plan_file, "--nsys", "--trace", tmp_path / "trace.json")
    assert result.exit_code == 2
    assert "`nsys` in PATH" in result.stderr


FAKE_NVTX = """
import atexit, json, os, threading, time
from types import SimpleNamespace

class Domain:
    def __init__(self):
        self.open, self.done = [], []
        atexit.register(self.write)
    def get_event_attributes(self, message):
        return SimpleNamespace(message=message)
    def push_range(self, attributes):
        self.open.append((attributes.message, time.perf_counter_ns()))
    def pop_range(self):
        self.done.append((*self.open.pop(), time.perf_counter_ns()))
    def write(self):
        with open(os.path.join(os.environ["SEEN"], f"{os.getpid()}.json"), "w") as file:
            json.dump(self.done, file)

domain = Domain()
def get_domain(name):
    assert name == "dcp"
    return domain
"""
FAKE_NSYS = """\
#!{python}
import json, os, pathlib, subprocess, sys
sys.path.insert(0, {tests!r})
from nsight_exports import Export
assert sys.argv[1] == "profile" and "--trace=nvtx,cuda" in sys.argv
assert "--export=sqlite" in sys.argv
(output,) = (one.partition("=")[2] for one in sys.argv if one.startswith("--output="))
command = sys.argv[max(i for i, one in enumerate(sys.argv) if one.startswith("--")) + 1:]
path = os.pathsep.join([{nvtx!r}, os.environ["PYTHONPATH"]])
done = subprocess.run(command, env=dict(os.environ, PYTHONPATH=path))
export = Export(digest="")
for number, file in enumerate(pathlib.Path(os.environ["SEEN"]).glob("*.json")):
    for text, begin, end in json.loads(file.read_text()):
        export.ranges.append((number, begin, end, text))
export.write(pathlib.Path(output + ".sqlite"))
sys.exit(done.returncode)
"""


@pytest.mark.distributed
def test_a_run_under_nsys_is_read_from_its_export(
    plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for nsys and nvtx, which keep to how they are called and what they write."""
    tools, seen = tmp_path / "tools", tmp_path / "seen"
    (tools / "nvtx").mkdir(parents=True)
    seen.mkdir()
    (tools / "nvtx" / "__init__.py").write_text(FAKE_NVTX)
    nsys = tools / "nsys"
    nsys.write_text(
        FAKE_NSYS.format(python=sys.executable, tests=str(Path(__file__).parent), nvtx=str(tools))
    )
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tools), os.environ["PATH"]]))
    monkeypatch.setenv("SEEN", str(seen))
    asked = ("profile", plan_file, "--nsys", "--iterations", 2)
    result = run(*asked, "--trace", tmp_path / "trace.json", "--json")
    assert result.exit_code == 0, result.output
    for found in json.loads(result.stdout)["measured"].values():
        assert found["runs"] == 2
        for parts in found["ranks"]:
            assert parts["attention_s"] + parts["overlapped_comm_s"] > 0
            assert sum(parts[name] for name in PARTS) == pytest.approx(found["mean"]["total_s"])
