"""Proof that items carry exactly their part of the sequence's mask: regions, not only areas."""

from __future__ import annotations

import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import BoolArray, IntArray
from dcp.instructions import Program
from dcp.runs import expand_runs
from dcp.verification.facts import Facts


def wrong_masks(facts: Facts, program: Program, mask: IntArray, pair: IntArray) -> BoolArray:
    """Which items allow other positions than the sequence's mask does.

    Args:
        facts: What the batch asks for.
        program: Its mask table.
        mask: Mask of each item, [n]; legal numbers.
        pair: Pair of blocks of each item, [n].
    """
    cases, case_of = np.unique(np.stack([mask, pair], axis=1), axis=0, return_inverse=True)
    mask, pair = cases[:, 0], cases[:, 1]
    rectangle = facts.length[facts.pair_q[pair]] * facts.length[facts.pair_kv[pair]]
    wrong: BoolArray = facts.pair_area[pair] != rectangle  # mask 0 allows every position
    listed = np.flatnonzero(mask > 0)
    wrong[listed] = _unequal(facts, program, mask[listed], pair[listed])
    return wrong[case_of.reshape(-1)]


def _unequal(facts: Facts, program: Program, mask: IntArray, pair: IntArray) -> BoolArray:
    case, row = _expand(program.mask_ptr, mask)
    given = program.mask_slices[row]
    q_length = facts.length[facts.pair_q[pair]][case]
    kv_length = facts.length[facts.pair_kv[pair]][case]
    inside = (given[:, 0] >= 0) & (given[:, 1] <= q_length)
    inside &= (given[:, 2] >= 0) & (given[:, 3] <= kv_length)
    tight, some = slice_ops.tighten(given)
    given_rows = np.column_stack([case, tight])[some]
    wanted_case, row = _expand(facts.piece_ptr, pair)
    wanted_rows = np.column_stack([wanted_case, facts.piece_slices[row]])

    unequal = _different_rows(given_rows, wanted_rows, len(mask))
    # Rows may differ and still describe the same region.
    for index in np.flatnonzero(unequal).tolist():
        given, wanted = (rows[rows[:, 0] == index, 1:] for rows in (given_rows, wanted_rows))
        unequal[index] = _different_regions(given, wanted)
    unequal[case[~inside]] = True
    return unequal


def _expand(ptr: IntArray, index: IntArray) -> tuple[IntArray, IntArray]:
    """(position in index, row) for every row ptr[i] … ptr[i + 1] - 1 of every index i."""
    return expand_runs(ptr[index], ptr[index + 1] - ptr[index])


def _different_rows(a: IntArray, b: IntArray, cases: int) -> BoolArray:
    """Which cases (column 0) do not have the same rows in a and b, in any order."""
    different: BoolArray = np.bincount(a[:, 0], minlength=cases) != np.bincount(
        b[:, 0], minlength=cases
    )
    a, b = (rows[~different[rows[:, 0]]] for rows in (a, b))
    a, b = (rows[np.lexsort(rows.T[::-1])] for rows in (a, b))
    different[a[(a != b).any(axis=1), 0]] = True
    return different


def _different_regions(given: IntArray, wanted: IntArray) -> bool:
    if slice_ops.overlapping(given) is not None:
        return True
    return bool(len(slice_ops.subtract(given, wanted)) or len(slice_ops.subtract(wanted, given)))
