"""Random inputs for a batch, and runs of a plan on them."""

from __future__ import annotations

import torch
from torch import Tensor

import dcp
from dcp.verification.local_run import random_inputs

__all__ = ["random_inputs", "run_both_ways"]

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def run_both_ways(plan: dcp.ExecutionPlan, inputs: Inputs) -> dict[str, Tensor]:
    """out, dq, dk and dv of a plan run in this process."""
    q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
    out = dcp.run_local(plan, q, k, v)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), inputs[3])
    return {"out": out.detach(), "dq": dq, "dk": dk, "dv": dv}
