"""What is shipped, under which names, and how the first steps of a newcomer are kept true."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from setuptools.config.pyprojecttoml import read_configuration

from dcp import registry

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("backends", "baselines", "kernels", "verification")


def _sources() -> Iterator[Path]:
    """Every Python file of the repository once; the links in dcp/ are not followed."""
    for folder in ("dcp", *LINKED, "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def _imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def test_linked_folders_are_imported_under_dcp_only() -> None:
    short = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in _sources()
        for name in _imported_names(path)
        if name.partition(".")[0] in LINKED
    ]
    assert not short


@pytest.mark.parametrize("folder", LINKED)
def test_links_are_relative(folder: str) -> None:
    link = ROOT / "dcp" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder


def test_kernels_folder_shadows_no_package_of_that_name() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


# In a process of its own: setuptools replaces distutils, and must come before all else does.
_READ_AS_FOR_A_WHEEL = """
import json
from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration

distribution = apply_configuration(Distribution({"script_name": "setup.py"}), "pyproject.toml")
build = distribution.get_command_obj("build_py")
build.ensure_finalized()
print(json.dumps({"modules": build.find_all_modules(), "data": distribution.package_data}))
"""


@pytest.fixture(scope="module")
def wheel() -> Any:
    """What setuptools reads from pyproject.toml, as it would to build a wheel."""
    command = [sys.executable, "-W", "ignore", "-c", _READ_AS_FOR_A_WHEEL]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def test_wheel_holds_every_module_once_under_dcp(wheel: Any) -> None:
    shipped = [(f"{package}.{name}", ROOT / file) for package, name, file in wheel["modules"]]
    expected = sorted(
        path.resolve() for path in _sources() if path.relative_to(ROOT).parts[0] in ("dcp", *LINKED)
    )
    assert sorted(file.resolve() for _, file in shipped) == expected
    assert all(module.startswith("dcp.") for module, _ in shipped)
    assert any(module.startswith("dcp.kernels.") for module, _ in shipped)


def test_wheel_is_marked_as_typed(wheel: Any) -> None:
    assert "py.typed" in wheel["data"]["dcp"]
    assert (ROOT / "dcp" / "py.typed").is_file()


def _readme_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def _readme_commands() -> list[str]:
    """The lines of the README's first two shell blocks."""
    return [block.strip() for block in _readme_blocks("bash")[:2]]


def test_readme_starts_with_two_commands_of_one_line() -> None:
    use, test = _readme_commands()
    assert use.endswith("dcp compare")
    assert test.endswith("tox run")
    assert "\n" not in use + test


def test_ci_runs_the_second_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o100, "not executable"
    lines = script.read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert lines[-1] == _readme_commands()[1]


def _project() -> Any:
    return read_configuration(ROOT / "pyproject.toml")["project"]


def _pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_direct_dependencies_are_pinned_within_their_range() -> None:
    project = _project()
    extras = {**project["optional-dependencies"], "core": project["dependencies"]}
    # Compiled by the user against a CUDA toolchain of their own; `all` only names other extras.
    for extra in ("flash-attn", "all"):
        del extras[extra]
    direct = {r.name: r for extra in extras.values() for r in map(Requirement, extra)}
    pins = _pins()
    assert {pin.name for pin in pins} == set(direct)
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert direct[pin.name].specifier.contains(exact.version), str(pin)


def test_all_is_every_extra_that_installs_from_wheels() -> None:
    extras = _project()["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == set(extras) - {"all", "dev", "flash-attn"}


@pytest.mark.parametrize("module", ["dcp", "dcp.planner"])
def test_planning_starts_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group, table in registry.BUILT_IN.items() for name in table],
)
def test_every_built_in_backend_loads(group: str, name: str) -> None:
    """Its module must load even where the package that it drives is missing."""
    assert isinstance(registry.load(group, name).availability().available, bool)


def test_python_quick_start_of_the_readme_prints_what_it_says() -> None:
    command = [sys.executable, "-c", _readme_blocks("python")[0]]
    ran = subprocess.run(command, cwd=ROOT, check=True, timeout=120, capture_output=True, text=True)
    assert ran.stdout in _readme_blocks("text")


@pytest.mark.distributed
@pytest.mark.slow
def test_quick_start_of_the_readme_runs_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "quick_start.py"
    script.write_text("".join(_readme_blocks("python")), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    surroundings = {**os.environ, "PYTHONPATH": path}
    subprocess.run([*command, script], env=surroundings, check=True, timeout=120)
