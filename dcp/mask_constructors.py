"""Masks that are given by a rule and fit any length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

import numpy as np

from dcp.arrays import IntArray
from dcp.checks import shown
from dcp.errors import MaskError
from dcp.mask_base import MAX_TOKENS, Mask, as_integer
from dcp.slices import FAR, as_slices


@dataclass(frozen=True)
class _Full(Mask):
    @property
    def name(self) -> str:
        return "full"

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        return as_slices([0, q_len, 0, kv_len, -FAR, FAR])


def full() -> Mask:
    """Every query sees every key."""
    return _Full()


@dataclass(frozen=True)
class _Positional(Mask):
    """A mask on absolute positions whose first query stands at position ``offset``."""

    offset: int

    def _label(self, head: str, *arguments: int) -> str:
        shown = [str(argument) for argument in arguments]
        if self.offset:
            shown.append(f"offset={self.offset}")
        return f"{head}({', '.join(shown)})" if shown else head


@dataclass(frozen=True)
class _Causal(_Positional):
    @property
    def name(self) -> str:
        return self._label("causal")

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        return as_slices([0, q_len, 0, kv_len, -FAR, self.offset])


def causal(offset: int = 0) -> Mask:
    """Query i sees keys 0..i + offset.

    Args:
        offset: Position of the first query in the key sequence; kv_len - q_len makes the queries
            the tail of the keys (bottom-right alignment).
    """
    return _Causal(_as_offset(offset))


@dataclass(frozen=True)
class _SlidingWindow(_Positional):
    window: int

    @property
    def name(self) -> str:
        return self._label("sliding_window", self.window)

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        return as_slices([0, q_len, 0, kv_len, self.offset - self.window + 1, self.offset])


def sliding_window(window: int, offset: int = 0) -> Mask:
    """Query i sees the last ``window`` keys up to and including position i + offset.

    Args:
        window: Number of keys, at least 1; 1 is the query's own position alone.
        offset: Position of the first query in the key sequence.
    """
    return _SlidingWindow(_as_offset(offset), as_integer("window", window, 1))


@dataclass(frozen=True)
class _Lambda(_Positional):
    sink: int
    window: int

    @property
    def name(self) -> str:
        return self._label("lambda", self.sink, self.window)

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        oldest = self.offset - self.window + 1
        return as_slices(
            [
                [0, q_len, 0, kv_len, oldest, self.offset],
                [0, q_len, 0, min(self.sink, kv_len), -FAR, oldest - 1],
            ]
        )


def lambda_mask(sink: int, window: int, offset: int = 0) -> Mask:
    """Query i sees the first ``sink`` keys and the last ``window`` keys, both causal.

    Args:
        sink: Number of first keys, at least 0.
        window: Number of last keys including the query's own position, at least 1.
        offset: Position of the first query in the key sequence.
    Source: Han et al. 2023 (LM-Infinite, arXiv 2308.16137); Xiao et al. 2023 (StreamingLLM,
        arXiv 2309.17453).
    """
    return _Lambda(_as_offset(offset), as_integer("sink", sink, 0), as_integer("window", window, 1))


@dataclass(frozen=True)
class _PrefixLm(_Positional):
    prefix: int

    @property
    def name(self) -> str:
        return self._label("prefix_lm", self.prefix)

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        return as_slices(
            [
                [0, q_len, 0, min(self.prefix, kv_len), -FAR, FAR],
                [0, q_len, self.prefix, kv_len, -FAR, self.offset],
            ]
        )


def prefix_lm(prefix: int, offset: int = 0) -> Mask:
    """Every query sees the first ``prefix`` keys, and the keys after them causally.

    Args:
        prefix: Number of first keys, at least 0; a shorter sequence is all prefix.
        offset: Position of the first query in the key sequence.
    """
    return _PrefixLm(_as_offset(offset), as_integer("prefix", prefix, 0))


def _as_offset(offset: int) -> int:
    return as_integer("offset", offset, -MAX_TOKENS)


@dataclass(frozen=True)
class _CausalBlockwise(Mask):
    block: int
    local: int

    @property
    def name(self) -> str:
        return f"causal_blockwise({self.block}, {self.local})"

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        block = self.block
        last = max(q_len - 1, 0) // block * block
        # Up to here the first block and the local blocks leave nothing out.
        plain = min((self.local + 2) * block, last)
        starts = np.arange(plain, last, block, dtype=np.int64)
        bands = np.empty((len(starts), 6), dtype=np.int64)
        bands[:, 0], bands[:, 1] = starts, starts + block
        bands[:, 2], bands[:, 3] = starts - self.local * block, kv_len
        bands[:, 4], bands[:, 5] = -FAR, 0
        others = [
            [0, plain, 0, kv_len, -FAR, 0],
            [plain, last, 0, min(block, kv_len), -FAR, 0],
            [last, q_len, 0, kv_len, -FAR, 0],
        ]
        return np.concatenate([as_slices(others), bands])


def causal_blockwise(block: int, local: int) -> Mask:
    """A query sees the first block, ``local`` blocks before its own, and its own causally.

    The sequence is cut into blocks of ``block`` tokens, the last of them possibly shorter. Queries
    of the last block see everything before them. Where the key length differs, blocks are those
    of the queries and keys count from the same origin.

    Args:
        block: Tokens of a block, at least 1.
        local: Number of whole blocks before the query's own, at least 0.
    Source: DCP, arXiv 2510.10620.
    """
    return _CausalBlockwise(as_integer("block", block, 1), as_integer("local", local, 0))


@dataclass(frozen=True)
class _SharedQuestion(Mask):
    answer_lengths: tuple[int, ...] | None
    question_fraction: float | None
    answers: int | None

    @property
    def name(self) -> str:
        if self.answer_lengths is None:
            return f"shared_question({self.question_fraction}, {self.answers})"
        if len(self.answer_lengths) <= 4:
            return f"shared_question({list(self.answer_lengths)})"
        return f"shared_question({len(self.answer_lengths)} answers)"

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        _check_self_attention(self, q_len, kv_len)
        lengths = self._answer_lengths(q_len)
        question = q_len - int(lengths.sum())
        ends = question + np.cumsum(lengths)
        own = np.empty((len(lengths), 6), dtype=np.int64)
        own[:, 0] = own[:, 2] = ends - lengths
        own[:, 1] = own[:, 3] = ends
        own[:, 4], own[:, 5] = -FAR, 0
        # The question and the first answer are plain causal together.
        first = int(ends[0]) if len(ends) else question
        shared = [[0, first, 0, first, -FAR, 0], [first, q_len, 0, question, -FAR, FAR]]
        return np.concatenate([as_slices(shared), own[1:]])

    def _answer_lengths(self, q_len: int) -> IntArray:
        if self.answer_lengths is not None:
            lengths = np.array(self.answer_lengths, dtype=np.int64)
            if lengths.sum() > q_len:
                raise MaskError(
                    f"answers of {lengths.sum()} tokens in all do not fit a sequence of {q_len}; "
                    "give answer_lengths whose sum is at most the sequence length"
                )
            return lengths
        assert self.question_fraction is not None
        assert self.answers is not None
        rest = q_len - round(self.question_fraction * q_len)
        return rest // self.answers + (np.arange(self.answers) < rest % self.answers)


def shared_question(
    *,
    answer_lengths: Iterable[int] | None = None,
    question_fraction: float | None = None,
    answers: int | None = None,
) -> Mask:
    """A causal question, then answers that each see the question and themselves causally.

    Give either ``answer_lengths`` (the question is the rest of the sequence), or
    ``question_fraction`` and ``answers``: then the question has round(fraction * length) tokens
    and the answers share the rest as evenly as possible, longer ones first.

    Args:
        answer_lengths: Tokens of each answer.
        question_fraction: Share of the sequence that is the question, 0 to 1.
        answers: Number of answers, at least 1.

    Raises:
        MaskError: Other combinations of arguments; later, a sequence shorter than the answers, or
            query and key lengths that differ.
    Source: DCP, arXiv 2510.10620, after the share-question mask of FlashMask, arXiv 2410.01359.
    """
    if answer_lengths is not None and question_fraction is None and answers is None:
        return _SharedQuestion(_as_integers("answer_lengths", answer_lengths), None, None)
    if answer_lengths is not None or question_fraction is None or answers is None:
        raise MaskError(
            f"shared_question got answer_lengths={shown(answer_lengths)}, "
            f"question_fraction={shown(question_fraction)}, answers={shown(answers)}; "
            "give either answer_lengths, or question_fraction and answers"
        )
    fraction = question_fraction
    if not isinstance(fraction, Real) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
        raise MaskError(f"question_fraction is {shown(fraction)}; give a number from 0 to 1")
    return _SharedQuestion(None, float(fraction), as_integer("answers", answers, 1))


@dataclass(frozen=True)
class _Documents(Mask):
    lengths: tuple[int, ...]
    inner: Mask

    @property
    def name(self) -> str:
        shown = f"{list(self.lengths)}" if len(self.lengths) <= 4 else f"{len(self.lengths)} docs"
        inner = "" if self.inner == causal() else f", {self.inner.name}"
        return f"documents({shown}{inner})"

    def _build(self, q_len: int, kv_len: int) -> IntArray:
        _check_self_attention(self, q_len, kv_len)
        lengths = np.array(self.lengths, dtype=np.int64)
        if lengths.sum() != q_len:
            raise MaskError(
                f"documents of {lengths.sum()} tokens in all do not fit a sequence of {q_len}; "
                "give lengths whose sum is the sequence length"
            )
        starts = np.cumsum(lengths) - lengths
        parts = [as_slices([])]
        # Equal documents have equal slices: build each length once.
        for length in np.unique(lengths).tolist():
            origins = starts[lengths == length, None, None] * np.array([1, 1, 1, 1, 0, 0])
            parts.append((self.inner.slices(length) + origins).reshape(-1, 6))
        rows = np.concatenate(parts)
        return rows[np.argsort(rows[:, 0], kind="stable")]


def documents(lengths: Iterable[int], inner: Mask | None = None) -> Mask:
    """Documents packed one after another; each query sees keys of its own document only.

    Args:
        lengths: Tokens of each document; their sum has to be the sequence length.
        inner: Mask within each document, causal by default.

    Raises:
        MaskError: A length is negative or no integer; later, lengths that do not add up to the
            sequence length, or query and key lengths that differ.
    """
    inner = causal() if inner is None else inner
    if not isinstance(inner, Mask):
        raise MaskError(f"inner is {shown(inner)}; give a mask, such as dcp.masks.causal()")
    return _Documents(_as_integers("lengths", lengths), inner)


def _as_integers(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """Return non-negative integers as a tuple, or raise MaskError."""
    try:
        listed = list(values)
    except TypeError:
        raise MaskError(f"{name} is {shown(values)}; give a sequence of integers") from None
    return tuple(as_integer(f"{name}[{n}]", value, 0) for n, value in enumerate(listed))


def _check_self_attention(mask: Mask, q_len: int, kv_len: int) -> None:
    if q_len != kv_len:
        raise MaskError(
            f"{mask.name} divides one token sequence, but there are {q_len} queries and {kv_len} "
            "keys; give equal lengths, or build the mask with from_slices or from_dense"
        )
