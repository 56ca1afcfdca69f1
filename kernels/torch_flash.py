"""The `torch` kernel: torch's fused attention operators, block by block.

What the operators do not do is done here:

* Blocks of length 0 never reach them (the CPU one kills the process), and rows without keys get
  0 and -inf whatever they answer.
* Masks are cut into rectangles that need none and a small irregular rest with an additive tensor;
  see `torch_pieces`.
* On CPUs query heads that share a key head are computed as tokens of one head, see `torch_layout`.
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
from dcp.kernels import torch_layout as layout
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
        accumulator = accumulator_dtype(q.dtype)
        parts = _pieces(q, k, mask, most_rows=0)
        if not parts:
            return q.new_zeros(q.shape), q.new_full(q.shape[:2], -torch.inf, dtype=accumulator)
        tokens, fold = len(q), _fold(q, k)
        q, k, v = layout.folded(q, fold), _key_side(k, q, fold), _key_side(v, q, fold)
        if _is_whole(parts[0], tokens):
            out, lse = map(layout.joined, _forward_piece(q, k, v, parts[0], fold, scale))
            parts = parts[1:]
            out = out.to(accumulator) if parts else out
        else:
            out = q.new_zeros(q.shape, dtype=accumulator)
            lse = q.new_full(q.shape[:2], -torch.inf, dtype=accumulator)
        for piece in parts:
            new_out, new_lse = _forward_piece(q, k, v, piece, fold, scale)
            rows = layout.queries(out, piece, fold), layout.queries(lse, piece, fold)
            if piece.fresh:
                rows[0].copy_(new_out)
                rows[1].copy_(new_lse)
            else:
                self.merge(*rows, new_out, new_lse)
        return layout.unfolded(out, tokens), layout.unfolded(lse, tokens)

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
        tokens, kv_heads, fold = len(q), k.shape[1], _fold(q, k)
        # The CPU operator rounds the gradients of keys to bfloat16 after every few rows, so it
        # is given few enough to lose no more than for one head.
        most_rows = _HALF_ROWS // fold if q.dtype == torch.bfloat16 and fold > 1 else 0
        parts = _pieces(q, k, mask, most_rows=most_rows)
        k, v = _key_side(k, q, fold), _key_side(v, q, fold)
        q, out, dout, lse = (layout.folded(x, fold) for x in (q, out, dout, lse))
        if len(parts) == 1 and _is_whole(parts[0], tokens) and parts[0].keys == k.shape[1]:
            dq, dk, dv = _backward_piece(q, k, v, out, dout, lse, parts[0], fold, scale)
            dq, dk, dv = layout.joined(dq), layout.summed(dk), layout.summed(dv)
            parts = ()
        else:
            dq, dk, dv = (x.new_zeros(x.shape, dtype=lse.dtype) for x in (q, k, v))
        for piece in parts:
            new = _backward_piece(q, k, v, out, dout, lse, piece, fold, scale)
            rows = layout.queries(dq, piece, fold)
            rows.copy_(new[0]) if piece.fresh else rows.add_(new[0])
            layout.add_to_keys(dk, new[1], piece)
            layout.add_to_keys(dv, new[2], piece)
        return (
            layout.unfolded(dq, tokens),
            layout.sum_heads(dk, kv_heads),
            layout.sum_heads(dv, kv_heads),
        )


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
        out = (gradient * (delta / square)[..., None]).to(dout.dtype)
        return out, _all_finite(out)
    largest = gradient.abs().amax(dim=-1)
    zero = largest == 0
    unit = gradient / largest.masked_fill(zero, 1.0)[..., None]
    factor = (delta / largest / unit.square().sum(dim=-1)).masked_fill(zero, 0.0)
    out = (unit * factor[..., None]).to(dout.dtype)
    return out, _all_finite(out) and not bool((zero & (delta != 0)).any())


def _all_finite(x: Tensor) -> bool:
    """Whether a tensor that is not empty holds finite numbers only; NaN is its own extremum."""
    return bool(torch.stack(torch.aminmax(x)).isfinite().all())


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
    q, k, v, dout = (layout.repeated(x.to(lse.dtype), heads) for x in (q, k, v, dout))
    scores = scale * (q @ k.mT)
    if mask is not None:
        scores += torch_masks.additive(mask, q.shape[2], k.shape[2], lse.dtype, q.device)
    weights = torch.exp(scores - lse.T[None, ..., None])
    dscores = scale * weights * (dout @ v.mT - delta.T[None, ..., None])
    dk, dv = dscores.mT @ q, weights.mT @ dout
    dq = (dscores @ k)[0].transpose(0, 1)
    return dq, layout.sum_heads(dk[0], kv_heads), layout.sum_heads(dv[0], kv_heads)


def _working(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to the dtype to compute in."""
    if tensors[0].dtype == torch.float16 and tensors[0].device.type == "cpu":
        return tuple(x.float() for x in tensors)
    return tensors


def _pieces(q: Tensor, k: Tensor, mask: BlockMask | None, most_rows: int) -> tuple[Piece, ...]:
    """The calls that compute a block; none where it is empty."""
    if not (len(q) and len(k)):
        return ()
    on_cpu, half = q.device.type == "cpu", q.dtype == torch.bfloat16
    tuning = Tuning(
        heads=_fold(q, k),
        half=half and on_cpu,
        causal=not on_cpu,
        strip=192 if half else 96,
        most_rows=most_rows if on_cpu else 0,
    )
    return torch_pieces.pieces(mask, len(q), len(k), tuning)


def _fold(q: Tensor, k: Tensor) -> int:
    """How many query heads that share a key head are computed as tokens of one head."""
    return q.shape[1] // k.shape[1] if q.device.type == "cpu" else 1


def _is_whole(piece: Piece, tokens: int) -> bool:
    """Whether its queries are all of a block's, in order."""
    return piece.repeats * piece.rows == tokens and piece.q_step in (0, piece.rows)


def _forward_piece(
    q: Tensor, k: Tensor, v: Tensor, piece: Piece, fold: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return out and lse of a piece's queries over its keys, [count, heads, rows, ...]."""
    shape = _shape(piece, q, fold, scale)
    out, lse = torch_ops.forward(
        layout.queries(q, piece, fold), layout.keys(k, piece), layout.keys(v, piece), shape
    )
    if shape.bias is not None and piece.mask is not None:
        empty = torch_masks.rows_without_key(piece.mask, piece.rows, q.device, repeat=fold)
        if len(empty):
            out.index_fill_(2, empty, 0.0)
            lse.index_fill_(2, empty, -torch.inf)
    return out, lse


def _backward_piece(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    piece: Piece,
    fold: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq of a piece's queries, dk and dv of its keys, [count, heads, tokens, head_dim]."""
    q, out, dout, lse = (layout.queries(x, piece, fold) for x in (q, out, dout, lse))
    k, v = layout.keys(k, piece), layout.keys(v, piece)
    return torch_ops.backward(q, k, v, out, dout, lse, _shape(piece, q, fold, scale))


def _shape(piece: Piece, q: Tensor, fold: int, scale: float) -> torch_ops.Shape:
    mask = piece.mask
    if mask is None:
        return torch_ops.Shape(False, None, scale)
    if q.device.type != "cpu" and mask.is_causal_square(piece.rows, piece.keys):
        return torch_ops.Shape(True, None, scale)
    bias = torch_masks.additive(mask, piece.rows, piece.keys, q.dtype, q.device, repeat=fold)
    return torch_ops.Shape(False, bias, scale)


def _key_side(x: Tensor, q: Tensor, fold: int) -> Tensor:
    """[tokens, key heads, head_dim] as [query heads ÷ fold, tokens, head_dim], heads repeated.

    The CPU operator is a little faster in half precision where keys lie together.
    """
    repeated = layout.repeated(x, q.shape[1] // fold)[0]
    return repeated.contiguous() if q.dtype == torch.bfloat16 and fold > 1 else repeated
