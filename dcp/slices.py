"""The algebra of mask slices, under one name.

Single slices: canonical form, area, clipping. Sets of disjoint slices: set operations. Dense
matrices: conversion in both directions.
"""

from __future__ import annotations

from dcp.mask_algebra import (
    complement,
    intersect,
    overlapping,
    overlaps,
    simplify,
    subtract,
    union,
)
from dcp.mask_dense import from_dense, from_row_stripes, to_dense
from dcp.mask_geometry import (
    FAR,
    area,
    as_slices,
    clip,
    normalize,
    row_has_key,
    shift,
    size,
    tighten,
)

__all__ = [
    "FAR",
    "area",
    "as_slices",
    "clip",
    "complement",
    "from_dense",
    "from_row_stripes",
    "intersect",
    "normalize",
    "overlapping",
    "overlaps",
    "row_has_key",
    "shift",
    "simplify",
    "size",
    "subtract",
    "tighten",
    "to_dense",
    "union",
]
