"""Sorting rows of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.ordering import distinct, row_order

small = st.integers(-3, 3)
large = st.integers(-(2**62), 2**62)


@pytest.mark.property
@pytest.mark.parametrize("values", [small, large])
@given(data=st.data())
def test_rows_are_ordered_as_by_a_stable_sort(
    values: st.SearchStrategy[int], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.tuples(values, values, values), max_size=40))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    expected = sorted(range(len(rows)), key=lambda index: rows[index])
    assert row_order(*columns).tolist() == expected


@pytest.mark.property
@given(values=st.lists(st.one_of(small, large), max_size=40))
def test_distinct_values_come_once_each_and_ascend(values: list[int]) -> None:
    assert distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))
