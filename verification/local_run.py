"""A plan run on random tensors, all ranks in this process, and held against the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from dcp.batch import AttentionSpec, Batch
from dcp.execution_plan import ExecutionPlan
from dcp.kernel_interface import Kernel
from dcp.runtime.dtypes import DTYPES
from dcp.runtime.local import run_local
from dcp.verification.tolerances import check_within_budget, require


def random_inputs(
    batch: Batch, spec: AttentionSpec, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and dout with standard normal values, packed in batch order, in the spec's dtype."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tokens: int, heads: int) -> Tensor:
        shape = (tokens, heads, spec.head_dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(DTYPES[spec.dtype])

    q, dout = (normal(batch.num_q_tokens, spec.num_q_heads) for _ in range(2))
    k, v = (normal(batch.num_kv_tokens, spec.num_kv_heads) for _ in range(2))
    return q, k, v, dout


def run_with_gradients(
    plan: ExecutionPlan,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    kernel: str | Kernel = "torch",
) -> dict[str, Tensor]:
    """Results of a plan: "out", "lse", "dq", "dk", "dv".

    Args:
        plan: The plan.
        inputs: q, k, v and dout, packed in batch order.
        kernel: As for `run_local`.
    """
    *leaves, dout = inputs
    q, k, v = (x.detach().requires_grad_() for x in leaves)
    out, lse = run_local(plan, q, k, v, kernel=kernel, return_lse=True)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
    return {"out": out.detach(), "lse": lse.detach(), "dq": dq, "dk": dk, "dv": dv}


def check_numbers(
    batch: Batch, plan: ExecutionPlan, *, seed: int = 0, kernel: str | Kernel = "torch"
) -> dict[str, float]:
    """Run a plan on random tensors and assert that it is within its error budget.

    Args:
        batch: What the plan was made for.
        plan: The plan.
        seed: Of the tensors.
        kernel: As for `run_local`.
    Returns:
        The error measured in "out", "lse", "dq", "dk" and "dv".
    Raises:
        AssertionError: names the tensor, its error and its budget.
    """
    inputs = random_inputs(batch, plan.spec, seed=seed)
    results = run_with_gradients(plan, inputs, kernel=kernel)
    for name, tensor in zip(("out", "dq", "dk", "dv"), (inputs[0], *inputs[:3]), strict=True):
        require(results[name].dtype == tensor.dtype, f"{name} is {results[name].dtype}")
    return check_within_budget(batch, plan.spec, inputs, results)
