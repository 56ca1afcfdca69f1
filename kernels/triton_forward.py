"""Forward attention of many query blocks in one launch, in Triton.

A program takes a tile of queries of one head and goes through every key block that its row of
the table lists, wherever in memory that block stands, keeping the running maximum and sum of the
softmax (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1; Dao 2023, algorithm 1). An
accumulator that already holds a partial result enters as what has been seen before.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from dcp.kernels.triton_device import (
    LOG2E,
    allowed,
    cut_slice,
    device_function,
    load_rows,
    masked_tile,
    masked_tiles,
    read,
    slice_bounds,
    store_rows,
    view_of,
)

LN2 = tl.constexpr(0.6931471805599453)


@device_function
def absorb(acc, top, total, scores, v):
    """Take the scores (base 2) and values of one tile of keys into the running softmax."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen no key yet has maximum -inf, and -inf - -inf would be NaN.
    reference = tl.where(new_top == float("-inf"), 0.0, new_top)
    kept = tl.exp2(top - reference)
    weights = tl.exp2(scores - reference[:, None])
    total = total * kept + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * kept[:, None], input_precision="ieee")
    return acc, new_top, total


@triton.jit
def forward_kernel(
    q_home,
    q_arena,
    k_home,
    k_arena,
    v_home,
    v_arena,
    out,
    lse,
    tiles,
    rows,
    items,
    slices,
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
        q_home, q_arena, k_home, k_arena, v_home, v_arena: The two tensors that blocks of each
            role may lie in.
        out, lse: Accumulators, float32.
        tiles: (row, first query, head) of each program.
        rows: ROW numbers a query block: length, 1 if its accumulator is empty, first and last
            item, query heads a key head, then the views of q, out and lse.
        items: ITEM numbers a key block: first and last slice, then the views of k and v.
        slices: (q0, q1, k0, k1, lo, hi) each, in coordinates of the two blocks.
        scale_log2: Factor on the scores, times log2(e).
    """
    tile = tiles + tl.program_id(0) * 3
    row = rows + tl.load(tile) * ROW
    begin, head = read(tile, 1), read(tile, 2)
    length = read(row, 0)
    end = tl.minimum(begin + TILE_Q, length)
    queries = begin + tl.arange(0, TILE_Q)
    q_first, q_stride = view_of(row, 5, q_home, q_arena, head, UNIT)
    q = load_rows(q_first, q_stride, queries, length, HEAD_DIM, PADDED)

    out_first, out_stride = view_of(row, 9, out, out, head, UNIT)
    lse_first, lse_stride = view_of(row, 13, lse, lse, head, 1)
    lse_at = lse_first + queries * lse_stride
    held = tl.where(read(row, 1) == 0, length, 0)
    top = tl.load(lse_at, mask=queries < held, other=float("-inf")) * LOG2E
    total = tl.where(top == float("-inf"), 0.0, 1.0)
    acc = load_rows(out_first, out_stride, queries, held, HEAD_DIM, PADDED)

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
                acc, top, total = absorb(acc, top, total, scores, v)
            for masked in range(0, masked_tiles(left, inner, right, last, TILE_K)):
                start, limit = masked_tile(masked, left, inner, right, last, TILE_K)
                keys = start + tl.arange(0, TILE_K)
                k = load_rows(k_first, k_stride, keys, limit, HEAD_DIM, PADDED)
                v = load_rows(v_first, v_stride, keys, limit, HEAD_DIM, PADDED)
                scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
                seen = allowed(queries, keys, limit, r0, r1, lo, hi)
                scores = tl.where(seen, scores, float("-inf"))
                acc, top, total = absorb(acc, top, total, scores, v)

    seen_some = total > 0.0
    divisor = tl.where(seen_some, total, 1.0)
    acc = acc / divisor[:, None]
    store_rows(out_first, out_stride, queries, length, acc, HEAD_DIM, PADDED)
    log = tl.where(seen_some, (top + tl.log2(divisor)) * LN2, float("-inf"))
    tl.store(lse_at, log, mask=queries < length)
