"""Slots: contents that live at the same time never share one, dead ones give theirs away."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.slot_allocation import allocate
from dcp.slot_table import offsets_within

contents = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 6), st.integers(1, 9)),
    max_size=25,
)


@pytest.mark.property
@given(contents=contents)
def test_contents_that_overlap_in_time_have_different_slots_that_fit(contents):
    contents = sorted(contents)
    arena, birth, span, rows = np.array(contents, dtype=np.int64).reshape(-1, 4).T.copy()
    death = birth + span
    slot, slot_arena, slot_rows = allocate(arena, birth, death, rows)
    assert (slot_rows[slot] >= rows).all()
    assert (slot_arena[slot] == arena).all()
    assert (np.diff(slot_arena) >= 0).all()
    for first in range(len(contents)):
        for second in range(first):
            if arena[first] == arena[second] and birth[first] <= death[second]:
                assert slot[first] != slot[second]


@pytest.mark.property
@given(contents=contents)
def test_every_content_gets_the_first_of_the_smallest_free_slots_that_fit(contents):
    contents = sorted(contents)
    arena, birth, span, rows = np.array(contents, dtype=np.int64).reshape(-1, 4).T.copy()
    slot, slot_arena, slot_rows = allocate(arena, birth, birth + span, rows)
    busy_until: dict[int, int] = {}
    for content, got in enumerate(slot.tolist()):
        fitting = [
            (slot_rows[used], used)
            for used, last in busy_until.items()
            if slot_arena[used] == arena[content]
            and last < birth[content]
            and slot_rows[used] >= rows[content]
        ]
        assert got == min(fitting, default=(0, len(busy_until)))[1]
        busy_until[got] = int(birth[content] + span[content])


def test_a_slot_is_reused_once_its_content_is_dead():
    arena, birth, death = np.zeros(3, np.int64), np.array([0, 1, 2]), np.array([1, 2, 3])
    slot, _, rows = allocate(arena, birth, death, np.array([4, 4, 4]))
    assert slot.tolist() == [0, 1, 0]
    assert rows.tolist() == [4, 4]


def test_the_smallest_free_slot_that_fits_is_taken():
    arena, birth, death = np.zeros(3, np.int64), np.array([0, 0, 1]), np.array([0, 0, 1])
    slot, _, _ = allocate(arena, birth, death, np.array([9, 4, 3]))
    assert slot.tolist() == [0, 1, 1]


def test_offsets_start_again_with_every_owner():
    owner, sizes = np.array([0, 0, 2, 2, 2]), np.array([3, 4, 1, 1, 5])
    assert offsets_within(owner, sizes).tolist() == [0, 3, 0, 1, 2]
