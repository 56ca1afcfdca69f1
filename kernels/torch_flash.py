"""The `torch` kernel: torch's fused attention operators, block by block.

What the operators do not do is done here:

* Blocks of length 0 never reach them (the CPU one kills the process), and rows without keys get
  0 and -inf whatever they answer.
* Masks are cut into rectangles that need none and a small irregular rest with an additive tensor;
  see `torch_pieces`.
* On CPUs query heads that share a key head are computed as tokens of one head, see `torch_layout`.
  Elsewhere key heads are repeated and their gradients added in the accumulator dtype; the
  operators' own sum over heads rounds to bfloat16 after every head.
* float16, and bfloat16 on x86 without AVX-512, are computed in float32 on CPUs, where torch's own
  code for them is several times slower and less exact. With AVX-512 but not AMX, bfloat16 is no
  faster in forward, so that is in float32 too; and where bfloat16 is computed as such, so are
  small rectangles, because the operators begin each of their tiles slowly in half precision.
* They want the output in backward, where a plan sends delta instead; see `surrogate`. float16 has
  not got the range for that, so its gradients are computed in float32 everywhere.

On CUDA float16 and bfloat16 without a mask, or with a causal one, run flash attention; float32
and other masks run memory-efficient attention. That code has never run on a GPU.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from dcp.kernel_interface import BlockMask, Kernel, accumulator_dtype
from dcp.kernels import torch_layout as layout
from dcp.kernels import torch_masks, torch_ops, torch_pieces
from dcp.kernels.surrogate import surrogate
from dcp.kernels.torch_pieces import Piece, Tuning

_HALF_ROWS = 2048  # of queries, over which the CPU operator may add up in half precision


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
        k, v = _key_side(k, q, fold), _key_side(v, q, fold)
        q = layout.folded(q, fold)
        inputs = _Inputs.of(parts, fold, q, k, v)
        if len(parts) == 1 and _is_whole(parts[0], tokens):
            out, lse = map(layout.joined, _forward_piece(inputs, parts[0], fold, scale))
            parts = ()
        else:
            out = q.new_empty(q.shape, dtype=accumulator)
            lse = q.new_empty(q.shape[:2], dtype=accumulator)
            if not _all_begun(parts, tokens):
                out.zero_()
                lse.fill_(-torch.inf)
        for piece in parts:
            new_out, new_lse = _forward_piece(inputs, piece, fold, scale)
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
        """See `Kernel.backward`."""
        if not (len(q) and len(k)):
            return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        q, k, v, dout = _working(q, k, v, dout, backward=True)
        # A row without any key has lse -inf, and exp(-inf - -inf) is NaN; with 0 it is 0.
        lse = lse.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=0.0)
        dout, out = surrogate(dout, delta)
        tokens, kv_heads, fold = len(q), k.shape[1], _fold(q, k)
        # The CPU operator rounds the gradients of keys to bfloat16 after every few rows, so it
        # is given few enough to lose no more than for one head.
        most_rows = _HALF_ROWS // fold if q.dtype == torch.bfloat16 and fold > 1 else 0
        parts = _pieces(q, k, mask, most_rows=most_rows)
        k, v = _key_side(k, q, fold), _key_side(v, q, fold)
        q, out, dout, lse = (layout.folded(x, fold) for x in (q, out, dout, lse))
        inputs = _Inputs.of(parts, fold, q, k, v, out, dout)
        if len(parts) == 1 and _is_whole(parts[0], tokens) and parts[0].keys == k.shape[1]:
            dq, dk, dv = _backward_piece(inputs, lse, parts[0], fold, scale)
            dq, dk, dv = layout.joined(dq), layout.summed(dk), layout.summed(dv)
            parts = ()
        else:
            dq = q.new_empty(q.shape, dtype=lse.dtype)
            if not _all_begun(parts, tokens):
                dq.zero_()
            dk, dv = (x.new_zeros(x.shape, dtype=lse.dtype) for x in (k, v))
        for piece in parts:
            new = _backward_piece(inputs, lse, piece, fold, scale)
            rows = layout.queries(dq, piece, fold)
            rows.copy_(new[0]) if piece.fresh else rows.add_(new[0])
            layout.add_to_keys(dk, new[1], piece)
            layout.add_to_keys(dv, new[2], piece)
        return (
            layout.unfolded(dq, tokens),
            layout.sum_heads(dk, kv_heads),
            layout.sum_heads(dv, kv_heads),
        )


def _working(*tensors: Tensor, backward: bool = False) -> tuple[Tensor, ...]:
    """Cast to the dtype to compute in."""
    dtype = tensors[0].dtype
    if tensors[0].device.type == "cpu":
        has_bfloat16 = _has_bfloat16_backward() if backward else _has_bfloat16_forward()
        widened = dtype == torch.float16 or (dtype == torch.bfloat16 and not has_bfloat16)
    else:
        widened = dtype == torch.float16 and backward
    return tuple(x.float() for x in tensors) if widened else tensors


@cache
def _has_bfloat16_forward() -> bool:
    """Whether torch computes attention of bfloat16 on this CPU faster than of float32.

    On x86 that takes AMX, of which older versions of torch say nothing; float32 is right anyhow.
    """
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return not _is_x86() or bool(capabilities.get("amx_bf16", False))


@cache
def _has_bfloat16_backward() -> bool:
    """The same of gradients, for which instructions for bfloat16 are enough."""
    return not _is_x86() or torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def _pieces(q: Tensor, k: Tensor, mask: BlockMask | None, most_rows: int) -> tuple[Piece, ...]:
    """The calls that compute a block; none where it is empty."""
    if not (len(q) and len(k)):
        return ()
    on_cpu, half = q.device.type == "cpu", q.dtype == torch.bfloat16
    tuning = Tuning(
        heads=_fold(q, k),
        half=half and on_cpu,
        causal=not on_cpu,
        strip=192 if half and not on_cpu else 96,
        most_rows=most_rows if on_cpu else 0,
    )
    return torch_pieces.pieces(mask, len(q), len(k), tuning)


def _fold(q: Tensor, k: Tensor) -> int:
    """How many query heads that share a key head are computed as tokens of one head."""
    return q.shape[1] // k.shape[1] if q.device.type == "cpu" else 1


def _is_whole(piece: Piece, tokens: int) -> bool:
    """Whether its queries are all of a block's, in order."""
    return piece.repeats * piece.rows == tokens and piece.q_step in (0, piece.rows)


class _Inputs(NamedTuple):
    """Folded tensors of a block, queries and keys first; in float32 too, where pieces want that."""

    own: tuple[Tensor, ...]
    wide: tuple[Tensor, ...]

    @classmethod
    def of(cls, parts: tuple[Piece, ...], fold: int, *own: Tensor) -> _Inputs:
        """Inputs of some pieces."""
        any_small = any(_is_small(piece, own[0], fold) for piece in parts)
        return cls(own, tuple(x.float() for x in own) if any_small else ())

    def at(self, piece: Piece, fold: int) -> tuple[Tensor, ...]:
        """Views of those of one piece, [count, heads, tokens, head_dim]."""
        q, k, v, *others = self.wide if _is_small(piece, self.own[0], fold) else self.own
        rows = (layout.queries(x, piece, fold) for x in (q, *others))
        return next(rows), layout.keys(k, piece), layout.keys(v, piece), *rows


def _is_small(piece: Piece, q: Tensor, fold: int) -> bool:
    """Whether it is computed faster in float32 than in the dtype of the folded queries."""
    few = piece.rows * fold < torch_pieces.MANY_ROWS and piece.keys < torch_pieces.TILE_KEYS
    return few and q.dtype == torch.bfloat16 and q.device.type == "cpu"


def _all_begun(parts: tuple[Piece, ...], tokens: int) -> bool:
    """Whether every query is one that some piece begins."""
    return sum(piece.repeats * piece.rows for piece in parts if piece.fresh) == tokens


def _forward_piece(inputs: _Inputs, piece: Piece, fold: int, scale: float) -> tuple[Tensor, Tensor]:
    """Return out and lse of a piece's queries over its keys, [count, heads, rows, ...]."""
    q, k, v = inputs.at(piece, fold)
    shape = _shape(piece, q, fold, scale)
    out, lse = torch_ops.forward(q, k, v, shape)
    if shape.bias is not None and piece.mask is not None:
        empty = torch_masks.rows_without_key(piece.mask, piece.rows, q.device, repeat=fold)
        if len(empty):
            out.index_fill_(2, empty, 0.0)
            lse.index_fill_(2, empty, -torch.inf)
    return out, lse


def _backward_piece(
    inputs: _Inputs, lse: Tensor, piece: Piece, fold: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq of a piece's queries, dk and dv of its keys, [count, heads, tokens, head_dim]."""
    q, k, v, out, dout = inputs.at(piece, fold)
    lse = layout.queries(lse, piece, fold)
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
