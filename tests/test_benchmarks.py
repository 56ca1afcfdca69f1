"""What the benchmark scripts share: tidy CSV, and two commits in one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def tidy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return __import__("tidy")


def test_rows_hold_parameters_quantiles_and_surroundings(tidy: Any, tmp_path: Path) -> None:
    samples = [float(value) for value in range(11)]
    kinds = ({"mask": "causal"}, {"mask": "lambda", "sink": 64})
    made = [
        tidy.Measurement(name="cut", parameters=kind, samples=samples, unit="s") for kind in kinds
    ]
    tidy.write_csv(tmp_path / "out.csv", made, seed=7)
    first, second = tidy.read_csv(tmp_path / "out.csv")
    assert set(first) == {"name", "mask", "sink", *tidy.VALUES, *tidy.SURROUNDINGS}
    assert (first["p20"], first["p50"], first["p80"]) == ("2.0", "5.0", "8.0")
    assert (first["unit"], first["samples"], first["seed"]) == ("s", "11", "7")
    assert all(first[name] for name in tidy.SURROUNDINGS)
    assert tidy.conditions(first) == (("name", "cut"), ("mask", "causal"), ("sink", ""))
    assert tidy.conditions(second) == (("name", "cut"), ("mask", "lambda"), ("sink", "64"))


_SCRIPT = """
import sys, dcp
with open(sys.argv[sys.argv.index("--csv") + 1], "w") as file:
    file.write(f"name,mode,p20,p50,p80\\nspeed,{sys.argv[1]},0,{dcp.SECONDS},0\\n")
"""


@pytest.fixture
def two_commits(tmp_path: Path) -> Path:
    """A repository whose library halves its time after the first commit."""
    identity = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    library = tmp_path / "dcp" / "__init__.py"
    library.parent.mkdir()
    for seconds in (2.0, 1.0):
        library.write_text(f"SECONDS = {seconds}\n")
        subprocess.run(["git", "-C", tmp_path, "add", "dcp"], check=True)
        command = ["git", "-C", tmp_path, *identity, "commit", "-q", "-m", f"{seconds}"]
        subprocess.run(command, check=True)
    return tmp_path


def test_two_commits_are_compared_by_a_script_that_the_base_lacks(two_commits: Path) -> None:
    script = two_commits / "benchmarks" / "new.py"
    script.parent.mkdir()
    script.write_text(_SCRIPT)
    command = [sys.executable, BENCHMARKS / "compare_commits.py", script, "--base", "HEAD~1"]
    done = subprocess.run(
        [*command, "--rounds", "2", "--", "quick"],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = (line for line in done.stdout.splitlines() if "speed: quick" in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["2", "1", "0.500", "0.500", "0.500"]
    listed = ["git", "-C", two_commits, "worktree", "list"]
    trees = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(trees) == 1
