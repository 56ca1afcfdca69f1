"""Whatever is asked for, its plan is proven right and its numbers equal dense attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp.verification import check_plan
from dcp.verification.local_run import check_numbers
from dcp.verification.strategies import Case, cases

pytestmark = pytest.mark.property


@given(case=cases(), seed=st.integers(0, 2**16))
def test_any_plan_is_proven_and_equals_dense_attention(case: Case, seed: int) -> None:
    plan = case.plan()
    check_plan(plan)
    check_numbers(case.batch, plan, seed=seed)
