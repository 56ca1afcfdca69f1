"""Launching the Triton kernels: what can run here, and with which tensors."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from dcp.backend import Availability
from dcp.errors import BackendError, DtypeError, MissingPackageError, ShapeError
from dcp.kernels.triton_tables import Table
from dcp.kernels.triton_tiling import LARGEST_HEAD_DIM, Tiling, padded_head_dim

_NOT_INSTALLED = "install the extra `triton` (pip install 'dynamic-context-parallel[triton]')"

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def availability() -> Availability:
    """Whether Triton is installed and has a GPU or its interpreter to run on."""
    if find_spec("triton") is None:
        return Availability(False, _NOT_INSTALLED)
    if torch.cuda.is_available() or _interpreter_requested():
        return Availability(True)
    return Availability(
        False,
        "torch finds no GPU; set TRITON_INTERPRET=1 before starting Python to interpret the "
        "kernels on the CPU, or use kernel='torch'",
    )


def check(*tensors: Tensor) -> None:
    """Refuse what the kernels have no code for.

    Raises:
        DtypeError: not float16, bfloat16 or float32.
        ShapeError: head_dim is too large, or the last dimension is not contiguous.
    """
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            raise DtypeError(
                f"kernel 'triton' has no code for {tensor.dtype}; legal: float16, bfloat16 and "
                "float32; kernel='torch' computes in float64"
            )
        head_dim = tensor.shape[-1]
        if head_dim > LARGEST_HEAD_DIM:
            raise ShapeError(
                f"head_dim is {head_dim}; kernel 'triton' takes at most {LARGEST_HEAD_DIM}; "
                "kernel='torch' takes any"
            )
        if head_dim > 1 and tensor.stride(-1) != 1:
            raise ShapeError(
                f"strides {tensor.stride()} of a tensor {tuple(tensor.shape)}: the last dimension "
                "must be contiguous; call .contiguous() first"
            )


def working(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast what the interpreter cannot compute with: bfloat16, of which it sees raw bits."""
    if tensors[0].is_cuda:
        return tensors
    return tuple(x.float() if x.dtype == torch.bfloat16 else x for x in tensors)


def load(name: str) -> Any:
    """Kernel `name` of module `triton_<name>`, compiled or interpreted as Triton was told first.

    Raises:
        MissingPackageError: triton is not installed.
    """
    if find_spec("triton") is None:
        raise MissingPackageError(f"kernel 'triton' cannot run here: {_NOT_INSTALLED}")
    return getattr(import_module(f"dcp.kernels.triton_{name}"), f"{name}_kernel")


def launch(
    name: str, table: Table, head_dim: int, tile: Tiling, *arguments: Any, **constants: int
) -> None:
    """Run a kernel over a table, on the current stream of the tensors' device.

    Args:
        name: Which kernel, as for `load`.
        table: What each program does.
        head_dim: Elements of a row.
        tile: Warps and stages; the kernels name the sides of their tiles themselves.
        arguments: Tensors and numbers of the kernel, up to `tiles`.
        constants: Further compile-time numbers.

    Raises:
        BackendError: tensors on the CPU, but the kernels were loaded for GPUs.
        MissingPackageError: triton is not installed.
    """
    kernel = load(name)
    from triton.runtime import JITFunction

    device = table.tiles.device
    if device.type != "cuda" and isinstance(kernel, JITFunction):
        raise BackendError(
            f"the tensors are on {device}, but Triton was loaded to compile for GPUs; set "
            "TRITON_INTERPRET=1 before starting Python, or use kernel='torch'"
        )
    if not table.programs:
        return
    with _on(device):
        kernel[(table.programs,)](
            *arguments,
            HEAD_DIM=head_dim,
            PADDED=padded_head_dim(head_dim),
            UNIT=table.unit,
            ROW=table.row,
            ITEM=table.item,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **constants,
        )


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _interpreter_requested() -> bool:
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on")
