"""Dealing tokens and heads to the ranks of a Ulysses x ring grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import IntArray
from dcp.batch import AttentionSpec
from dcp.blocks import BlockGraph, HeadGroups, Side
from dcp.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Ranks as rings of Ulysses groups; a degree of 1 leaves the other scheme alone.

    A sequence of L tokens is cut at floor(i * L / chunks). Its ring share i is chunk i of
    `ring_degree`, or with `zigzag` the chunks i and 2 * ring_degree - 1 - i of twice as many
    (the head and the tail of a causal sequence, which together cost every rank the same). The
    ranks of Ulysses group i are home to consecutive even parts of that share.

    Attributes:
        ulysses_degree: Ranks that exchange heads for tokens.
        ring_degree: Ranks that pass keys round.
        zigzag: Whether a share is a head and a tail chunk.
        ulysses_inner: Whether consecutive ranks form Ulysses groups, or rings.
    """

    ulysses_degree: int = 1
    ring_degree: int = 1
    zigzag: bool = False
    ulysses_inner: bool = True

    @property
    def num_chunks(self) -> int:
        """Chunks that the rings deal out of every sequence."""
        return 2 * self.ring_degree if self.zigzag else self.ring_degree

    def rank(self, ring: IntArray, ulysses: IntArray) -> IntArray:
        """Rank at a place in its ring and in its Ulysses group."""
        if self.ulysses_inner:
            return ring * self.ulysses_degree + ulysses
        return ulysses * self.ring_degree + ring

    def chunk_edges(self, length: int) -> IntArray:
        """Edges that no token block may cross, ascending, as `dcp.cutting.cut` takes them."""
        share = np.arange(self.ring_degree)[:, None]
        head, tail = self._share(share, length)
        part = np.arange(1, self.ulysses_degree) * (head + tail) // self.ulysses_degree
        begin = np.where(
            part < head, self._edge(share, length), self._edge(self._mirror(share), length) - head
        )
        chunks = self._edge(np.arange(self.num_chunks + 1), length)
        return np.sort(np.concatenate([chunks, (begin + part).reshape(-1)]))

    def place(self, start: IntArray, length: IntArray) -> tuple[IntArray, IntArray]:
        """Place in the ring and in the Ulysses group of tokens.

        Args:
            start: Position in its sequence, [n].
            length: Tokens of that sequence, [n], 1 or more.
        """
        chunk = _part(start, length, self.num_chunks)
        ring = np.minimum(chunk, self._mirror(chunk))
        head, tail = self._share(ring, length)
        position = start - self._edge(chunk, length) + head * (chunk != ring)
        return ring, _part(position, head + tail, self.ulysses_degree)

    def _edge(self, chunk: IntArray, length: IntArray | int) -> IntArray:
        return chunk * length // self.num_chunks

    def _mirror(self, chunk: IntArray) -> IntArray:
        """The other chunk of the same share; the chunk itself where there is no other."""
        return self.num_chunks - 1 - chunk if self.zigzag else chunk

    def _share(self, ring: IntArray, length: IntArray | int) -> tuple[IntArray, IntArray]:
        """Tokens of the head and of the tail chunk of a ring share."""
        head, tail = (
            self._edge(chunk + 1, length) - self._edge(chunk, length)
            for chunk in (ring, self._mirror(ring))
        )
        return head, tail * self.zigzag


def _part(position: IntArray, length: IntArray, parts: int) -> IntArray:
    """The i with floor(i * length / parts) <= position < floor((i + 1) * length / parts)."""
    return (parts * (position + 1) - 1) // length


def place_blocks(blocks: BlockGraph, grid: Grid) -> tuple[IntArray, IntArray]:
    """Place in the ring and in the Ulysses group of each token block's home, [T] each."""
    lengths = np.where(
        blocks.token_side == Side.KEY,
        blocks.kv_lengths[blocks.token_seq],
        blocks.q_lengths[blocks.token_seq],
    )
    return grid.place(blocks.token_start, lengths)


def deal_heads(spec: AttentionSpec, degree: int) -> tuple[HeadGroups, IntArray]:
    """Head groups, and the member of a Ulysses group that computes each.

    Key heads are dealt as evenly as whole ones allow, first members first (7 over 4 ranks:
    2, 2, 2, 1). Where there are fewer key heads than members, query heads are dealt that way,
    and each member that holds query heads of a key head gets a replica of it, whose gradients
    are added up at home.

    Raises:
        SpecError: more members than query heads.
    """
    if degree > spec.num_q_heads:
        raise SpecError(
            f"a Ulysses degree of {degree} needs at least as many query heads, but there are "
            f"{spec.num_q_heads}; use a smaller degree with rings (usp:ulysses_degree=...), or ring"
        )
    if degree <= spec.num_kv_heads:
        return HeadGroups.of(spec), np.repeat(np.arange(degree), _deal(spec.num_kv_heads, degree))
    ratio = spec.num_q_heads // spec.num_kv_heads
    member_edges = np.cumsum(_deal(spec.num_q_heads, degree))
    edges = np.union1d(member_edges, np.arange(spec.num_kv_heads) * ratio)
    q_start = edges[:-1]
    groups = HeadGroups(kv_head=q_start // ratio, q_start=q_start, q_count=np.diff(edges))
    return groups, np.searchsorted(member_edges, q_start, side="right")


def _deal(count: int, parts: int) -> IntArray:
    """Sizes of even parts, the larger ones first."""
    return count // parts + (np.arange(parts) < count % parts).astype(np.int64)
