"""The `torch` kernel: torch's fused attention operators, block by block.

What the operators do not do is done here:

* Blocks of length 0 never reach them (the CPU one kills the process), and rows without keys get
  0 and -inf whatever they answer.
* Masks are cut into rectangles that need none, causal squares, and a small irregular rest with an
  additive tensor; see `torch_pieces`.
* On CPUs query heads that share a key head are computed as tokens of one head, see `_folded`.
  Elsewhere key heads are repeated and their gradients added in the accumulator dtype; the
  operators' own sum over heads rounds to bfloat16 after every head.
* float16 is computed in float32 on CPUs, where torch's own float16 code is several times slower
  and less exact.
* They want the output in backward, where a plan sends delta instead; see `surrogate_out`.

On CUDA float16 and bfloat16 without a mask, or with a causal one, run flash attention; float32
and other masks run memory-efficient attention. That code has never run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dcp.kernel_interface import BlockMask, Kernel, accumulator_dtype
from dcp.kernels import torch_masks, torch_ops, torch_pieces
from dcp.kernels.torch_pieces import Piece, Tuning

_HALF_ROWS = 2048  # of queries, over which the CPU operator may add up in half precision
_TINY = 1e-25  # sums of squares between this and its inverse lost nothing to float32's range


@dataclass(frozen=True, kw_only=True)
class TorchFlash(Kernel):
    """Blockwise attention by torch's fused operators; no options."""

    name: ClassVar[str] = "torch"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        q, k, v = _working(q, k, v)
        parts = _pieces(q, k, mask)
        if len(parts) == 1 and _whole(parts[0], q):
            return _forward_piece(q, k, v, parts[0], scale)
        accumulator = accumulator_dtype(q.dtype)
        out = q.new_zeros(q.shape, dtype=accumulator)
        lse = q.new_full(q.shape[:2], -torch.inf, dtype=accumulator)
        for piece in parts:
            new = _forward_piece(q, k, v, piece, scale)
            rows = slice(piece.q0, piece.q1)
            if piece.fresh:
                out[rows], lse[rows] = new
            else:
                self.merge(out[rows], lse[rows], *new)
        return out, lse

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dout: Tensor,
        lse: Tensor,
        delta: Tensor,
        mask: BlockMask | None,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernel.backward`.

        Checks on the host whether a surrogate output exists, which on a GPU waits for delta.
        """
        if not (len(q) and len(k)):
            return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        q, k, v, dout = _working(q, k, v, dout)
        # A row without any key has lse -inf, and exp(-inf - -inf) is NaN; with 0 it is 0.
        lse = lse.masked_fill(lse == -torch.inf, 0.0)
        out, exists = surrogate_out(dout, delta)
        if not exists:
            return _dense_backward(q, k, v, dout, lse, delta, mask, scale)
        tensors = q, k, v, out, dout, lse
        parts = _pieces(q, k, mask)
        if len(parts) == 1 and _whole(parts[0], q) and _all_keys(parts[0], k):
            return _backward_piece(*tensors, parts[0], scale)
        dq, dk, dv = (x.new_zeros(x.shape, dtype=lse.dtype) for x in (q, k, v))
        for piece in parts:
            new = _backward_piece(*tensors, piece, scale)
            rows = dq[piece.q0 : piece.q1]
            rows.copy_(new[0]) if piece.fresh else rows.add_(new[0])
            dk[piece.k0 : piece.k1].add_(new[1])
            dv[piece.k0 : piece.k1].add_(new[2])
        return dq, dk, dv


def surrogate_out(dout: Tensor, delta: Tensor) -> tuple[Tensor, bool]:
    """Make up an output whose row sums with dout are delta.

    Backward formulas use the output in delta = rowsum(dout ∘ out) only, and plans send delta,
    which is head_dim times smaller. Any output with the right row sums serves the operators; the
    one along dout is the shortest, so no longer than the true one, and its sum adds terms of one
    sign, so rounding it to half precision harms delta less than rounding the true one does. With
    m = rowmax |dout| and u = dout / m it is u · (delta / m) / rowsum(u²), where nothing overflows
    that the true output would not.

    Args:
        dout: [tokens, heads, head_dim].
        delta: [tokens, heads], accumulator dtype.

    Returns:
        out like dout, and whether it exists: where the gradient of lse is part of delta, a row
        may have dout 0 and delta other than 0.
    """
    gradient = dout.to(delta.dtype)
    square = gradient.square().sum(dim=-1)
    if bool(((square >= _TINY) & (square <= 1 / _TINY)).all()):
        # The same in fewer passes, where no square can have over- or underflowed.
        factor = delta / square
        fits = factor.abs() <= torch.finfo(dout.dtype).max
        return (gradient * factor[..., None]).to(dout.dtype), bool(fits.all())
    largest = gradient.abs().amax(dim=-1)
    zero = largest == 0
    unit = gradient / largest.masked_fill(zero, 1.0)[..., None]
    factor = (delta / largest / unit.square().sum(dim=-1)).masked_fill(zero, 0.0)
    exists = (delta.masked_fill(~zero, 0.0) == 0) & (factor.abs() <= torch.finfo(dout.dtype).max)
    return (unit * factor[..., None]).to(dout.dtype), bool(exists.all())


def _dense_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    lse: Tensor,
    delta: Tensor,
    mask: BlockMask | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients as `Kernel.backward` writes them, in the accumulator dtype."""
    heads, kv_heads = q.shape[1], k.shape[1]
    q, k, v, dout = (_repeated(x.to(lse.dtype), heads) for x in (q, k, v, dout))
    scores = scale * (q @ k.mT)
    if mask is not None:
        scores += torch_masks.additive(mask, q.shape[2], k.shape[2], lse.dtype, q.device)
    weights = torch.exp(scores - lse.T[None, ..., None])
    dscores = scale * weights * (dout @ v.mT - delta.T[None, ..., None])
    dk, dv = dscores.mT @ q, weights.mT @ dout
    return _tokens_first(dscores @ k), _sum_heads(dk, kv_heads), _sum_heads(dv, kv_heads)


def _working(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to the dtype to compute in."""
    if tensors[0].dtype == torch.float16 and tensors[0].device.type == "cpu":
        return tuple(x.float() for x in tensors)
    return tensors


def _pieces(q: Tensor, k: Tensor, mask: BlockMask | None) -> tuple[Piece, ...]:
    """The calls that compute a block; none where it is empty."""
    if not (len(q) and len(k)):
        return ()
    if q.device.type != "cpu":
        return torch_pieces.pieces(mask, len(q), len(k), Tuning(heads=1, half=False, strip=0))
    half = q.dtype == torch.bfloat16
    tuning = Tuning(heads=q.shape[1] // k.shape[1], half=half, strip=256 if half else 128)
    return torch_pieces.pieces(mask, len(q), len(k), tuning)


def _whole(piece: Piece, q: Tensor) -> bool:
    return piece.q0 == 0 and piece.q1 == len(q)


def _all_keys(piece: Piece, k: Tensor) -> bool:
    return piece.k0 == 0 and piece.k1 == len(k)


def _forward_piece(
    q: Tensor, k: Tensor, v: Tensor, piece: Piece, scale: float
) -> tuple[Tensor, Tensor]:
    """Return out and lse of a piece's queries over its keys."""
    q, k, v = q[piece.q0 : piece.q1], k[piece.k0 : piece.k1], v[piece.k0 : piece.k1]
    tokens, heads, _ = q.shape
    fold = 1 if piece.causal or q.device.type != "cpu" else heads // k.shape[1]
    rows = heads // fold
    out, lse = torch_ops.forward(
        _folded(q, fold), _repeated(k, rows), _repeated(v, rows), _shape(piece, q, fold, scale)
    )
    out, lse = _unfolded(out, tokens), _unfolded(lse, tokens)
    if piece.mask is not None and not piece.causal:
        empty = torch_masks.rows_without_key(piece.mask, tokens, q.device)
        out.index_fill_(0, empty, 0.0)
        lse.index_fill_(0, empty, -torch.inf)
    return out, lse


def _backward_piece(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    piece: Piece,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq of a piece's queries, dk and dv of its keys."""
    q, out, dout, lse = (x[piece.q0 : piece.q1] for x in (q, out, dout, lse))
    k, v = k[piece.k0 : piece.k1], v[piece.k0 : piece.k1]
    fold = _backward_fold(piece, q, k)
    heads, kv_heads = q.shape[1] // fold, k.shape[1]
    dq, dk, dv = torch_ops.backward(
        _folded(q, fold),
        _repeated(k, heads),
        _repeated(v, heads),
        _folded(out, fold),
        _folded(dout, fold),
        _folded(lse, fold),
        _shape(piece, q, fold, scale),
    )
    return _unfolded(dq, len(q)), _sum_heads(dk, kv_heads), _sum_heads(dv, kv_heads)


def _backward_fold(piece: Piece, q: Tensor, k: Tensor) -> int:
    """How many of the query heads that share a key head to compute as tokens of one head.

    The CPU operator rounds the gradients of keys to its tensors' dtype after every few rows of
    queries, so in half precision it is given few enough rows to lose no more than for one head.
    """
    ratio = q.shape[1] // k.shape[1]
    if piece.causal or q.device.type != "cpu":
        return 1
    if q.dtype != torch.bfloat16:
        return ratio
    fits = (fold for fold in range(ratio, 1, -1) if ratio % fold == 0)
    return next((fold for fold in fits if fold * len(q) <= _HALF_ROWS), 1)


def _shape(piece: Piece, q: Tensor, fold: int, scale: float) -> torch_ops.Shape:
    if piece.mask is None or piece.causal:
        return torch_ops.Shape(piece.causal, None, scale)
    q_len, kv_len = piece.q1 - piece.q0, piece.k1 - piece.k0
    bias = torch_masks.additive(piece.mask, q_len, kv_len, q.dtype, q.device, repeat=fold)
    return torch_ops.Shape(False, bias, scale)


def _folded(x: Tensor, fold: int) -> Tensor:
    """[tokens, heads, ...] as [1, heads ÷ fold, tokens · fold, ...]: heads become tokens.

    Query heads that share a key head see the same keys, and for the operators a query is a
    query: fewer heads of more tokens are computed faster, and add up the gradients of keys.
    """
    tokens, heads, *rest = x.shape
    if fold == 1:
        return x.transpose(0, 1)[None]
    if fold == heads:
        return x.reshape(1, 1, tokens * heads, *rest)
    groups = x.reshape(tokens, heads // fold, fold, *rest).transpose(0, 1)
    return groups.reshape(1, heads // fold, tokens * fold, *rest)


def _unfolded(x: Tensor, tokens: int) -> Tensor:
    """The inverse of `_folded`."""
    _, heads, rows, *rest = x.shape
    fold = rows // tokens
    if fold == 1:
        return x[0].transpose(0, 1)
    groups = x.reshape(heads, tokens, fold, *rest).transpose(0, 1)
    return groups.reshape(tokens, heads * fold, *rest)


def _repeated(x: Tensor, heads: int) -> Tensor:
    """View [tokens, some heads, head_dim] as [1, heads, tokens, head_dim], heads repeated."""
    tokens, some, head_dim = x.shape
    if some in (1, heads):
        return x.transpose(0, 1).expand(heads, tokens, head_dim)[None]
    repeated = x[:, :, None].expand(tokens, some, heads // some, head_dim)
    return repeated.reshape(tokens, heads, head_dim).transpose(0, 1)[None]


def _tokens_first(x: Tensor) -> Tensor:
    return x[0].transpose(0, 1)


def _sum_heads(x: Tensor, kv_heads: int) -> Tensor:
    """Add [1, heads, tokens, head_dim] over the query heads of each key head, tokens first."""
    _, heads, tokens, head_dim = x.shape
    if heads == kv_heads:
        return _tokens_first(x)
    grouped = x[0].view(kv_heads, heads // kv_heads, tokens, head_dim)
    return grouped.sum(dim=1, dtype=accumulator_dtype(x.dtype)).transpose(0, 1)
