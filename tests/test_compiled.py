"""Compiled loops: kept on disk where possible, and compiled all the same where not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcp
from dcp import compiled


def test_where_compiled_code_cannot_be_kept_it_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = compiled.njit

    def without_a_place(*args: Any, **options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return original(*args, **options)

    monkeypatch.setattr(compiled, "njit", without_a_place)
    caplog.set_level("INFO", logger="dcp")

    @compiled.compiled
    def double(values: Any) -> None:
        for index in range(values.shape[0]):
            values[index] *= 2

    values = np.arange(3)
    double(values)
    assert values.tolist() == [0, 2, 4]
    assert "compiled code is not kept: cannot cache function" in caplog.text


def test_everything_is_compiled_in_that_way() -> None:
    """Elsewhere `numba.njit(cache=True)` would raise where nothing can be kept."""
    package = Path(dcp.__file__).parent
    files = [path for folder in (package, package / "backends") for path in folder.glob("*.py")]
    users = [path.name for path in files if "import numba" in path.read_text(encoding="utf-8")]
    assert users == ["compiled.py"]
