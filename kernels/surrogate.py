"""An output made up from delta, for operators of attention that want the output in backward.

Their formulas use the output in delta = rowsum(dout ∘ out) only, and plans send delta, which is
head_dim times smaller. So any output with the right row sums serves them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FAR = 2.0**120  # delta over it is a gradient that counts nowhere, and delta times it is finite
_USUAL = 1e25  # squares between this and its inverse lost nothing to float32's range


def surrogate(dout: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Make up a gradient and an output whose row sums are delta, without asking a GPU anything.

    The output is along the gradient, which stays as it is: dout · delta / rowsum(dout²). That is
    the shortest, so no longer than the true one, and its sum adds terms of one sign, so rounding
    it to half precision harms delta less than rounding the true one does.

    Where it does not exist, because a gradient of lse is part of delta and dout is nothing beside
    it, the row's first elements alone make up delta: an enormous output and a gradient too small
    to count. That takes the range of bfloat16, which float16 has not got.

    Args:
        dout: [tokens, heads, head_dim]; float64, float32 or bfloat16.
        delta: [tokens, heads], accumulator dtype.

    Returns:
        Gradient and output like dout, contiguous; the gradient may be dout itself.
    """
    if dout.device.type == "cpu":  # where asking costs nothing, and passes do
        gradient = dout.contiguous()
        wide = gradient.to(delta.dtype)
        square = torch.linalg.vector_norm(wide, dim=-1).square_()
        factor = delta / square
        if _is_usual(square, factor):
            out = wide * factor[..., None] if wide is gradient else wide.mul_(factor[..., None])
            return gradient, out.to(dout.dtype)
    gradient = dout.clone(memory_format=torch.contiguous_format)
    wide = gradient.to(delta.dtype)
    square = torch.linalg.vector_norm(wide, dim=-1, dtype=torch.float64).square_()
    lost = delta.abs() > square * (torch.finfo(delta.dtype).max / 4)
    square.clamp_min_(torch.finfo(torch.float64).tiny)
    factor = (delta / square).to(delta.dtype).masked_fill_(lost, 0.0)
    out = (wide * factor[..., None]).to(dout.dtype)
    first = torch.where(lost, delta.abs().clamp_min(1.0) / _FAR, gradient[..., 0])
    gradient[..., 0] = first
    out[..., 0] = torch.where(lost, delta.clamp(-1.0, 1.0) * _FAR, out[..., 0])
    return gradient, out


def _is_usual(square: Tensor, factor: Tensor) -> bool:
    """Whether no square and no product can have over- or underflowed; not where a row is 0."""
    if not square.numel():
        return True
    (least, most), (low, high) = torch.aminmax(square), torch.aminmax(factor)
    return (
        1 / _USUAL <= float(least) <= float(most) <= _USUAL
        and -_USUAL <= float(low) <= float(high) <= _USUAL
    )
