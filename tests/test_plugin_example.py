"""The example plug-in, installed as its users would: found, planned with and proven."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "plugin"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed"),
]

PLAN = """
import dcp, sys
plan = dcp.plan(
    dcp.Batch([300, 120, 40, 7]),
    dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16),
    dcp.Cluster(nodes=2, devices_per_node=2),
    block_size=32,
    partitioner=sys.argv[1],
    scheduler="local_first",
)
dcp.verification.check_plan(plan)
print(plan.origin)
"""


class Environment:
    """A Python that sees this checkout and a folder of installed packages."""

    def __init__(self, *folders: Path) -> None:
        paths = [*map(str, folders), str(ROOT)]
        self._variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def backends(self, cwd: Path) -> tuple[dict[str, dict[str, Any]], str]:
        """Entries of `dcp backends --json` by name, and what it wrote to stderr."""
        done = self.run("-c", "from dcp.cli import app; app()", "backends", "--json", cwd=cwd)
        assert done.returncode == 0, done.stderr
        groups = json.loads(done.stdout).values()
        return {entry["name"]: entry for group in groups for entry in group}, done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return copy


@pytest.fixture(scope="module")
def site(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example is installed into."""
    target = tmp_path_factory.mktemp("site")
    pip = ("-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--target")
    done = Environment().run(*pip, str(target), str(source), cwd=source)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder with an installed package whose module is gone, and one that takes a name."""
    for package, points in {
        "broken_plugin": "[dcp.partitioners]\nbroken = no_such_module:Gone\n",
        "other_plugin": "[dcp.schedulers]\nsequential = other_plugin:Mine\n",
    }.items():
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
    return tmp_path


def test_an_installed_plugin_is_listed_with_its_package(site: Path, tmp_path: Path) -> None:
    listed, _ = Environment(site).backends(tmp_path)
    for name in ("emptiest", "local_first"):
        assert listed[name]["available"]
        assert listed[name]["provider"] == "dcp-example-plugin"
    assert listed["greedy"]["provider"] == "dcp"


def test_it_plans_by_name(site: Path, tmp_path: Path) -> None:
    done = Environment(site).run("-c", PLAN, "emptiest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "emptiest" in done.stdout
    assert "local_first" in done.stdout


def test_it_passes_its_own_tests_which_are_the_conformance_suites(site: Path, source: Path) -> None:
    done = Environment(site).run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=source)
    assert done.returncode == 0, done.stdout
    assert "xfailed" in done.stdout, "answers outside the limits are not reported"


def test_a_broken_plugin_is_named_and_hides_no_other(
    site: Path, broken: Path, tmp_path: Path
) -> None:
    listed, warnings = Environment(site, broken).backends(tmp_path)
    assert not listed["broken"]["available"]
    assert "No module named 'no_such_module'" in listed["broken"]["reason"]
    assert "'broken' of broken_plugin fails to load" in warnings
    assert listed["emptiest"]["available"]
    assert listed["greedy"]["available"]


def test_a_plugin_that_takes_a_built_in_name_is_hidden_with_a_warning(
    site: Path, broken: Path, tmp_path: Path
) -> None:
    listed, warnings = Environment(site, broken).backends(tmp_path)
    assert listed["sequential"]["provider"] == "dcp"
    assert "the name is taken" in warnings


def test_asking_for_a_broken_plugin_says_whose_it_is(
    site: Path, broken: Path, tmp_path: Path
) -> None:
    done = Environment(site, broken).run("-c", PLAN, "broken", cwd=tmp_path)
    assert done.returncode != 0
    assert "BackendError: partitioner 'broken' of broken_plugin fails to load" in done.stderr
    assert "reinstall or remove" in done.stderr
