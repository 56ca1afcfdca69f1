"""Runs of rows, one after another, as a loop would list them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.runs import expand_runs


@pytest.mark.property
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5))))
def test_expanded_runs_list_every_row_with_its_run(runs: list[tuple[int, int]]) -> None:
    begin, count = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    expected = [
        (run, row)
        for run, (first, length) in enumerate(runs)
        for row in range(first, first + length)
    ]
    assert (
        list(zip(*(rows.tolist() for rows in expand_runs(begin, count)), strict=True)) == expected
    )
