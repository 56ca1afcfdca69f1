"""Bad masks are refused with what was given, what is legal and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dcp import masks
from dcp.errors import DcpError, MaskError

TRUE = np.ones((4, 4), dtype=np.bool_)


@pytest.mark.parametrize("length", [-1, 2**30 + 1, 1.0, True, "4", None, np.float64(3), [3]])
def test_lengths_are_non_negative_integers(length: Any) -> None:
    with pytest.raises(MaskError, match=r"q_len is .* give an integer from 0"):
        masks.causal().slices(length)
    if length is not None:
        with pytest.raises(MaskError, match=r"kv_len is .* give an integer from 0"):
            masks.causal().dense(4, length)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("window", lambda bad: masks.sliding_window(bad)),
        ("window", lambda bad: masks.lambda_mask(4, bad)),
        ("block", lambda bad: masks.causal_blockwise(bad, 1)),
        ("answers", lambda bad: masks.shared_question(question_fraction=0.5, answers=bad)),
    ],
)
@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "4"])
def test_sizes_are_at_least_one(name: str, make: Any, bad: Any) -> None:
    with pytest.raises(MaskError, match=f"{name} is {bad!r}; give an integer from 1"):
        make(bad)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("sink", lambda bad: masks.lambda_mask(bad, 4)),
        ("local", lambda bad: masks.causal_blockwise(4, bad)),
        ("prefix", lambda bad: masks.prefix_lm(bad)),
        (r"lengths\[1\]", lambda bad: masks.documents([3, bad])),
        (r"answer_lengths\[1\]", lambda bad: masks.shared_question(answer_lengths=[3, bad])),
    ],
)
@pytest.mark.parametrize("bad", [-1, 2.0, False, None])
def test_counts_are_at_least_zero(name: str, make: Any, bad: Any) -> None:
    with pytest.raises(MaskError, match=f"{name} is {bad!r}; give an integer from 0"):
        make(bad)


@pytest.mark.parametrize("bad", [0.5, True, 2**31])
def test_offsets_are_integers(bad: Any) -> None:
    with pytest.raises(MaskError, match="offset is"):
        masks.causal(bad)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"answers": 2},
        {"question_fraction": 0.5},
        {"answer_lengths": [1], "answers": 1},
        {"answer_lengths": [1], "question_fraction": 0.5, "answers": 1},
    ],
)
def test_shared_question_takes_one_form(arguments: dict[str, Any]) -> None:
    with pytest.raises(MaskError, match="give either answer_lengths, or question_fraction and"):
        masks.shared_question(**arguments)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), True, "0.5"])
def test_question_fraction_is_a_share(fraction: Any) -> None:
    with pytest.raises(MaskError, match=r"question_fraction is .* from 0 to 1"):
        masks.shared_question(question_fraction=fraction, answers=2)


def test_parts_have_to_fit_the_sequence() -> None:
    with pytest.raises(MaskError, match="answers of 7 tokens in all do not fit a sequence of 6"):
        masks.shared_question(answer_lengths=[3, 4]).slices(6)
    for length in (6, 8):
        with pytest.raises(MaskError, match=f"documents of 7 .* sequence of {length}"):
            masks.documents([3, 4]).slices(length)


def test_masks_of_parts_are_for_one_sequence() -> None:
    for mask in (masks.documents([3, 4]), masks.shared_question(answer_lengths=[3])):
        with pytest.raises(MaskError, match="there are 7 queries and 8 keys"):
            mask.slices(7, 8)


@pytest.mark.parametrize("lengths", [5, None, 2.5])
def test_document_lengths_are_a_sequence(lengths: Any) -> None:
    with pytest.raises(MaskError, match=r"lengths is .* give a sequence of integers"):
        masks.documents(lengths)


def test_the_inner_mask_is_a_mask() -> None:
    with pytest.raises(MaskError, match="inner is 'causal'; give a mask"):
        masks.documents([1], "causal")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (np.ones((4, 4)), "float64"),
        (np.ones((4, 4), dtype=np.int64), "int64"),
        (np.ones(4, dtype=np.bool_), r"\[4\]"),
        (np.ones((1, 4, 4), dtype=np.bool_), r"\[1, 4, 4\]"),
        ([[True], [True, False]], "no array"),
        (None, "object"),
    ],
)
def test_a_dense_mask_is_a_bool_matrix(bad: Any, shown: str) -> None:
    with pytest.raises(MaskError, match=rf"dense mask .*{shown}.* give a bool matrix"):
        masks.from_dense(bad)


def test_bound_masks_fit_their_lengths_only() -> None:
    mask = masks.from_dense(TRUE[:, :3])
    for lengths in ((4, 4), (3, 3), (5, 3)):
        with pytest.raises(MaskError, match=f"made for 4 queries and 3 .* {lengths[0]} and"):
            mask.slices(*lengths)
    with pytest.raises(MaskError, match="made for 4 queries and 3 keys"):
        (masks.causal() & ~mask).area(4)


@pytest.mark.parametrize(
    "row", [[-1, 4, 0, 4], [0, 5, 0, 4], [0, 4, 0, 5], [0, 4, -1, 4], [3, 2, 0, 4]]
)
def test_slices_stay_inside_the_lengths(row: list[int]) -> None:
    with pytest.raises(MaskError, match=r"slice 1 is .* outside a mask of 4 queries and 4 keys"):
        masks.from_slices([[0, 1, 0, 1, 0, 0], [*row, -9, 9]], 4)


def test_slices_are_disjoint() -> None:
    rows = [[0, 2, 0, 2, 0, 0], [2, 4, 0, 4, -9, 9], [0, 4, 0, 4, -3, -2]]
    with pytest.raises(MaskError, match=r"slices 1 and 2 overlap: \[2, .* \[0, .*disjoint"):
        masks.from_slices(rows, 4)


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 1, 0, 1, 0]],
        [0, 1, 0, 1, 0, 0],
        [[0.0, 1, 0, 1, 0, 0]],
        [[True] * 6],
        [[0, 1, 0, 1, 0, 2**63]],
        [[0, 1], [0]],
        None,
    ],
)
def test_slices_are_rows_of_six_integers(rows: Any) -> None:
    with pytest.raises(MaskError, match=r"slices .*; give .*\[n, 6\]"):
        masks.from_slices(rows, 4)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (torch.ones(4, 4), "torch.float32"),
        (True, "bool"),
        (np.ones((4, 4), dtype=np.bool_), "bool"),
        (torch.ones(3, 3, dtype=torch.bool), r"\[3, 3\]"),
    ],
)
def test_a_mask_mod_returns_a_bool_tensor(result: Any, shown: str) -> None:
    with pytest.raises(MaskError, match=rf"mask_mod returned .*{shown}.*; return"):
        masks.from_mask_mod(lambda b, h, q, k: result, 4)


@pytest.mark.parametrize("bad", [None, 5, "q >= k"])
def test_a_mask_mod_is_a_function(bad: Any) -> None:
    with pytest.raises(MaskError, match=f"mask_mod is {bad!r}; give a function"):
        masks.from_mask_mod(bad, 4)


@pytest.mark.parametrize("bad", [None, 1, "no"])
def test_flashmask_is_causal_or_not(bad: Any) -> None:
    with pytest.raises(MaskError, match=f"causal is {bad!r}; it is True or False"):
        masks.from_flashmask([[0]], causal=bad)


@pytest.mark.parametrize(
    ("causal", "columns", "legal"),
    [(True, 4, r"\[kv_len, 2\]"), (True, 0, r"\[kv_len, 1\]"), (False, 1, r"\[kv_len, 4\]")],
)
def test_flashmask_has_one_two_or_four_bounds(causal: bool, columns: int, legal: str) -> None:
    with pytest.raises(MaskError, match=rf"row_indices have shape .*{legal}"):
        masks.from_flashmask(np.zeros((5, columns), dtype=np.int32), causal=causal)


@pytest.mark.parametrize("bad", [-1, 6])
def test_flashmask_bounds_are_rows(bad: int) -> None:
    with pytest.raises(MaskError, match=f"from 0 to 5|from {bad} to"):
        masks.from_flashmask([[0], [bad], [0], [0], [0]], causal=True)


@pytest.mark.parametrize("bad", [np.zeros((5, 1)), np.zeros((5, 1), dtype=np.bool_)])
def test_flashmask_bounds_are_integers(bad: Any) -> None:
    with pytest.raises(MaskError, match="row_indices have dtype"):
        masks.from_flashmask(bad, causal=True)


def test_masks_combine_with_masks_only() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        masks.causal() & 1  # type: ignore[operator]


def test_mask_errors_are_dcp_errors_and_value_errors() -> None:
    assert issubclass(MaskError, DcpError)
    assert issubclass(MaskError, ValueError)
