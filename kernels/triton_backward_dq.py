"""Gradient of the queries of many blocks in one launch, in Triton (Dao 2023, algorithm 2).

As in forward, a program takes a tile of queries and goes through the key blocks of its row. What
it adds up stays with it, so no two programs write to one place and the result has the same bits
in every run.
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
def score_gradients(scores, lse, delta, dout, v):
    """Gradients of one tile of scores (base 2), without the scale."""
    weights = tl.exp2(scores - lse[:, None])
    dweights = tl.dot(dout, tl.trans(v), input_precision="ieee")
    return (weights * (dweights - delta[:, None])).to(v.dtype)


@triton.jit
def backward_dq_kernel(
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
    dq,
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
    """One tile of queries of one head.

    Args:
        q_home, q_arena, k_home, k_arena, v_home, v_arena, dout_home, dout_arena, lse_home,
            lse_arena, delta_home, delta_arena: The two tensors that blocks of each role may lie in.
        dq: Accumulator, float32.
        tiles: (row, first query, head) of each program.
        rows: ROW numbers a query block: length, 1 if its accumulator is empty, first and last
            item, query heads a key head, then the views of q, dout, dq, lse and delta.
        items: ITEM numbers a key block: first and last slice, then the views of k and v.
        slices: (q0, q1, k0, k1, lo, hi) each, in coordinates of the two blocks.
        scale: Factor on the scores.
        scale_log2: The same times log2(e).
    """
    tile = tiles + tl.program_id(0) * 3
    row = rows + tl.load(tile) * ROW
    begin, head = read(tile, 1), read(tile, 2)
    length = read(row, 0)
    end = tl.minimum(begin + TILE_Q, length)
    queries = begin + tl.arange(0, TILE_Q)
    q_first, q_stride = view_of(row, 5, q_home, q_arena, head, UNIT)
    dout_first, dout_stride = view_of(row, 9, dout_home, dout_arena, head, UNIT)
    q = load_rows(q_first, q_stride, queries, length, HEAD_DIM, PADDED)
    dout = load_rows(dout_first, dout_stride, queries, length, HEAD_DIM, PADDED)
    lse_first, lse_stride = view_of(row, 17, lse_home, lse_arena, head, 1)
    delta_first, delta_stride = view_of(row, 21, delta_home, delta_arena, head, 1)
    lse = base2_lse(load_sums(lse_first, lse_stride, queries, length))
    delta = load_sums(delta_first, delta_stride, queries, length)

    acc = tl.zeros([TILE_Q, PADDED], dtype=tl.float32)
    kv_head = head // read(row, 4)
    for number in range(read(row, 2), read(row, 3)):
        item = items + number * ITEM
        k_first, k_stride = view_of(item, 2, k_home, k_arena, kv_head, UNIT)
        v_first, v_stride = view_of(item, 6, v_home, v_arena, kv_head, UNIT)
        for index in range(read(item, 0), read(item, 1)):
            r0, r1, c0, c1, lo, hi = slice_bounds(slices, index, False)
            left, inner, right, last = cut_slice(r0, r1, c0, c1, lo, hi, begin, end, TILE_K)
            for start in range(inner, right, TILE_K):
                keys = start + tl.arange(0, TILE_K)
                k = load_rows(k_first, k_stride, keys, None, HEAD_DIM, PADDED)
                v = load_rows(v_first, v_stride, keys, None, HEAD_DIM, PADDED)
                scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
                dscores = score_gradients(scores, lse, delta, dout, v)
                acc = tl.dot(dscores, k, acc, input_precision="ieee")
            for masked in range(0, masked_tiles(left, inner, right, last, TILE_K)):
                start, limit = masked_tile(masked, left, inner, right, last, TILE_K)
                keys = start + tl.arange(0, TILE_K)
                k = load_rows(k_first, k_stride, keys, limit, HEAD_DIM, PADDED)
                v = load_rows(v_first, v_stride, keys, limit, HEAD_DIM, PADDED)
                scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
                seen = allowed(queries, keys, limit, r0, r1, lo, hi)
                scores = tl.where(seen, scores, float("-inf"))
                dscores = score_gradients(scores, lse, delta, dout, v)
                acc = tl.dot(dscores, k, acc, input_precision="ieee")

    dq_first, dq_stride = view_of(row, 13, dq, dq, head, UNIT)
    held = tl.where(read(row, 1) == 0, length, 0)
    before = load_rows(dq_first, dq_stride, queries, held, HEAD_DIM, PADDED)
    store_rows(dq_first, dq_stride, queries, length, before + acc * scale, HEAD_DIM, PADDED)
