"""How little any placement within the same limits could send; docs/placement.md has the proof."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dcp.blocks import BlockGraph
from dcp.placement import PlacementProblem
from dcp.row_lengths import RowLengths
from dcp.sequence_bounds import Sequence, Terms, bytes_to_balance, bytes_to_complete_rows

_ROW_LENGTHS = 8


def lower_bound_bytes(blocks: BlockGraph, problem: PlacementProblem) -> int:
    """A bound on the forward volume of every placement that keeps the problem's limits.

    It holds for blocks cut in any other way too, as long as the limits are these.
    """
    if problem.cluster.num_devices == 1 or not blocks.comp_pairs.any():
        return 0
    q_tokens = int((blocks.token_length * blocks.has_q).sum())
    kv_tokens = int((blocks.token_length * blocks.has_kv).sum())
    terms = Terms(
        devices=problem.cluster.num_devices,
        groups=len(blocks.groups),
        most_tokens=problem.token_allowance,
        most_pairs=_most_flops(problem) / int(blocks.flops_a_pair.min()),
        q_bytes=float(problem.q_side_bytes.sum(axis=0).min() / q_tokens),
        kv_bytes=float(problem.kv_side_bytes.sum(axis=0).min() / kv_tokens),
    )
    least = sum(
        max(bytes_to_balance(terms, sequence), bytes_to_complete_rows(terms, sequence))
        for sequence in _too_long(blocks, terms)
    )
    return math.ceil(least * (1 - 1e-9))  # less by more than sums of floats may err


def _most_flops(problem: PlacementProblem) -> float:
    """The most that the limits allow any device."""
    mean = problem.node_compute_limit / problem.cluster.devices_per_node
    # A node's devices may have (1 + ε) × their mean, or a packing: at most one block above it.
    inside = max((1 + problem.limits.intra_node) * mean, mean + float(problem.whole_flops.max()))
    return min(inside, problem.overall_compute_limit)


def _too_long(blocks: BlockGraph, terms: Terms) -> Iterator[Sequence]:
    """Sequences that no device can hold and compute alone."""
    count, table, owner = len(blocks.q_lengths), blocks.sequence_slices, blocks.slice_sequence
    tokens, pairs = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.add.at(tokens, blocks.token_seq, blocks.token_length)
    np.add.at(pairs, blocks.token_seq[blocks.comp_q], blocks.comp_pairs)
    looks_ahead = np.zeros(count, dtype=bool)
    looks_ahead[owner[table[:, 5] > 0]] = True
    rows = RowLengths.of(table, owner)
    longest = rows.longest(count)
    is_cross = not (blocks.has_q & blocks.has_kv).any()
    too_long = (pairs > 0) & ((tokens > terms.most_tokens) | (pairs > terms.most_pairs))
    for index in np.flatnonzero(too_long).tolist():
        lengths = np.linspace(0, longest[index], _ROW_LENGTHS + 1).astype(np.int64)[1:]
        lengths = np.unique(np.append(lengths, min(terms.most_tokens + 1, longest[index])))
        lengths = lengths[lengths > 0]
        yield Sequence(
            tokens=int(tokens[index]),
            pairs=int(pairs[index]) // terms.groups,
            longest_row=int(longest[index]),
            row_lengths=lengths,
            rows_as_long=rows.at_least(index, lengths),
            is_cross=is_cross,
            is_causal=not (is_cross or looks_ahead[index]),
        )
