"""Planned attention as one differentiable operation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from dcp.blocks import Kind
from dcp.errors import BackendError
from dcp.instructions import KIND_OF, Buffer, Program
from dcp.kernel_interface import accumulator_dtype
from dcp.runtime.buffers import WIDE_PLANES, Planes
from dcp.runtime.executor import Executor

_ROWS_AT_A_TIME = 256  # on CPUs, so that temporary tensors stay in a cache


class Runner(ABC):
    """Runs a plan's two phases on the tensors that it is given: one rank's, or all ranks'."""

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Planes]:
        """Return out like q, lse [tokens, heads] in the accumulator dtype, and what is kept."""

    @abstractmethod
    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dout: Tensor,
        lse: Tensor,
        delta: Tensor,
        kept: Planes,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return dq, dk and dv, like q, k and v."""


def attend(runner: Runner, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention with gradients for q, k and v, through out and through lse.

    The last dimension is made contiguous where it is not. Second derivatives are refused.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out, lse = _PlannedAttention.apply(runner, q, k, v)  # type: ignore[no-untyped-call]
    return out, lse


class _PlannedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, runner: Runner, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):  # dtypes are the plan's
            out, lse, kept = runner.forward(q, k, v)
        ctx.runner = runner
        ctx.set_materialize_grads(False)  # a result that was not used has gradient None
        ctx.save_for_backward(q, k, v, out, lse, *kept)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise BackendError(
                "second derivatives of planned attention are not available; call grad or "
                "backward without create_graph=True"
            )
        q, k, v, out, lse, *kept = ctx.saved_tensors
        # Contiguous, so that delta's sums have the same bits whatever the layout.
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
        delta = delta_of(out, dout, lse, dlse)
        with torch.autocast(q.device.type, enabled=False):  # dtypes are the plan's
            grads = ctx.runner.backward(q, k, v, dout, lse, delta, tuple(kept))
        needed = zip(ctx.needs_input_grad[1:], grads, strict=True)
        return None, *(grad if wanted else None for wanted, grad in needed)


def delta_of(out: Tensor, dout: Tensor, lse: Tensor, dlse: Tensor | None) -> Tensor:
    """What the backward formulas subtract in every row: rowsum(dout ∘ out) − dlse.

    lse enters the scores' gradient as + P · dlse, which has the form of − P · delta. A row
    without keys has a constant lse, so its gradient is dropped.

    Args:
        out: Final output, [tokens, heads, head_dim].
        dout: Its gradient.
        lse: Final log-sum-exp, [tokens, heads].
        dlse: Its gradient, or None.

    Returns:
        [tokens, heads], accumulator dtype.
    """
    dtype = accumulator_dtype(out.dtype)
    delta = torch.empty(out.shape[:2], dtype=dtype, device=out.device)
    step = _ROWS_AT_A_TIME if out.device.type == "cpu" else max(len(out), 1)
    for begin in range(0, len(out), step):
        rows = slice(begin, begin + step)
        torch.sum(dout[rows].to(dtype) * out[rows].to(dtype), dim=-1, out=delta[rows])
    return delta if dlse is None else delta - dlse.masked_fill(lse == -torch.inf, 0.0)


def forward_inputs(q: Tensor, k: Tensor, v: Tensor) -> dict[Kind, Planes]:
    """Home inputs of a forward program."""
    return {Kind.Q: (q,), Kind.KV: (k, v)}


def backward_inputs(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, lse: Tensor, delta: Tensor
) -> dict[Kind, Planes]:
    """Home inputs of a backward program."""
    return {**forward_inputs(q, k, v), Kind.DO: (dout, lse, delta)}


def kept_planes(executor: Executor, program: Program) -> Planes:
    """What a forward executor leaves for a backward program, plane after plane."""
    arenas = executor.arenas(program.kept_buffers)
    return tuple(plane for planes in arenas.values() for plane in planes)


def kept_arenas(program: Program, planes: Iterator[Tensor]) -> dict[Buffer, Planes]:
    """The inverse of `kept_planes`; takes from the planes what is the program's."""
    return {
        buffer: tuple(islice(planes, WIDE_PLANES[KIND_OF[buffer]]))
        for buffer in program.kept_buffers
    }
