"""Compiles what a plan launches for GPUs that need not be there; prints what each kernel needs.

The plan runs in this process with all that a GPU would be handed, but nothing is launched. Run in
a process of its own, in which Triton's interpreter is not chosen.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import dcp
from dcp.kernels import triton_launch, triton_program
from dcp.kernels.triton_attention import TritonAttention
from dcp.kernels.triton_tables import Table
from dcp.kernels.triton_tiling import Tiling
from dcp.verification.local_run import random_inputs, run_with_gradients


class Driver:
    """What Triton asks of a GPU before it compiles."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


found: dict[str, dict[str, tuple[int, int]]] = {}  # kernel: variant: shared bytes, products


def compile_only(name: str, table: Table, tile: Tiling, tensors: Any, **more: Any) -> None:
    """Compile what `launch` would launch."""
    compiled = triton_launch.load(name).warmup(
        *tensors,
        **table.arguments(),
        **more,
        num_warps=tile.warps,
        num_stages=tile.stages,
        grid=(table.programs,),
    )
    ptx = compiled.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    found.setdefault(name, {})[compiled.hash] = compiled.metadata.shared, products


if __name__ == "__main__":
    capability, dtype, head_dim = sys.argv[1:]
    driver.set_active(Driver(int(capability)))
    triton_program.launch = compile_only
    torch.set_num_threads(1)
    batch = dcp.Batch([300, 0, 77, 1])
    spec = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=int(head_dim), dtype=dtype)
    plan = dcp.plan(batch, spec, dcp.Cluster(devices_per_node=4), block_size=64, baseline="usp")
    run_with_gradients(plan, random_inputs(batch, spec), kernel=TritonAttention())
    for kernel, variants in found.items():
        shared, products = (max(numbers) for numbers in zip(*variants.values(), strict=True))
        needs = {"shared_bytes": shared, "tensor_core_products": products}
        print(json.dumps({"kernel": kernel, "variants": len(variants), **needs}), flush=True)
