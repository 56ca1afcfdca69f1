"""The block model: token blocks, head groups, computation blocks with exact allowed pairs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.batch import DTYPE_BYTES, AttentionSpec


class Kind(IntEnum):
    """Kinds of data block; the first three move forward, DO, DQ and DKV only backward."""

    Q = 0
    KV = 1
    O = 2  # noqa: E741 - the field's name for the output
    DO = 3  # with lse and delta = rowsum(dO * O)
    DQ = 4
    DKV = 5


# Kinds that hold key tokens, one head a group; the others hold query tokens.
KEY_SIDE = (Kind.KV, Kind.DKV)


class Side(IntEnum):
    """Which tensors a token block stands for; self-attention blocks are BOTH."""

    BOTH = 0
    QUERY = 1
    KEY = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadGroups:
    """How heads are cut into groups, arrays of length [groups].

    Normally one group a KV head. A scheme that needs more groups than KV heads splits one:
    the parts then share `kv_head`, and each keeps a replica of it.
    """

    kv_head: IntArray
    q_start: IntArray
    q_count: IntArray

    @classmethod
    def of(cls, spec: AttentionSpec) -> HeadGroups:
        """One group a KV head, with the query heads that read it."""
        ratio = spec.num_q_heads // spec.num_kv_heads
        kv_head = np.arange(spec.num_kv_heads)
        return cls(kv_head=kv_head, q_start=kv_head * ratio, q_count=np.full_like(kv_head, ratio))

    def __len__(self) -> int:
        return len(self.kv_head)


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockGraph:
    """A batch cut into blocks.

    Token blocks [T] are ordered by sequence, query side before key side, then start.
    Computation blocks [C] are ordered by (comp_q, comp_kv, comp_group). Masks are tables of
    slices in block-local coordinates: mask m allows rows mask_ptr[m]:mask_ptr[m + 1] of
    mask_slices; mask 0 has no rows and stands for "every pair allowed".

    Attributes:
        spec: Heads and dtype.
        block_size: Most tokens a block.
        q_lengths, kv_lengths: Tokens of each sequence, [sequences].
        sequence_slices: Mask of every sequence, [S, 6], in sequence coordinates.
        slice_sequence: Sequence of each of those slices, [S].
        token_seq, token_start, token_length, token_side: [T]; start counts within the
            sequence's query or key tokens.
        token_whole: The token block, as it was placed, that each is a piece of, [T]; all pieces
            have its home. Only `dcp.needed_tokens` cuts placed blocks to pieces.
        comp_q, comp_kv, comp_group: Token block of queries, of keys, head group, [C].
        comp_pairs: Exact number of allowed pairs, a head, [C].
        comp_mask: Mask of the computation block, [C]; 0 where every pair is allowed.
    """

    spec: AttentionSpec
    groups: HeadGroups
    block_size: int
    q_lengths: IntArray
    kv_lengths: IntArray
    sequence_slices: IntArray
    slice_sequence: IntArray
    token_seq: IntArray
    token_start: IntArray
    token_length: IntArray
    token_side: IntArray
    token_whole: IntArray
    comp_q: IntArray
    comp_kv: IntArray
    comp_group: IntArray
    comp_pairs: IntArray
    comp_mask: IntArray
    mask_ptr: IntArray
    mask_slices: IntArray

    @property
    def num_token_blocks(self) -> int:
        """Number of token blocks, T."""
        return len(self.token_length)

    @cached_property
    def flops_a_pair(self) -> IntArray:
        """Forward FLOPs of one allowed pair over all query heads of a group, [groups]."""
        return self.spec.head_flops_a_pair * self.groups.q_count

    def comp_block(self, kind: Kind) -> IntArray:
        """Block of the data of a kind that each computation touches, [C]."""
        return self.comp_kv if kind in KEY_SIDE else self.comp_q

    @cached_property
    def comp_flops(self) -> IntArray:
        """Forward FLOPs of every computation block, [C]."""
        return self.comp_pairs * self.flops_a_pair[self.comp_group]

    @cached_property
    def comp_whole(self) -> IntArray:
        """The computation block, as it was placed, that each is a piece of, [C]."""
        count, groups = self.num_token_blocks, len(self.groups)
        whole = self.token_whole
        key = (whole[self.comp_q] * count + whole[self.comp_kv]) * groups + self.comp_group
        number: IntArray = np.unique(key, return_inverse=True)[1].reshape(-1)
        return number

    @cached_property
    def has_q(self) -> BoolArray:
        """Token blocks that carry Q and O, [T]."""
        return np.not_equal(self.token_side, Side.KEY)

    @cached_property
    def has_kv(self) -> BoolArray:
        """Token blocks that carry KV, [T]."""
        return np.not_equal(self.token_side, Side.QUERY)

    @cached_property
    def q_offset(self) -> IntArray:
        """First row of each block in the packed query tensor, [T]; where has_q."""
        return _offsets(self.token_length * self.has_q)

    @cached_property
    def kv_offset(self) -> IntArray:
        """First row of each block in the packed key tensor, [T]; where has_kv."""
        return _offsets(self.token_length * self.has_kv)

    @cached_property
    def data_bytes(self) -> IntArray:
        """Bytes on the wire of every data block, [kinds, T, groups]; 0 where there is none."""
        spec, heads = self.spec, self.groups.q_count
        partial = DTYPE_BYTES[spec.wire_partial_dtype]
        per_token = {
            Kind.Q: heads * spec.head_dim * spec.dtype_bytes,
            Kind.KV: 2 * spec.head_dim * spec.dtype_bytes * np.ones_like(heads),
            Kind.O: heads * (spec.head_dim * partial + spec.accumulator_bytes),
            Kind.DO: heads * (spec.head_dim * spec.dtype_bytes + 2 * spec.accumulator_bytes),
            Kind.DQ: heads * spec.head_dim * partial,
            Kind.DKV: 2 * spec.head_dim * partial * np.ones_like(heads),
        }
        return self._of_tokens(per_token)

    @cached_property
    def accumulator_bytes(self) -> IntArray:
        """Bytes in which every result adds up, [kinds, T, groups]; 0 for inputs."""
        spec, heads = self.spec, self.groups.q_count
        elements = {
            Kind.O: heads * (spec.head_dim + 1),
            Kind.DQ: heads * spec.head_dim,
            Kind.DKV: 2 * spec.head_dim * np.ones_like(heads),
        }
        none = np.zeros_like(heads)
        return self._of_tokens(
            {kind: spec.accumulator_bytes * elements.get(kind, none) for kind in Kind}
        )

    def _of_tokens(self, per_token: dict[Kind, IntArray]) -> IntArray:
        """What each kind has for every token of a head group, for all tokens of its blocks."""
        q_tokens = (self.token_length * self.has_q)[:, None]
        kv_tokens = (self.token_length * self.has_kv)[:, None]
        return np.stack(
            [(kv_tokens if kind in KEY_SIDE else q_tokens) * per_token[kind] for kind in Kind]
        )


def _offsets(lengths: IntArray) -> IntArray:
    return np.cumsum(lengths) - lengths
