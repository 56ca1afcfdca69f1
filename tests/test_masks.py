"""Every mask constructor allows exactly the pairs of its definition, for all lengths."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp import masks
from dcp import slices as slice_ops
from dcp.arrays import BoolArray, IntArray
from dcp.masks import Mask

pytestmark = pytest.mark.property

lengths = st.integers(0, 40)
offsets = st.integers(-45, 45)


def grid(q_len: int, kv_len: int, offset: int = 0) -> tuple[IntArray, IntArray]:
    """Positions of the queries [q_len, 1] and of the keys [1, kv_len]."""
    return np.arange(q_len)[:, None] + offset, np.arange(kv_len)[None, :]


def assert_is(mask: Mask, expected: BoolArray) -> None:
    """Check a mask's slices, matrix and area against a matrix."""
    q_len, kv_len = expected.shape
    rows = mask.slices(q_len, kv_len)
    np.testing.assert_array_equal(mask.dense(q_len, kv_len), expected, err_msg=str(mask))
    assert mask.area(q_len, kv_len) == expected.sum(), "slices overlap"
    assert slice_ops.overlapping(rows) is None
    np.testing.assert_array_equal(slice_ops.normalize(rows), rows)


@given(lengths, lengths)
def test_full_allows_every_pair(q_len: int, kv_len: int) -> None:
    assert_is(masks.full(), np.ones((q_len, kv_len), dtype=np.bool_))


@given(lengths, lengths, offsets)
def test_causal_allows_keys_up_to_the_query(q_len: int, kv_len: int, offset: int) -> None:
    q, k = grid(q_len, kv_len, offset)
    assert_is(masks.causal(offset), k <= q)


@given(lengths, lengths, st.integers(1, 45), offsets)
def test_sliding_window_allows_the_last_keys(
    q_len: int, kv_len: int, window: int, offset: int
) -> None:
    q, k = grid(q_len, kv_len, offset)
    assert_is(masks.sliding_window(window, offset), (k <= q) & (q - k < window))


@given(lengths, lengths, st.integers(0, 45), st.integers(1, 45), offsets)
def test_lambda_allows_the_first_and_the_last_keys(
    q_len: int, kv_len: int, sink: int, window: int, offset: int
) -> None:
    q, k = grid(q_len, kv_len, offset)
    assert_is(masks.lambda_mask(sink, window, offset), (k <= q) & ((k < sink) | (q - k < window)))


@given(lengths, lengths, st.integers(0, 45), offsets)
def test_prefix_lm_allows_the_prefix_to_all(
    q_len: int, kv_len: int, prefix: int, offset: int
) -> None:
    q, k = grid(q_len, kv_len, offset)
    assert_is(masks.prefix_lm(prefix, offset), (k < prefix) | (k <= q))


@given(lengths, lengths, st.integers(1, 45), st.integers(0, 8))
def test_causal_blockwise_allows_first_local_and_own_block(
    q_len: int, kv_len: int, block: int, local: int
) -> None:
    q, k = grid(q_len, kv_len)
    q_block, k_block = q // block, k // block
    is_last = q_block == (q_len - 1) // block
    near = (k_block == 0) | (q_block - k_block <= local)
    assert_is(masks.causal_blockwise(block, local), (k <= q) & (near | is_last))


def shared_question_by_definition(answers: list[int], length: int) -> BoolArray:
    question = length - sum(answers)
    part = np.repeat(np.arange(len(answers) + 1), [question, *answers])
    q, k = grid(length, length)
    allowed: BoolArray = (k <= q) & ((part[k] == 0) | (part[k] == part[q]))
    return allowed


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 20))
def test_shared_question_allows_the_question_and_the_own_answer(
    answers: list[int], question: int
) -> None:
    mask = masks.shared_question(answer_lengths=answers)
    assert_is(mask, shared_question_by_definition(answers, question + sum(answers)))


@given(lengths, st.floats(0, 1), st.integers(1, 9))
def test_shared_question_by_fraction_splits_the_rest_evenly(
    length: int, fraction: float, answers: int
) -> None:
    parts = [
        len(part) for part in np.array_split(np.arange(round(fraction * length), length), answers)
    ]
    mask = masks.shared_question(question_fraction=fraction, answers=answers)
    assert_is(mask, shared_question_by_definition(parts, length))


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 9))
def test_documents_allow_only_the_own_document(docs: list[int], window: int) -> None:
    doc = np.repeat(np.arange(len(docs)), docs)
    q, k = grid(len(doc), len(doc))
    own = doc[q] == doc[k]
    assert_is(masks.documents(docs), own & (k <= q))
    assert_is(masks.documents(docs, masks.full()), own)
    windowed = masks.documents(docs, masks.sliding_window(window))
    assert_is(windowed, own & (k <= q) & (q - k < window))


def and_not(a: BoolArray, b: BoolArray) -> BoolArray:
    return a & ~b


@st.composite
def length_and_masks(draw: st.DrawFn) -> tuple[int, list[Mask]]:
    length = draw(st.integers(1, 30))
    half = length // 2
    anything = st.sampled_from(
        [
            masks.full(),
            masks.causal(),
            masks.causal(-3),
            masks.sliding_window(4),
            masks.lambda_mask(3, 5),
            masks.causal_blockwise(4, 1),
            masks.prefix_lm(6),
            masks.documents([half, length - half]),
            masks.documents([1] * length, masks.full()),
            masks.shared_question(answer_lengths=[half // 2, half // 2]),
            masks.from_dense(np.random.default_rng(length).random((length, length)) < 0.5),
        ]
    )
    return length, draw(st.lists(anything, min_size=3, max_size=3))


@pytest.mark.parametrize(
    ("operation", "dense"),
    [
        (operator.and_, operator.and_),
        (operator.or_, operator.or_),
        (operator.xor, operator.xor),
        (operator.sub, and_not),
    ],
)
@given(length_and_masks())
def test_masks_combine_like_their_matrices(
    operation: Callable[[Mask, Mask], Mask],
    dense: Callable[[BoolArray, BoolArray], BoolArray],
    drawn: tuple[int, list[Mask]],
) -> None:
    length, (a, b, c) = drawn
    x, y, z = (mask.dense(length) for mask in (a, b, c))
    assert_is(operation(a, b), dense(x, y))
    assert_is(operation(operation(a, b), ~c), dense(dense(x, y), ~z))


def test_combined_masks_allow_different_query_and_key_lengths() -> None:
    q, k = grid(7, 11)
    assert_is(~masks.causal() | masks.sliding_window(2), (k > q) | ((k <= q) & (q - k < 2)))


def test_masks_with_equal_content_are_equal_and_hash_equal() -> None:
    dense = np.eye(3, dtype=np.bool_)

    def make() -> list[Mask]:
        return [
            masks.causal(),
            masks.causal(1),
            masks.sliding_window(3),
            masks.lambda_mask(3, 3),
            masks.documents(np.array([1, 2])),
            masks.documents([1, 2], masks.full()),
            masks.shared_question(answer_lengths=(1, 2)),
            masks.from_dense(dense),
            masks.from_dense(~dense),
            masks.causal() & masks.full(),
            masks.causal() | masks.full(),
            ~masks.causal(),
        ]

    assert make() == make()
    assert len({*make(), *make()}) == len(make())


def test_masks_are_immutable() -> None:
    dense = np.eye(3, dtype=np.bool_)
    mask = masks.from_dense(dense)
    dense[:] = True
    assert mask.area(3) == 3
    for made in (mask, masks.causal(), mask | masks.causal()):
        with pytest.raises(ValueError, match="read-only"):
            made.slices(3)[:] = 0
    with pytest.raises(AttributeError):
        masks.causal().offset = 1  # type: ignore[attr-defined]


def test_masks_travel_between_processes() -> None:
    mask = masks.from_dense(np.eye(3, dtype=np.bool_)) | ~masks.documents([1, 2])
    assert pickle.loads(pickle.dumps(mask)) == mask


def test_masks_have_short_names() -> None:
    many = [1] * 100
    assert str(masks.full()) == "full"
    assert str(masks.causal()) == "causal"
    assert str(masks.causal(64)) == "causal(offset=64)"
    assert str(masks.sliding_window(128)) == "sliding_window(128)"
    assert str(masks.lambda_mask(4, 64, offset=2)) == "lambda(4, 64, offset=2)"
    assert str(masks.prefix_lm(5)) == "prefix_lm(5)"
    assert str(masks.causal_blockwise(256, 2)) == "causal_blockwise(256, 2)"
    assert str(masks.documents([3, 4])) == "documents([3, 4])"
    assert str(masks.documents(many, masks.full())) == "documents(100 docs, full)"
    assert str(masks.shared_question(answer_lengths=[3, 4])) == "shared_question([3, 4])"
    assert str(masks.shared_question(answer_lengths=many)) == "shared_question(100 answers)"
    assert str(masks.shared_question(question_fraction=0.5, answers=2)) == "shared_question(0.5, 2)"
    assert str(masks.from_dense(np.ones((2, 3), dtype=np.bool_))) == "dense(2x3)"
    assert str(~(masks.full() - masks.causal()) & masks.full()) == "~(full - causal) & full"


def test_structured_masks_need_few_slices() -> None:
    length = 1 << 20
    assert len(masks.causal().slices(length)) == 1
    assert len(masks.sliding_window(4096).slices(length)) == 1
    assert len(masks.lambda_mask(64, 4096).slices(length)) == 2
    assert len(masks.prefix_lm(1000).slices(length)) == 2
    # One slice of each block in the middle, two at the beginning, one at the end.
    assert len(masks.causal_blockwise(4096, 2).slices(length)) == 256 - 2
    assert len(masks.shared_question(question_fraction=0.2, answers=4).slices(length)) == 5
    assert len(masks.documents([1024] * 1024).slices(length)) == 1024
    assert len((masks.causal() & masks.sliding_window(4096)).slices(length)) == 1
    assert len((masks.causal() | ~masks.causal()).slices(length)) == 1
