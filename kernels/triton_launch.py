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
from dcp.kernels.triton_tiling import LARGEST_HEAD_DIM, Tiling

_NOT_INSTALLED = "install the extra `triton` (pip install 'dynamic-context-parallel[triton]')"

Tensors = tuple[Tensor | tuple[Tensor, ...], ...]

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


def load(name: str) -> Any:
    """Kernel `name` of module `triton_<name>`, compiled or interpreted as Triton was told first.

    Raises:
        MissingPackageError: triton is not installed.
    """
    if find_spec("triton") is None:
        raise MissingPackageError(f"kernel 'triton' cannot run here: {_NOT_INSTALLED}")
    return getattr(import_module(f"dcp.kernels.triton_{name}"), f"{name}_kernel")


def launch(name: str, table: Table, tile: Tiling, tensors: Tensors, **more: float) -> None:
    """Run a kernel over a table, on the current stream of the table's device.

    Args:
        name: Which kernel, as for `load`.
        table: What each program does.
        tile: Warps and stages; the kernels name the sides of their tiles themselves.
        tensors: What the kernel is given before the table.
        more: Numbers of the kernel, and compile-time constants, by name.

    Raises:
        BackendError: tensors on the CPU, but the kernels were loaded for GPUs.
        MissingPackageError: triton is not installed.
    """
    kernel = load(name)
    from triton.runtime import JITFunction

    device = table.arrays[0].device
    if device.type != "cuda" and isinstance(kernel, JITFunction):
        raise BackendError(
            f"the tensors are on {device}, but Triton was loaded to compile for GPUs; set "
            "TRITON_INTERPRET=1 before starting Python, or use kernel='torch'"
        )
    if not table.programs:
        return
    with _on(device):
        kernel[(table.programs,)](
            *tensors,
            **table.arguments(),
            **more,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _interpreter_requested() -> bool:
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on")
