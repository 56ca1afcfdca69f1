"""Placed blocks cut again, so that only tokens that a device needs are sent to it.

A device that computes a corner of a (query block, key block) rectangle may need a few of its
tokens only: of a sliding window's halo of window - 1 tokens, a part of the last block. Blocks
travel whole, so where that wastes bytes the token block is cut between the tokens that are needed
elsewhere and the others. Pieces have the home of their whole, and pieces of a computation block
its device, so tokens and work stay where they are, and the order of tokens on each device too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import IntArray
from dcp.blocks import BlockGraph, Kind
from dcp.cutting import cut_finer
from dcp.placement import Assignment

_LEAST_SHARE = 8
"""A cut saves at least the bytes of an eighth of a full block's keys and values.

Finer blocks are not free: more of them to plan, and smaller rectangles for kernels to merge.
"""


def cut_to_need(blocks: BlockGraph, answer: Assignment) -> tuple[BlockGraph, Assignment]:
    """Cut token blocks where that lets fewer bytes travel under this placement.

    Returns:
        Finer blocks and their placement, or what was given where no cut is worth it.
    """
    owner, token = _cuts(_needs(blocks, answer), blocks)
    if not len(owner):
        return blocks, answer
    pieces = cut_finer(blocks, owner, token)
    count, groups = blocks.num_token_blocks, len(blocks.groups)
    parent = np.repeat(np.arange(count), 1 + np.bincount(owner, minlength=count))
    whole_key = (blocks.comp_q * count + blocks.comp_kv) * groups + blocks.comp_group
    key = (parent[pieces.comp_q] * count + parent[pieces.comp_kv]) * groups + pieces.comp_group
    whole = np.searchsorted(whole_key, key)
    return pieces, Assignment(answer.token_home[parent], answer.comp_device[whole])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Needs:
    """Tokens that devices need of token blocks, or pieces of them, whose home is elsewhere.

    Attributes:
        piece: What is needed in part, [n].
        first, end: The tokens, counted within the token block, [n].
        weight: Bytes a token, [n].
    """

    piece: IntArray
    first: IntArray
    end: IntArray
    weight: IntArray


def _needs(blocks: BlockGraph, answer: Assignment) -> _Needs:
    """One row for every data block (queries with outputs as one) and device that it is sent to."""
    bounds = _mask_bounds(blocks)
    query_bytes = blocks.data_bytes[Kind.Q] + blocks.data_bytes[Kind.O]
    sides = [
        _needs_of(blocks, answer, blocks.comp_q, *bounds[:2], query_bytes),
        _needs_of(blocks, answer, blocks.comp_kv, *bounds[2:], blocks.data_bytes[Kind.KV]),
    ]
    piece, first, end, weight = np.concatenate(sides, axis=1)
    return _Needs(piece=piece, first=first, end=end, weight=weight)


def _mask_bounds(blocks: BlockGraph) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """First query, end of queries, first key and end of keys of every computation block, [C]."""
    rows, masks = blocks.mask_slices, blocks.mask_ptr[1:-1]
    partial = blocks.comp_mask > 0
    number = blocks.comp_mask[partial] - 1
    bounds = []
    for column, block in enumerate((blocks.comp_q, blocks.comp_q, blocks.comp_kv, blocks.comp_kv)):
        bound = blocks.token_length[block] if column % 2 else np.zeros_like(block)
        if len(number):
            extreme = np.maximum if column % 2 else np.minimum
            bound[partial] = extreme.reduceat(rows[:, column], masks)[number]
        bounds.append(bound)
    return bounds[0], bounds[1], bounds[2], bounds[3]


def _needs_of(
    blocks: BlockGraph,
    answer: Assignment,
    block: IntArray,
    first: IntArray,
    end: IntArray,
    data_bytes: IntArray,
) -> IntArray:
    """Token block, first and end token and bytes a token of each need of one side, [4, n].

    Blocks that every computation needs whole are left out.
    """
    narrow = np.zeros(blocks.num_token_blocks, dtype=bool)
    narrow[block[(first > 0) | (end < blocks.token_length[block])]] = True
    away = (answer.comp_device != answer.token_home[block]) & narrow[block]
    groups, devices = len(blocks.groups), int(answer.comp_device.max(initial=0)) + 1
    key = (block * groups + blocks.comp_group) * devices + answer.comp_device
    needed, number = np.unique(key[away], return_inverse=True)
    low = np.full(len(needed), blocks.block_size)
    high = np.zeros(len(needed), dtype=np.int64)
    np.minimum.at(low, number, first[away])
    np.maximum.at(high, number, end[away])
    owner, group = np.divmod(needed // devices, groups)
    return np.stack([owner, low, high, data_bytes[owner, group] // blocks.token_length[owner]])


def _cuts(needs: _Needs, blocks: BlockGraph) -> tuple[IntArray, IntArray]:
    """Where to cut: token block and token in it, in order, [n] each.

    Every piece is cut where that saves most, if it saves enough, until none is. Every cut takes
    some bytes off what is sent, so there are at most eight times as many as blocks are sent.
    """
    spec = blocks.spec
    key_bytes = 2 * spec.num_kv_heads * spec.head_dim * spec.dtype_bytes
    least = blocks.block_size * key_bytes / _LEAST_SHARE
    owner, begin = np.arange(blocks.num_token_blocks), np.zeros_like(blocks.token_length)
    end = blocks.token_length
    found: list[IntArray] = [np.zeros((2, 0), dtype=np.int64)]
    while len(needs.piece):
        piece, token, saved = _best_cuts(needs, begin, end)
        piece, token = piece[saved >= least], token[saved >= least]
        found.append(np.stack([owner[piece], token]))
        needs = _parted(needs, piece, token)
        owner = np.repeat(owner[piece], 2)
        begin = np.stack([begin[piece], token], axis=1).reshape(-1)
        end = np.stack([token, end[piece]], axis=1).reshape(-1)
    cuts = np.concatenate(found, axis=1)
    cut_block, cut_token = cuts[:, np.lexsort(cuts[::-1])]
    return cut_block, cut_token


def _best_cuts(
    needs: _Needs, begin: IntArray, end: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """The cut of every piece that saves most: piece, token and bytes saved, [pieces] each.

    A need that lies behind the cut no longer takes what stands before it, and the reverse.
    """
    piece = np.concatenate([needs.piece, needs.piece])
    token = np.concatenate([needs.first, needs.end])
    inside = (token > begin[piece]) & (token < end[piece])
    piece, token = piece[inside], token[inside]
    width = int(end.max()) + 1
    at = piece * width + token
    firsts, first_weight = _cumulated(needs.piece * width + needs.first, needs.weight)
    ends, end_weight = _cumulated(needs.piece * width + needs.end, needs.weight)
    behind = (
        first_weight[np.searchsorted(firsts, (piece + 1) * width)]
        - first_weight[np.searchsorted(firsts, at)]
    )
    before = (
        end_weight[np.searchsorted(ends, at, side="right")]
        - end_weight[np.searchsorted(ends, piece * width)]
    )
    saved = behind * (token - begin[piece]) + before * (end[piece] - token)
    order = np.lexsort((token, -saved, piece))
    best = order[np.flatnonzero(np.diff(piece[order], prepend=-1))]
    return piece[best], token[best], saved[best]


def _cumulated(position: IntArray, weight: IntArray) -> tuple[IntArray, IntArray]:
    """Positions in order, [n], and the weight of all before each of them and of all, [n + 1]."""
    order = np.argsort(position, kind="stable")
    return position[order], np.concatenate([[0], np.cumsum(weight[order])])


def _parted(needs: _Needs, piece: IntArray, token: IntArray) -> _Needs:
    """Needs of the pieces that are cut: piece i becomes 2i and 2i + 1; the others are done."""
    mine = np.isin(needs.piece, piece)
    index = np.searchsorted(piece, needs.piece[mine])
    first, end, weight, cut = needs.first[mine], needs.end[mine], needs.weight[mine], token[index]
    left, right = first < cut, end > cut
    return _Needs(
        piece=np.concatenate([2 * index[left], 2 * index[right] + 1]),
        first=np.concatenate([first[left], np.maximum(first, cut)[right]]),
        end=np.concatenate([np.minimum(end, cut)[left], end[right]]),
        weight=np.concatenate([weight[left], weight[right]]),
    )
