"""Sizes of the tiles that the Triton attention kernels work on."""

from __future__ import annotations

from typing import NamedTuple

import torch

LARGEST_HEAD_DIM = 256
_LOG2E = 1.4426950408889634
_SMALLEST = 16  # of any side of a matrix product on tensor cores


class Tiling(NamedTuple):
    """Queries and keys of a tile, warps of a program, stages of its software pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


MERGE = Tiling(32, 32, 4, 2)
COPY = Tiling(32, 32, 4, 1)
_MOST_COLUMNS = 128  # that a program copies at a time


# By padded head dimension. Chosen so that a program's tiles fit the registers and the shared
# memory of an A100 (163 KiB) and later; compiled for sm_80 and sm_90, not tuned on a GPU.
_HALF_FORWARD = {
    16: Tiling(128, 64, 4, 3),
    32: Tiling(128, 64, 4, 3),
    64: Tiling(128, 64, 4, 3),
    128: Tiling(128, 64, 8, 2),
    256: Tiling(64, 32, 8, 2),
}
_HALF_BACKWARD = {
    16: Tiling(64, 64, 4, 2),
    32: Tiling(64, 64, 4, 2),
    64: Tiling(64, 64, 4, 2),
    128: Tiling(64, 64, 8, 2),
    256: Tiling(32, 32, 8, 1),
}
# float32 products that are not rounded to TF32 run outside of the tensor cores, and every thread
# holds whole rows of both factors.
_SINGLE = {
    16: Tiling(32, 32, 4, 2),
    32: Tiling(32, 32, 4, 1),
    64: Tiling(32, 32, 4, 2),
    128: Tiling(32, 32, 8, 1),
    256: Tiling(16, 16, 8, 1),
}


def padded_head_dim(head_dim: int) -> int:
    """The power of two that rows of head_dim elements are padded to in registers."""
    return max(_SMALLEST, 1 << (head_dim - 1).bit_length())


def tiling(dtype: torch.dtype, head_dim: int, *, backward: bool) -> Tiling:
    """Tile sizes for a dtype and a head dimension of at most LARGEST_HEAD_DIM."""
    half = _HALF_BACKWARD if backward else _HALF_FORWARD
    return (_SINGLE if dtype == torch.float32 else half)[padded_head_dim(head_dim)]


def attention_constants(tile: Tiling, head_dim: int, scale: float) -> dict[str, float]:
    """Numbers and compile-time constants of the attention kernels, forward and backward."""
    return {
        "scale_log2": scale * _LOG2E,
        "HEAD_DIM": head_dim,
        "PADDED": padded_head_dim(head_dim),
        "TILE_Q": tile.queries,
        "TILE_K": tile.keys,
    }


def merge_constants(head_dim: int) -> dict[str, float]:
    """Compile-time constants of the merging kernel."""
    return {"HEAD_DIM": head_dim, "PADDED": padded_head_dim(head_dim), "TILE": MERGE.queries}


def copy_constants(columns: int) -> dict[str, float]:
    """Compile-time constants of the copying kernel, for rows of at most so many elements."""
    padded = 1 << (columns - 1).bit_length()
    return {"TILE": COPY.queries, "COLUMNS": min(padded, _MOST_COLUMNS)}
