"""Gradients of the keys and values of many blocks in one launch, in Triton (Dao 2023, algorithm 2).

A program takes a tile of keys of one key head and goes through the query blocks of its row and
all query heads that read the key head, in a fixed order. So the sum over heads needs no atomics
and has the same bits in every run. All matrices are transposed: rows are keys.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from dcp.kernels.triton_device import (
    allowed,
    base2_lse,
    cut_slice,
    device_function,
    load_rows,
    load_sums,
    masked_tile,
    masked_tiles,
    read,
    slice_bounds,
    store_rows,
    view_of,
)


@device_function
def accumulate(dk, dv, scores, v, q, dout, lse, delta):
    """Add what one tile of queries contributes; scores [keys, queries] in base 2."""
    weights = tl.exp2(scores - lse[None, :])
    dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision="ieee")
    dweights = tl.dot(v, tl.trans(dout), input_precision="ieee")
    dscores = (weights * (dweights - delta[None, :])).to(q.dtype)
    return tl.dot(dscores, q, dk, input_precision="ieee"), dv


@triton.jit
def backward_dkv_kernel(
    q_home,
    q_arena,
    k_home,
    k_arena,
    v_home,
    v_arena,
    dout_home,
    dout_arena,
    lse_home,
    lse_arena,
    delta_home,
    delta_arena,
    dk_sum,
    dv_sum,
    tiles,
    rows,
    items,
    slices,
    scale,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_K: tl.constexpr,
    UNIT: tl.constexpr,
    ROW: tl.constexpr,
    ITEM: tl.constexpr,
):
    """One tile of keys of one key head.

    Args:
        q_home, q_arena, k_home, k_arena, v_home, v_arena, dout_home, dout_arena, lse_home,
            lse_arena, delta_home, delta_arena: The two tensors that blocks of each role may lie in.
        dk_sum, dv_sum: Accumulators, float32.
        tiles: (row, first key, key head) of each program.
        rows: ROW numbers a key block: length, 1 if its accumulators are empty, first and last
            item, query heads a key head, then the views of k, v, dk and dv.
        items: ITEM numbers a query block: first and last slice, then the views of q, dout, lse
            and delta.
        slices: (q0, q1, k0, k1, lo, hi) each, in coordinates of the two blocks.
        scale: Factor on the scores.
        scale_log2: The same times log2(e).
    """
    tile = tiles + tl.program_id(0) * 3
    row = rows + tl.load(tile) * ROW
    begin, kv_head = read(tile, 1), read(tile, 2)
    length = read(row, 0)
    end = tl.minimum(begin + TILE_K, length)
    keys = begin + tl.arange(0, TILE_K)
    k_first, k_stride = view_of(row, 5, k_home, k_arena, kv_head, UNIT)
    v_first, v_stride = view_of(row, 9, v_home, v_arena, kv_head, UNIT)
    k = load_rows(k_first, k_stride, keys, length, HEAD_DIM, PADDED)
    v = load_rows(v_first, v_stride, keys, length, HEAD_DIM, PADDED)

    dk = tl.zeros([TILE_K, PADDED], dtype=tl.float32)
    dv = tl.zeros([TILE_K, PADDED], dtype=tl.float32)
    ratio = read(row, 4)
    first_item = read(row, 2)
    # Items and heads in one loop: every query head of an item in turn.
    for step in range(0, (read(row, 3) - first_item) * ratio):
        item = items + (first_item + step // ratio) * ITEM
        head = kv_head * ratio + step % ratio
        q_first, q_stride = view_of(item, 2, q_home, q_arena, head, UNIT)
        dout_first, dout_stride = view_of(item, 6, dout_home, dout_arena, head, UNIT)
        lse_first, lse_stride = view_of(item, 10, lse_home, lse_arena, head, 1)
        delta_first, delta_stride = view_of(item, 14, delta_home, delta_arena, head, 1)
        for index in range(read(item, 0), read(item, 1)):
            r0, r1, c0, c1, lo, hi = slice_bounds(slices, index, True)
            left, inner, right, last = cut_slice(r0, r1, c0, c1, lo, hi, begin, end, TILE_Q)
            for start in range(inner, right, TILE_Q):
                queries = start + tl.arange(0, TILE_Q)
                q = load_rows(q_first, q_stride, queries, None, HEAD_DIM, PADDED)
                dout = load_rows(dout_first, dout_stride, queries, None, HEAD_DIM, PADDED)
                lse = base2_lse(tl.load(lse_first + queries * lse_stride))
                delta = tl.load(delta_first + queries * delta_stride)
                scores = tl.dot(k, tl.trans(q), input_precision="ieee") * scale_log2
                dk, dv = accumulate(dk, dv, scores, v, q, dout, lse, delta)
            for masked in range(0, masked_tiles(left, inner, right, last, TILE_Q)):
                start, limit = masked_tile(masked, left, inner, right, last, TILE_Q)
                queries = start + tl.arange(0, TILE_Q)
                q = load_rows(q_first, q_stride, queries, limit, HEAD_DIM, PADDED)
                dout = load_rows(dout_first, dout_stride, queries, limit, HEAD_DIM, PADDED)
                lse = base2_lse(load_sums(lse_first, lse_stride, queries, limit))
                delta = load_sums(delta_first, delta_stride, queries, limit)
                scores = tl.dot(k, tl.trans(q), input_precision="ieee") * scale_log2
                seen = allowed(keys, queries, limit, r0, r1, lo, hi)
                scores = tl.where(seen, scores, float("-inf"))
                dk, dv = accumulate(dk, dv, scores, v, q, dout, lse, delta)

    held = tl.where(read(row, 1) == 0, length, 0)
    dk_first, dk_stride = view_of(row, 13, dk_sum, dk_sum, kv_head, UNIT)
    before = load_rows(dk_first, dk_stride, keys, held, HEAD_DIM, PADDED)
    store_rows(dk_first, dk_stride, keys, length, before + dk * scale, HEAD_DIM, PADDED)
    dv_first, dv_stride = view_of(row, 17, dv_sum, dv_sum, kv_head, UNIT)
    before = load_rows(dv_first, dv_stride, keys, held, HEAD_DIM, PADDED)
    store_rows(dv_first, dv_stride, keys, length, before + dv, HEAD_DIM, PADDED)
