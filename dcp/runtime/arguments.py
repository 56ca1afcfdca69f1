"""Checks of what callers hand to attention, before anything is sent."""

from __future__ import annotations

from torch import Tensor

from dcp import registry
from dcp.batch import AttentionSpec
from dcp.errors import DtypeError, ShapeError, SpecError
from dcp.kernel_interface import Kernel
from dcp.runtime.dtypes import DTYPES


def resolve_kernel(kernel: str | Kernel) -> Kernel:
    """A kernel by name, "name:option=value,…", or as it is.

    Raises:
        UnknownBackendError, MissingPackageError: a name that is not there, or not installed.
        SpecError: neither a request nor a kernel.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, str):
        raise SpecError(
            f"kernel is {kernel!r}; give a name ({', '.join(registry.names('kernels'))}) "
            "or an instance of a Kernel"
        )
    found: Kernel = registry.create("kernels", kernel)
    return found


def check_attention_inputs(
    spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, q_tokens: int, kv_tokens: int
) -> None:
    """Check types, shapes, dtypes and devices.

    Args:
        spec: The plan's heads and dtype.
        q: Queries; [q_tokens, num_q_heads, head_dim] is right.
        k: Keys; [kv_tokens, num_kv_heads, head_dim] is right.
        v: Values, like k.
        q_tokens: Query tokens that there should be.
        kv_tokens: Key tokens that there should be.

    Raises:
        ShapeError: a wrong shape, or tensors on different devices.
        DtypeError: no tensor, or another dtype than the plan's.
    """
    q_shape = (q_tokens, spec.num_q_heads, spec.head_dim)
    kv_shape = (kv_tokens, spec.num_kv_heads, spec.head_dim)
    for name, x, shape in (("q", q, q_shape), ("k", k, kv_shape), ("v", v, kv_shape)):
        if not isinstance(x, Tensor):
            raise DtypeError(f"{name} is a {type(x).__name__}; it must be a torch.Tensor")
        if tuple(x.shape) != shape:
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)}; this plan needs {shape}: "
                "[tokens, heads, head_dim]"
            )
        if x.dtype != DTYPES[spec.dtype]:
            raise DtypeError(
                f"{name} is {x.dtype}; the plan is for {spec.dtype}: cast it, "
                "or plan with AttentionSpec(dtype=...)"
            )
        if x.device != q.device:
            raise ShapeError(f"{name} is on {x.device} but q is on {q.device}; move them together")
