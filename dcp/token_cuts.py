"""Lengths to token blocks: every block_size tokens, and at edges of chunks or masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dcp.arrays import IntArray
from dcp.batch import Batch
from dcp.blocks import Side
from dcp.runs import expand_runs

ChunkEdges = Callable[[int], IntArray]
"""Length of a sequence to the edges [chunks + 1] that no token block may cross."""


class Edges(NamedTuple):
    """Positions that no token block may cross, arrays [n]: sequence, and token in it."""

    sequence: IntArray
    token: IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenBlocks:
    """Arrays [T], as in `BlockGraph`."""

    seq: IntArray
    start: IntArray
    length: IntArray
    side: IntArray
    whole: IntArray


def cut_tokens(
    batch: Batch, block_size: int, chunk_edges: ChunkEdges | None, key_edges: Edges | None
) -> TokenBlocks:
    """Token blocks of a batch.

    Args:
        batch: Lengths.
        block_size: Most tokens a block.
        chunk_edges: Edges of both sides.
        key_edges: Edges of the tokens that are keys.
    """
    if not batch.is_cross:
        seq, start, length = _cut_lengths(batch.q_lengths, block_size, chunk_edges, key_edges)
        side_of, whole = np.zeros_like(seq), np.arange(len(seq))
        return TokenBlocks(seq=seq, start=start, length=length, side=side_of, whole=whole)
    sides = []
    for side, lengths, edges in (
        (Side.QUERY, batch.q_lengths, None),
        (Side.KEY, batch.kv_lengths, key_edges),
    ):
        seq, start, length = _cut_lengths(lengths, block_size, chunk_edges, edges)
        sides.append(np.stack([seq, start, length, np.full_like(seq, side)]))
    both = np.concatenate(sides, axis=1)
    seq, start, length, side_of = both[:, np.argsort(both[0], kind="stable")]
    whole = np.arange(len(seq))
    return TokenBlocks(seq=seq, start=start, length=length, side=side_of, whole=whole)


def _cut_lengths(
    lengths: tuple[int, ...],
    block_size: int,
    chunk_edges: ChunkEdges | None,
    more_edges: Edges | None,
) -> tuple[IntArray, IntArray, IntArray]:
    """Sequence, start and length of every block, in order."""
    total = np.array(lengths, dtype=np.int64)
    width = int(total.max(initial=0)) + 1
    marks = [np.arange(len(total)) * width]
    if chunk_edges is not None:
        marks += [index * width + chunk_edges(length) for index, length in enumerate(lengths)]
    if more_edges is not None:
        marks.append(more_edges.sequence * width + more_edges.token)
    sequence, start = np.divmod(np.unique(np.concatenate(marks)), width)
    inside = start < total[sequence]
    sequence, start = sequence[inside], start[inside]
    ends = np.append(start[1:], 0)
    last = np.append(sequence[1:] != sequence[:-1], True)[: len(sequence)]
    length = np.where(last, total[sequence], ends[: len(sequence)]) - start
    chunk, block = expand_runs(np.zeros_like(length), -(-length // block_size))
    offset = block * block_size
    return sequence[chunk], start[chunk] + offset, np.minimum(block_size, length[chunk] - offset)


def mask_edges(slices: IntArray, sequence: IntArray, block_size: int) -> Edges:
    """Keys at which slices begin or end for many queries.

    An edge counts the queries of the slices that it bounds. It is worth a cut where they fill
    more than two blocks: then several devices are likely to want one side of it and not the
    other. Of each sequence the heaviest are taken, at most one for four of its blocks, so that
    a mask of many small slices does not cut everything to pieces.

    Args:
        slices: In sequence coordinates, [n, 6].
        sequence: Of each slice, [n].
        block_size: Most tokens a block.
    """
    if not len(slices):
        return Edges(sequence, sequence)
    width = int(slices[:, :4].max()) + 1
    rows = slices[:, 1] - slices[:, 0]
    key = np.concatenate([sequence * width + slices[:, 2], sequence * width + slices[:, 3]])
    edge, where = np.unique(key, return_inverse=True)
    weight = np.bincount(where.reshape(-1), np.tile(rows, 2))
    owner, token = np.divmod(edge, width)
    longest = np.zeros(int(sequence.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, sequence, slices[:, 3])
    useful = (weight > 2 * block_size) & (token > 0) & (token < longest[owner])
    owner, token, weight = owner[useful], token[useful], weight[useful]
    order = np.lexsort((token, -weight, owner))
    owner, token = owner[order], token[order]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    few = rank < np.maximum(longest[owner] // (4 * block_size), 1)
    return Edges(owner[few], token[few])
