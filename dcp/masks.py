"""Attention masks: what each query may see, as sets of disjoint slices for any length.

``dcp.masks.causal()`` and its kind fit every length; what ``from_dense``, ``from_slices``,
``from_mask_mod`` and ``from_flashmask`` return is bound to the lengths that it was made for.
Masks combine with ``&``, ``|``, ``-``, ``^`` and ``~``.

Query and key lengths may differ. Masks are aligned top-left: query i stands at position i of the
key sequence, so causal means key <= query in absolute indices. Where the queries are a later part
of the key sequence (its tail, say), ``offset`` is the position of the first query.
"""

from __future__ import annotations

from dcp.mask_base import Mask
from dcp.mask_constructors import (
    causal,
    causal_blockwise,
    documents,
    full,
    lambda_mask,
    prefix_lm,
    shared_question,
    sliding_window,
)
from dcp.mask_conversion import from_dense, from_flashmask, from_mask_mod, from_slices

__all__ = [
    "Mask",
    "causal",
    "causal_blockwise",
    "documents",
    "from_dense",
    "from_flashmask",
    "from_mask_mod",
    "from_slices",
    "full",
    "lambda_mask",
    "prefix_lm",
    "shared_question",
    "sliding_window",
]
