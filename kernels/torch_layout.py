"""Views of heads and pieces as torch's fused operators take them: [count, heads, tokens, ...]."""

from __future__ import annotations

from torch import Tensor

from dcp.kernel_interface import accumulator_dtype
from dcp.kernels.torch_pieces import Piece


def folded(x: Tensor, fold: int) -> Tensor:
    """[tokens, heads, ...] as [heads ÷ fold, tokens · fold, ...]: heads become tokens.

    Query heads that share a key head see the same keys, and for the operators a query is a
    query: fewer heads of more tokens are computed faster, and add up the gradients of keys.
    """
    tokens, heads, *rest = x.shape
    if fold == 1:
        return x.transpose(0, 1)
    if fold == heads:
        return x.reshape(1, tokens * heads, *rest)
    groups = x.reshape(tokens, heads // fold, fold, *rest).transpose(0, 1)
    return groups.reshape(heads // fold, tokens * fold, *rest)


def unfolded(x: Tensor, tokens: int) -> Tensor:
    """The inverse of `folded`."""
    heads, rows, *rest = x.shape
    fold = rows // tokens
    groups = x.reshape(heads, tokens, fold, *rest).transpose(0, 1)
    return groups.reshape(tokens, heads * fold, *rest)


def queries(x: Tensor, piece: Piece, fold: int) -> Tensor:
    """View a piece's queries of [heads, tokens · fold, ...], [count, heads, rows · fold, ...]."""
    return _windows(x, piece.q * fold, piece.rows * fold, piece.repeats, piece.q_step * fold)


def keys(x: Tensor, piece: Piece) -> Tensor:
    """View a piece's keys of [heads, tokens, head_dim], [count, heads, keys, head_dim]."""
    return _windows(x, piece.k, piece.keys, piece.repeats, piece.k_step)


def _windows(x: Tensor, first: int, length: int, count: int, step: int) -> Tensor:
    """View stretches of [heads, tokens, ...] at equal distances, [count, heads, length, ...]."""
    heads, _, *rest = x.shape
    across, along, *strides = x.stride()
    return x.as_strided(
        (count, heads, length, *rest),
        (step * along, across, along, *strides),
        x.storage_offset() + first * along,
    )


def add_to_keys(total: Tensor, new: Tensor, piece: Piece) -> None:
    """Add gradients, [count, heads, keys, head_dim], to those of all keys, which have no count."""
    if piece.k_step:
        keys(total, piece).add_(new)
    else:
        total[:, piece.k : piece.k + piece.keys].add_(summed(new))


def summed(x: Tensor) -> Tensor:
    """Add gradients of the same keys, [count, heads, keys, head_dim], over the count."""
    return x[0] if len(x) == 1 else x.sum(dim=0, dtype=accumulator_dtype(x.dtype))


def joined(x: Tensor) -> Tensor:
    """[count, heads, rows, ...] as [heads, count · rows, ...]."""
    count, heads, rows, *rest = x.shape
    return x.transpose(0, 1).reshape(heads, count * rows, *rest)


def repeated(x: Tensor, heads: int) -> Tensor:
    """[tokens, some heads, head_dim] as [1, heads, tokens, head_dim], heads repeated."""
    tokens, some, head_dim = x.shape
    if some in (1, heads):
        return x.transpose(0, 1).expand(heads, tokens, head_dim)[None]
    grouped = x[:, :, None].expand(tokens, some, heads // some, head_dim)
    return grouped.reshape(tokens, heads, head_dim).transpose(0, 1)[None]


def sum_heads(x: Tensor, kv_heads: int) -> Tensor:
    """Add [heads, tokens, head_dim] over the query heads of each key head, tokens first."""
    heads, tokens, head_dim = x.shape
    if heads == kv_heads:
        return x.transpose(0, 1)
    grouped = x.view(kv_heads, heads // kv_heads, tokens, head_dim)
    return grouped.sum(dim=1, dtype=accumulator_dtype(x.dtype)).transpose(0, 1)
