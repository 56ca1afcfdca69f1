"""Suites of pytest-benchmark; run by name, `pytest benchmarks/suites`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the modules that benchmarks share


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
