"""Slots: contents that live at the same time never share one, dead ones give theirs away."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.slot_allocation import allocate

lives = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(1, 9)), max_size=25
)


@pytest.mark.property
@given(lives=lives)
def test_contents_that_overlap_in_time_have_different_slots_that_fit(lives):
    lives = sorted(lives)
    birth, span, rows = np.array(lives, dtype=np.int64).reshape(-1, 3).T
    death = birth + span
    arena = allocate(birth, death, rows)
    assert (arena.size[arena.slot] >= rows).all()
    for first in range(len(lives)):
        for second in range(first):
            if birth[first] <= death[second]:
                assert arena.slot[first] != arena.slot[second]
    assert arena.offset.tolist() == (np.cumsum(arena.size) - arena.size).tolist()


def test_a_slot_is_reused_once_its_content_is_dead():
    arena = allocate(np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([4, 4, 4]))
    assert arena.slot.tolist() == [0, 1, 0]
    assert arena.rows == 8
