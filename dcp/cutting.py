"""Batch to blocks, in closed form: no loop over tokens, pairs or blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import IntArray
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import BlockGraph, HeadGroups, Side
from dcp.checks import check_integer
from dcp.errors import SpecError
from dcp.runs import expand_runs
from dcp.token_cuts import ChunkEdges, TokenBlocks, cut_tokens, mask_edges

MOST_BLOCKS = 2**28
"""Most token blocks, and most computation blocks, that are planned.

Numbers of 32 bits count them, also where they are cut to pieces, and planning takes some 500 bytes
for each computation block.
"""


def cut(
    batch: Batch,
    spec: AttentionSpec,
    block_size: int,
    *,
    chunk_edges: ChunkEdges | None = None,
    at_mask_edges: bool = False,
    groups: HeadGroups | None = None,
) -> BlockGraph:
    """Cut a batch into token blocks and computation blocks.

    Args:
        batch: Lengths and masks.
        spec: Heads and dtype.
        block_size: Most tokens a block, 1 or more.
        chunk_edges: Extra cuts, for schemes that deal every sequence out in chunks.
        at_mask_edges: Cut also where many queries stop seeing keys, so that a block whose first
            few tokens are wanted everywhere need not travel whole.
        groups: Head groups; None for one a KV head.

    Raises:
        SpecError: a block size below 1, or so small that there are more than `MOST_BLOCKS`.
    """
    check_integer("block_size", block_size)
    block_size = int(block_size)  # integers of numpy overflow
    groups = HeadGroups.of(spec) if groups is None else groups
    _check_least(batch, len(groups), block_size)
    table, table_sequence = _sequence_slices(batch)
    edges = mask_edges(table, table_sequence, block_size) if at_mask_edges else None
    tokens = cut_tokens(batch, block_size, chunk_edges, edges)
    return BlockGraph(
        spec=spec,
        groups=groups,
        block_size=block_size,
        q_lengths=np.array(batch.q_lengths, dtype=np.int64),
        kv_lengths=np.array(batch.kv_lengths, dtype=np.int64),
        sequence_slices=table,
        slice_sequence=table_sequence,
        **_block_columns(tokens, table, table_sequence, len(groups), block_size),
    )


def cut_finer(blocks: BlockGraph, owner: IntArray, token: IntArray) -> BlockGraph:
    """Cut token blocks again; `token_whole` and `comp_whole` say what each is a piece of.

    Args:
        blocks: What to cut.
        owner: Token block of each new edge, ascending, [n].
        token: Edge inside it, counted from its first token and ascending, [n].
    """
    first = np.concatenate([np.zeros(blocks.num_token_blocks, dtype=np.int64), token])
    parent = np.concatenate([np.arange(blocks.num_token_blocks), owner])
    order = np.lexsort((first, parent))
    first, parent = first[order], parent[order]
    end = np.append(first[1:], 0)
    last = np.append(parent[1:] != parent[:-1], True)[: len(parent)]
    tokens = TokenBlocks(
        seq=blocks.token_seq[parent],
        start=blocks.token_start[parent] + first,
        length=np.where(last, blocks.token_length[parent], end) - first,
        side=blocks.token_side[parent],
        whole=blocks.token_whole[parent],
    )
    columns = _block_columns(
        tokens,
        blocks.sequence_slices,
        blocks.slice_sequence,
        len(blocks.groups),
        blocks.block_size,
    )
    return replace(blocks, **columns)


def _check_least(batch: Batch, groups: int, block_size: int) -> None:
    """Refuse, before there are arrays of blocks, what has too many however it is cut."""
    sides = (batch.q_lengths, batch.kv_lengths) if batch.is_cross else (batch.q_lengths,)
    tokens = sum(-(-length // block_size) for lengths in sides for length in lengths)
    computations = -(-batch.allowed_pairs // block_size**2) * groups
    _check_count(f"at least {tokens} token blocks", tokens, block_size)
    _check_count(f"at least {computations} computation blocks", computations, block_size)


def _check_count(what: str, count: int, block_size: int) -> None:
    if count > MOST_BLOCKS:
        raise SpecError(
            f"blocks of at most {block_size} tokens would be {what}, more than can be planned; "
            f'legal: at most {MOST_BLOCKS}; take a larger block_size, or "auto"'
        )


def _block_columns(
    tokens: TokenBlocks, table: IntArray, table_sequence: IntArray, groups: int, block_size: int
) -> dict[str, Any]:
    """Token blocks, and the computation blocks that a table of slices gives them."""
    pieces = _pieces(tokens, table, table_sequence, groups, block_size)
    q, kv, pairs, mask, mask_ptr, mask_slices = _merge_pieces(tokens, pieces)
    return {
        "token_seq": tokens.seq,
        "token_start": tokens.start,
        "token_length": tokens.length,
        "token_side": tokens.side,
        "token_whole": tokens.whole,
        "comp_q": np.repeat(q, groups),
        "comp_kv": np.repeat(kv, groups),
        "comp_group": np.tile(np.arange(groups), len(q)),
        "comp_pairs": np.repeat(pairs, groups),
        "comp_mask": np.repeat(mask, groups),
        "mask_ptr": mask_ptr,
        "mask_slices": mask_slices,
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pieces:
    """The part of one mask slice inside one (query block, key block)."""

    q: IntArray
    kv: IntArray
    pairs: IntArray
    rows: IntArray  # slice in sequence coordinates, [n, 6]


def _sequence_slices(batch: Batch) -> tuple[IntArray, IntArray]:
    tables = [batch.sequence_slices(index) for index in range(len(batch))]
    counts = np.array([len(table) for table in tables], dtype=np.int64)
    table = np.concatenate(tables) if tables else np.zeros((0, 6), dtype=np.int64)
    return table, np.repeat(np.arange(len(tables)), counts)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Axis:
    """Token blocks of one side on one line, sequence after sequence, to search by position."""

    block: IntArray
    begin: IntArray
    sequence_base: IntArray

    @classmethod
    def of(cls, tokens: TokenBlocks, other_side: Side, sequences: int) -> _Axis:
        block = np.flatnonzero(tokens.side != other_side)
        length = tokens.length[block]
        totals = np.zeros(sequences, dtype=np.int64)
        np.add.at(totals, tokens.seq[block], length)
        base = np.cumsum(totals) - totals
        return cls(
            block=block,
            begin=base[tokens.seq[block]] + tokens.start[block],
            sequence_base=base,
        )

    def span(self, seq: IntArray, first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
        """Positions of the blocks that hold tokens first … last (inclusive) of a sequence."""
        base = self.sequence_base[seq]
        low = np.searchsorted(self.begin, base + first, side="right") - 1
        high = np.searchsorted(self.begin, base + last, side="right") - 1
        return low, high


def _pieces(
    tokens: TokenBlocks, table: IntArray, table_sequence: IntArray, groups: int, block_size: int
) -> _Pieces:
    sequences = int(table_sequence.max(initial=-1)) + 1
    sequences = max(sequences, int(tokens.seq.max(initial=-1)) + 1)
    q_axis = _Axis.of(tokens, Side.KEY, sequences)
    kv_axis = _Axis.of(tokens, Side.QUERY, sequences)

    low, high = q_axis.span(table_sequence, table[:, 0], table[:, 1] - 1)
    row, position = expand_runs(low, high - low + 1)
    q_block = q_axis.block[position]
    slices = table[row]

    # Rows of a slice see intervals of keys whose ends never fall from row to row, so the keys
    # of a block of rows lie between the first row's first key and the last row's last one.
    first_row = np.maximum(slices[:, 0], tokens.start[q_block])
    last_row = np.minimum(slices[:, 1], tokens.start[q_block] + tokens.length[q_block]) - 1
    first_key = np.maximum(slices[:, 2], first_row + slices[:, 4])
    last_key = np.minimum(slices[:, 3] - 1, last_row + slices[:, 5])
    some = first_key <= last_key
    row, q_block, slices = row[some], q_block[some], slices[some]
    low, high = kv_axis.span(table_sequence[row], first_key[some], last_key[some])
    count = int((high - low + 1).sum()) * groups
    _check_count(f"up to {count} computation blocks", count, block_size)
    parent, position = expand_runs(low, high - low + 1)
    kv_block = kv_axis.block[position]
    q_block, slices = q_block[parent], slices[parent]

    pairs = slice_ops.area(slices, *_rectangle(tokens, q_block, kv_block))
    some = pairs > 0
    return _Pieces(q=q_block[some], kv=kv_block[some], pairs=pairs[some], rows=slices[some])


def _rectangle(
    tokens: TokenBlocks, q: IntArray, kv: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    q0, k0 = tokens.start[q], tokens.start[kv]
    return q0, q0 + tokens.length[q], k0, k0 + tokens.length[kv]


def _merge_pieces(
    tokens: TokenBlocks, pieces: _Pieces
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Computation blocks (q, kv, pairs, mask) and the mask table (ptr, slices)."""
    key = pieces.q * len(tokens.seq) + pieces.kv
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    pairs = np.add.reduceat(pieces.pairs[order], starts) if len(starts) else pieces.pairs
    q, kv = pieces.q[order][starts], pieces.kv[order][starts]

    comp = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(key)))
    partial = pairs < tokens.length[q] * tokens.length[kv]
    keep = partial[comp]
    q0, q1, k0, k1 = _rectangle(tokens, q[comp[keep]], kv[comp[keep]])
    local = slice_ops.clip(pieces.rows[order][keep], q0, q1, k0, k1)
    local = slice_ops.shift(local, q0, k0)
    mask, mask_ptr, mask_slices = _shared_masks(comp[keep], local, len(starts))
    return q, kv, pairs, mask, mask_ptr, mask_slices


def _shared_masks(
    comp: IntArray, rows: IntArray, num_comps: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Number equal sets of rows once: mask of every computation block, ptr and slices.

    Args:
        comp: Computation block of each row, ascending, [n].
        rows: Block-local slices in canonical form, [n, 6].
        num_comps: Number of computation blocks; those without rows get mask 0.
    """
    mask = np.zeros(num_comps, dtype=np.int64)
    distinct, row_id = np.unique(rows, axis=0, return_inverse=True)
    row_id = row_id.reshape(-1)
    starts = np.flatnonzero(np.diff(comp, prepend=-1))
    sizes = np.diff(starts, append=len(comp))
    tables, table_sizes, next_mask = [], [np.zeros(1, dtype=np.int64)], 1
    for size in np.unique(sizes):
        where = starts[sizes == size]
        sets = row_id[where[:, None] + np.arange(size)]
        sets.sort(axis=1)
        distinct_sets, set_id = np.unique(sets, axis=0, return_inverse=True)
        mask[comp[where]] = next_mask + set_id.reshape(-1)
        next_mask += len(distinct_sets)
        tables.append(distinct[distinct_sets.reshape(-1)])
        table_sizes.append(np.full(len(distinct_sets), size))
    sizes_of = np.concatenate(table_sizes)
    ptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes_of)])
    return mask, ptr, np.concatenate(tables) if tables else np.zeros((0, 6), dtype=np.int64)
