"""What the user asks to attend: a batch of sequences with masks, and the head layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import IntArray
from dcp.checks import check_choice, check_integer, check_number, shown
from dcp.errors import BatchError, SpecError
from dcp.masks import Mask, causal

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def _checked_lengths(name: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        lengths = np.asarray(values)
    except ValueError:  # of different lengths, one inside the other
        lengths = np.zeros((0, 0))
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise BatchError(
            f"{name} must be a flat sequence of integers, got {shown(values)}; "
            "give one length a sequence"
        )
    if (lengths < 0).any():
        worst = int(np.flatnonzero(lengths < 0)[0])
        raise BatchError(f"{name}[{worst}] is {int(lengths[worst])}; lengths are 0 or more tokens")
    return tuple(int(length) for length in lengths)


class Batch:
    """Sequences packed one after another, each with its mask.

    Args:
        q_lengths: Tokens of each sequence (for cross-attention: its query tokens); 0 is legal.
        kv_lengths: Key tokens of each sequence for cross-attention; None for self-attention,
            where queries and keys are the same tokens and share their home.
        mask: One mask for all sequences, or one a sequence. Default causal.
        total_tokens: If given, the number of query tokens that the caller's tensors hold;
            lengths that add up to something else are refused.

    Raises:
        BatchError: negative lengths, or counts that do not belong together.
        MaskError: a mask that is bound to other lengths.
    """

    def __init__(
        self,
        q_lengths: Sequence[int],
        kv_lengths: Sequence[int] | None = None,
        *,
        mask: Mask | Sequence[Mask] | None = None,
        total_tokens: int | None = None,
    ) -> None:
        self.q_lengths = _checked_lengths("q_lengths", q_lengths)
        self.is_cross = kv_lengths is not None
        self.kv_lengths = (
            self.q_lengths if kv_lengths is None else _checked_lengths("kv_lengths", kv_lengths)
        )
        if len(self.kv_lengths) != len(self.q_lengths):
            raise BatchError(
                f"{len(self.q_lengths)} query lengths but {len(self.kv_lengths)} key lengths; "
                "give one of each a sequence (0 is legal)"
            )
        if total_tokens is not None and total_tokens != self.num_q_tokens:
            raise BatchError(
                f"the lengths add up to {self.num_q_tokens} tokens but the tensors hold "
                f"{shown(total_tokens)}; leave padding out or give it as a sequence of its own"
            )
        self.masks = self._checked_masks(causal() if mask is None else mask)
        # Also what refuses a mask that is bound to other lengths.
        self._slices = self._all_slices()

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens: Sequence[int],
        *,
        total_tokens: int,
        mask: Mask | Sequence[Mask] | None = None,
    ) -> Batch:
        """A self-attention batch from cumulative lengths, as varlen attention takes them.

        Args:
            cu_seqlens: [sequences + 1], starts with 0, never falls, ends with total_tokens.
            total_tokens: Tokens that the packed tensors hold.
            mask: As for `Batch`.

        Raises:
            BatchError: the ends do not fit, or an entry falls.
        """
        ends = _checked_lengths("cu_seqlens", cu_seqlens)
        if not ends or ends[0] != 0 or ends[-1] != total_tokens:
            raise BatchError(
                f"cu_seqlens must run from 0 to the number of tokens {shown(total_tokens)}, "
                f"got {list(ends)[:1]} … {list(ends)[-1:]}"
            )
        return cls(np.diff(ends).tolist(), mask=mask, total_tokens=total_tokens)

    def _checked_masks(self, mask: Mask | Sequence[Mask]) -> tuple[Mask, ...]:
        if not isinstance(mask, Mask | Sequence):
            raise BatchError(f"mask is {shown(mask)}; give one dcp mask for all or one a sequence")
        masks = (mask,) * len(self) if isinstance(mask, Mask) else tuple(mask)
        if len(masks) != len(self) or not all(isinstance(one, Mask) for one in masks):
            raise BatchError(
                f"got {len(masks)} masks ({[type(one).__name__ for one in masks][:4]}) for "
                f"{len(self)} sequences; give one dcp mask for all or one a sequence"
            )
        return masks

    def _all_slices(self) -> list[IntArray]:
        """Slices of every sequence; sequences of one mask and length share them."""
        known: dict[tuple[int, int, int], IntArray] = {}
        found = []
        for q_len, kv_len, mask in zip(self.q_lengths, self.kv_lengths, self.masks, strict=True):
            key = (id(mask), q_len, kv_len)
            if key not in known:
                known[key] = mask.slices(q_len, kv_len)
            found.append(known[key])
        return found

    def __len__(self) -> int:
        return len(self.q_lengths)

    @property
    def num_q_tokens(self) -> int:
        """Query tokens of the whole batch."""
        return sum(self.q_lengths)

    @property
    def num_kv_tokens(self) -> int:
        """Key tokens of the whole batch."""
        return sum(self.kv_lengths)

    def sequence_slices(self, index: int) -> IntArray:
        """Mask slices of one sequence, [n, 6], in its own coordinates."""
        return self._slices[index]

    @cached_property
    def allowed_pairs(self) -> int:
        """Query-key pairs that the masks allow, over all sequences."""
        return sum(int(slice_ops.size(slices).sum()) for slices in self._slices)

    def __repr__(self) -> str:
        kind = "cross" if self.is_cross else "self"
        return f"Batch({len(self)} sequences, {self.num_q_tokens} query tokens, {kind}-attention)"


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Heads and element type of one attention layer.

    Args:
        num_q_heads: Query heads.
        num_kv_heads: Key heads; divides num_q_heads (equal: MHA, 1: MQA).
        head_dim: Elements a head, of Q, K and V alike.
        dtype: float64, float32, bfloat16 or float16; also the dtype of what is sent.
        softmax_scale: Factor on the scores; None for head_dim ** -0.5.
        float32_partials: Send partial outputs and gradients in the accumulator's dtype
            rather than in `dtype`: more bytes, no rounding on the wire.

    Raises:
        SpecError: illegal counts or an unknown dtype.
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    softmax_scale: float | None = None
    float32_partials: bool = False

    def __post_init__(self) -> None:
        for name in ("num_q_heads", "num_kv_heads", "head_dim"):
            check_integer(name, getattr(self, name))
        if self.num_q_heads % self.num_kv_heads:
            raise SpecError(
                f"{self.num_q_heads} query heads do not divide into {self.num_kv_heads} key heads; "
                "num_q_heads must be a multiple of num_kv_heads"
            )
        check_choice("dtype", self.dtype, DTYPE_BYTES)
        if self.softmax_scale is not None:
            check_number("softmax_scale", self.softmax_scale, positive=True)
        if not isinstance(self.float32_partials, bool):
            raise SpecError(
                f"float32_partials is {shown(self.float32_partials)}; it is True or False"
            )

    @property
    def scale(self) -> float:
        """Factor on the scores."""
        return self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale

    @property
    def head_flops_a_pair(self) -> int:
        """Forward FLOPs of one allowed pair, a query head: two products of 2 × head_dim each."""
        return 4 * self.head_dim

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element of Q, K, V and O."""
        return DTYPE_BYTES[self.dtype]

    @property
    def accumulator_dtype(self) -> str:
        """Dtype in which partial results accumulate and in which lse is held."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def accumulator_bytes(self) -> int:
        """Bytes of one element of an accumulator."""
        return DTYPE_BYTES[self.accumulator_dtype]

    @property
    def wire_partial_dtype(self) -> str:
        """Dtype in which partial outputs and gradients travel."""
        return self.accumulator_dtype if self.float32_partials else self.dtype
