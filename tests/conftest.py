"""Hypothesis profiles, the reasons for which a tier is skipped, and what several files ask for."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dcp import registry

# Planning and running take long enough to trip hypothesis' per-example deadline on a busy machine.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

settings.register_profile("dev", _COMMON, max_examples=20)
settings.register_profile("ci", _COMMON, max_examples=50, derandomize=True)
settings.register_profile("nightly", _COMMON, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the triton and gpu tiers where they cannot run, and say why."""
    missing = {"triton": _why_no_triton, "gpu": _why_no_gpu}
    for marker, why_not in missing.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = why_not() if marked else None
        if reason is not None:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_triton() -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed; run `tox run -e triton`"
    return None


def _why_no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "torch finds no CUDA device"


@pytest.fixture
def partitioners(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The table of partitioners: greedy, and what a test adds."""
    table = {"greedy": registry.BUILT_IN["partitioners"]["greedy"]}
    monkeypatch.setitem(registry.BUILT_IN, "partitioners", table)
    return table


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """A file of lengths, for `--lengths`."""
    path = tmp_path / "lengths.txt"
    path.write_text("300\n70\n41\n5\n")
    return path
