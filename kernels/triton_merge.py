"""Reduction of partial outputs into many accumulators in one launch, in Triton.

Outputs merge by their lse (Dao et al. 2022, section 3.1). A program takes a tile of tokens of one
accumulator and goes through its partials in the order of the table, so the result has the same
bits in every run.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from dcp.kernels.triton_device import device_function, load_rows, read, store_rows, view_of


@device_function
def add_exponentials(a, b):
    """log(e^a + e^b), and the share of each; two of -inf give -inf and no NaN."""
    top = tl.maximum(a, b)
    reference = tl.where(top == float("-inf"), 0.0, top)
    weight_a, weight_b = tl.exp(a - reference), tl.exp(b - reference)
    total = weight_a + weight_b
    divisor = tl.where(total > 0.0, total, 1.0)
    log = tl.where(total > 0.0, reference + tl.log(divisor), float("-inf"))
    return log, weight_a / divisor, weight_b / divisor


@triton.jit
def merge_kernel(
    out,
    lse,
    new_out,
    new_lse,
    tiles,
    rows,
    items,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    ROW: tl.constexpr,
    ITEM: tl.constexpr,
):
    """Merge partial outputs into one tile of one head of an accumulator.

    Args:
        out, lse: Accumulators, float32.
        new_out, new_lse: Where the partials lie.
        tiles: (row, first token, head) of each program.
        rows: ROW numbers an accumulator: length, 1 if it is empty, first and last item, then the
            views of out and lse.
        items: ITEM numbers a partial: the views of its out and lse.
    """
    tile = tiles + tl.program_id(0) * 3
    row = rows + tl.load(tile) * ROW
    head = read(tile, 2)
    length = read(row, 0)
    tokens = read(tile, 1) + tl.arange(0, TILE)
    exists = tokens < length
    held = tl.where(read(row, 1) == 0, length, 0)
    out_first, out_stride = view_of(row, 4, out, out, head, UNIT)
    lse_first, lse_stride = view_of(row, 8, lse, lse, head, 1)
    lse_at = lse_first + tokens * lse_stride
    acc = load_rows(out_first, out_stride, tokens, held, HEAD_DIM, PADDED)
    log = tl.load(lse_at, mask=tokens < held, other=float("-inf"))
    for number in range(read(row, 2), read(row, 3)):
        item = items + number * ITEM
        first, stride = view_of(item, 0, new_out, new_out, head, UNIT)
        new_first, new_stride = view_of(item, 4, new_lse, new_lse, head, 1)
        new = load_rows(first, stride, tokens, length, HEAD_DIM, PADDED).to(tl.float32)
        new_at = new_first + tokens * new_stride
        new_log = tl.load(new_at, mask=exists, other=float("-inf"))
        log, share, new_share = add_exponentials(log, new_log)
        acc = acc * share[:, None] + new * new_share[:, None]
    store_rows(out_first, out_stride, tokens, length, acc, HEAD_DIM, PADDED)
    tl.store(lse_at, log, mask=exists)
