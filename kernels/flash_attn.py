"""The `flash_attn` kernel: the flash-attn package for full and causal blocks, Triton for the rest.

Package: flash-attn 2.7 or later (extra `flash-attn`; it compiles against the torch that is
installed and needs CUDA). Source: Dao 2023 (FlashAttention-2).

The package takes a block if it is float16 or bfloat16, has a head_dim of at most 256, and its
mask allows all pairs of a rectangle, or all but those above the diagonal that ends in the
rectangle's last corner, which is what the package calls causal. Gradients of float16 go to the
other kernel too, see `surrogate`. Where another kernel is needed and cannot run, that is an
error. Never run on a GPU: tests put a module of the same signatures in the package's place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import pad

from dcp import registry
from dcp.backend import Availability
from dcp.blocks import BlockGraph
from dcp.checks import check_kind
from dcp.errors import SpecError
from dcp.instructions import Attention, CommLaunch, Copy, Program, Reduce
from dcp.kernel_interface import BlockMask, Kernel, ProgramKernel
from dcp.kernels.surrogate import surrogate
from dcp.runtime.block_by_block import BlockByBlock
from dcp.runtime.buffers import Buffers
from dcp.runtime.once import once_a_program

LARGEST_HEAD_DIM = 256
_HEAD_DIM_UNIT = 8
_OLDEST = (2, 7)


class Rectangle(NamedTuple):
    """The part of a block in which pairs are allowed, and whether only up to its diagonal."""

    q0: int
    q1: int
    k0: int
    k1: int
    causal: bool

    @property
    def empty(self) -> bool:
        """Whether it holds no pair."""
        return self.q0 >= self.q1 or self.k0 >= self.k1

    def covers(self, q: Tensor, k: Tensor) -> bool:
        """Whether it is all of a block, and not empty."""
        return not self.empty and self[:4] == (0, len(q), 0, len(k))


@dataclass(frozen=True, kw_only=True)
class FlashAttention(Kernel):
    """Blockwise attention by the flash-attn package, and by another kernel where it has no code.

    Args:
        other: The kernel for everything else, as in `kernel=`; plans always need it.

    Raises:
        SpecError: other names this kernel.
    """

    name: ClassVar[str] = "flash_attn"

    other: str = "triton"

    def __post_init__(self) -> None:
        check_kind("other", self.other, str)
        if registry.parse_request(self.other)[0] == self.name:
            raise SpecError(f"other is {self.other!r}; name another kernel, such as 'triton'")

    @classmethod
    def availability(cls) -> Availability:
        """Whether flash-attn is installed, new enough, and has a GPU to run on."""
        try:
            found = version("flash-attn")
        except PackageNotFoundError:  # also where a module of its name lies about
            return Availability(
                False,
                "install the extra `flash-attn` (needs a CUDA toolchain: "
                "pip install --no-build-isolation 'dynamic-context-parallel[flash-attn]')",
            )
        if _release(found) < _OLDEST:
            needed = ".".join(map(str, _OLDEST))
            return Availability(False, f"flash-attn is {found}; it takes {needed} or later")
        if not torch.cuda.is_available():
            return Availability(False, "torch finds no GPU; use kernel='torch'")
        return Availability(True)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        part = rectangle(mask, len(q), len(k))
        if part is None or not _has_code(q):
            return other_kernel(self.other).forward(q, k, v, mask, scale)
        rows, keys = slice(part.q0, part.q1), slice(part.k0, part.k1)
        if part.covers(q, k):
            return _forward(q, k, v, part.causal, scale)
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf, dtype=torch.float32)
        if not part.empty:
            out[rows], lse[rows] = _forward(q[rows], k[keys], v[keys], part.causal, scale)
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
        """See `Kernel.backward`."""
        part = rectangle(mask, len(q), len(k))
        if part is None or not _has_code(q) or q.dtype != torch.bfloat16:
            return other_kernel(self.other).backward(q, k, v, dout, lse, delta, mask, scale)
        rows, keys = slice(part.q0, part.q1), slice(part.k0, part.k1)
        if part.covers(q, k):
            return _backward(q, k, v, dout, lse, delta, part.causal, scale)
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        if not part.empty:
            sums = dout[rows], lse[rows], delta[rows]
            dq[rows], dk[keys], dv[keys] = _backward(
                q[rows], k[keys], v[keys], *sums, part.causal, scale
            )
        return dq, dk, dv

    def merge(self, out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> None:
        """See `Kernel.merge`; the other kernel's."""
        other_kernel(self.other).merge(out, lse, new_out, new_lse)

    def bind(self, blocks: BlockGraph, program: Program, buffers: Buffers) -> ProgramKernel:
        """See `Kernel.bind`; the other kernel reduces, copies and packs."""
        return FlashProgram(self, blocks, program, buffers)


class FlashProgram(ProgramKernel):
    """Attention block by block; the rest, which the package has no code for, by another kernel.

    Args:
        kernel: The flash-attn kernel.
        blocks, program, buffers: As for `Kernel.bind`.
    """

    def __init__(
        self, kernel: FlashAttention, blocks: BlockGraph, program: Program, buffers: Buffers
    ) -> None:
        self._attention = BlockByBlock(kernel, blocks, program, buffers)
        rest = _without_attention(blocks, program)
        self._rest = other_kernel(kernel.other).bind(blocks, rest, buffers)

    def attend(self, instruction: Attention) -> None:
        """See `ProgramKernel.attend`."""
        self._attention.attend(instruction)

    def reduce(self, instruction: Reduce) -> None:
        """See `ProgramKernel.reduce`."""
        self._rest.reduce(instruction)

    def copy(self, instruction: Copy) -> None:
        """See `ProgramKernel.copy`."""
        self._rest.copy(instruction)

    def pack(self, launch: CommLaunch, data: Tensor) -> None:
        """See `ProgramKernel.pack`."""
        self._rest.pack(launch, data)

    def unpack(self, launch: CommLaunch, data: Tensor) -> None:
        """See `ProgramKernel.unpack`."""
        self._rest.unpack(launch, data)


@once_a_program
def _without_attention(blocks: BlockGraph, program: Program) -> Program:
    """What the other kernel prepares for: it is never asked for attention by a program."""
    rest = [one for one in program.instructions if not isinstance(one, Attention)]
    return msgspec.structs.replace(program, instructions=rest)


@lru_cache
def other_kernel(request: str) -> Kernel:
    """The kernel for what the package has no code for.

    Raises:
        UnknownBackendError, MissingPackageError: there is none, or it cannot run here.
    """
    kernel: Kernel = registry.create("kernels", request)
    return kernel


def rectangle(mask: BlockMask | None, q_len: int, kv_len: int) -> Rectangle | None:
    """What the package can compute a block as; None for masks that it has no code for."""
    if mask is None:
        return Rectangle(0, q_len, 0, kv_len, False)
    if not mask.rows:
        return Rectangle(0, 0, 0, 0, False)
    if len(mask.rows) > 1:
        return None
    ((q0, q1, k0, k1, lo, hi),) = mask.rows
    last_row, last_key = q1 - 1, k1 - 1
    if lo > k0 - last_row:
        return None
    if hi >= last_key - q0:
        return Rectangle(q0, q1, k0, k1, False)
    return Rectangle(q0, q1, k0, k1, True) if hi == last_key - last_row else None


def _has_code(q: Tensor) -> bool:
    return q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] <= LARGEST_HEAD_DIM


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return out like q, and lse [tokens, heads]; rows without keys give 0 and -inf."""
    head_dim = q.shape[-1]
    q, k, v = (_padded(x) for x in (q, k, v))
    out, lse, *_ = _package()._flash_attn_varlen_forward(
        q=q,
        k=k,
        v=v,
        dropout_p=0.0,
        softmax_scale=scale,
        causal=causal,
        **_lengths(q, k),
    )
    lse = lse.T  # of the package: [heads, tokens]
    return out[..., :head_dim], lse.masked_fill(lse == torch.inf, -torch.inf)


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    lse: Tensor,
    delta: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dv."""
    head_dim = q.shape[-1]
    dout, out = surrogate(dout, delta)
    q, k, v, dout, out = (_padded(x) for x in (q, k, v, dout, out))
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    _package()._flash_attn_varlen_backward(
        dout=dout,
        q=q,
        k=k,
        v=v,
        out=out,
        softmax_lse=lse.masked_fill(lse == -torch.inf, torch.inf).T.contiguous(),
        dq=dq,
        dk=dk,
        dv=dv,
        dropout_p=0.0,
        softmax_scale=scale,
        causal=causal,
        window_size_left=-1,
        window_size_right=-1,
        softcap=0.0,
        alibi_slopes=None,
        deterministic=True,
        **_lengths(q, k),
    )
    return dq[..., :head_dim], dk[..., :head_dim], dv[..., :head_dim]


def _padded(x: Tensor) -> Tensor:
    """Rows of a multiple of 8 elements."""
    missing = -x.shape[-1] % _HEAD_DIM_UNIT
    return pad(x, (0, missing)) if missing else x


def _lengths(q: Tensor, k: Tensor) -> dict[str, Any]:
    """One sequence, in the package's words; made on the device, for the host would wait."""

    def ends(x: Tensor) -> Tensor:
        return torch.arange(2, dtype=torch.int32, device=x.device) * len(x)

    return {
        "cu_seqlens_q": ends(q),
        "cu_seqlens_k": ends(k),
        "max_seqlen_q": len(q),
        "max_seqlen_k": len(k),
    }


def _package() -> Any:
    return import_module("flash_attn.flash_attn_interface")


def _release(version: str) -> tuple[int, ...]:
    """Major and minor version, (2, 8) of "2.8rc1"; of what is no version nothing, so too old."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
