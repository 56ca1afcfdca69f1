"""Random inputs for a batch, and runs of a plan on them."""

from __future__ import annotations

import torch
from torch import Tensor

import dcp
from dcp.runtime.dtypes import DTYPES

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def random_inputs(batch: dcp.Batch, spec: dcp.AttentionSpec, seed: int = 0) -> Inputs:
    """q, k, v and dout of a packed batch, standard normal, in the spec's dtype."""
    generator = torch.Generator().manual_seed(seed)
    queries = (batch.num_q_tokens, spec.num_q_heads, spec.head_dim)
    keys = (batch.num_kv_tokens, spec.num_kv_heads, spec.head_dim)
    q, k, v, dout = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(DTYPES[spec.dtype])
        for shape in (queries, keys, keys, queries)
    )
    return q, k, v, dout


def run_both_ways(plan: dcp.ExecutionPlan, inputs: Inputs) -> dict[str, Tensor]:
    """out, dq, dk and dv of a plan run in this process."""
    q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
    out = dcp.run_local(plan, q, k, v)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), inputs[3])
    return {"out": out.detach(), "dq": dq, "dk": dk, "dv": dv}
