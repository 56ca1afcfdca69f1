"""Compiles every Triton kernel for GPUs that need not be there; prints what each one needs.

Run in a process of its own, in which Triton's interpreter is not chosen.
"""

from __future__ import annotations

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dcp.kernels.triton_launch import load
from dcp.kernels.triton_tiling import (
    COPY,
    MERGE,
    attention_constants,
    copy_constants,
    merge_constants,
    tiling,
)
from dcp.runtime.dtypes import DTYPES

ROW_AND_ITEM = {"forward": (17, 10), "backward_dq": (25, 10), "backward_dkv": (21, 18)}
ROW_AND_ITEM |= {"merge": (12, 8), "copy": (9, 4)}
TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
FLOAT32 = ("out", "lse", "new_lse", "dq", "dk_sum", "dv_sum", "lse_home", "lse_arena")
FLOAT32 += ("delta_home", "delta_arena")
TABLES = ("tiles", "rows", "items", "slices")


def compile_for(capability: int, name: str, dtype: str, head_dim: int) -> dict[str, int]:
    """Shared memory of a program, and how many matrix products run on tensor cores."""
    kernel = load(name)
    tile = tiling(DTYPES[dtype], head_dim, backward=name != "forward")
    if name == "merge":
        tile, constants = MERGE, merge_constants(head_dim)
    elif name == "copy":
        tile, constants = COPY, copy_constants(head_dim)
    else:
        constants = attention_constants(tile, head_dim, scale=1.0)
        del constants["scale_log2"]
    row, item = ROW_AND_ITEM[name]
    constants |= {"UNIT": 8, "ROW": row, "ITEM": item}
    signature: dict[str, str | tuple[str, ...]] = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument == "targets":
            signature[argument] = (f"*{TYPES[dtype]}",) * 2
        elif argument == "sources":
            signature[argument] = ("*fp32",) * 3
        elif argument in TABLES:
            signature[argument] = "*i64"
        elif argument.startswith("scale"):
            signature[argument] = "fp32"
        else:
            signature[argument] = "*fp32" if argument in FLOAT32 else f"*{TYPES[dtype]}"
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, argument in enumerate(kernel.arg_names)
        if str(signature[argument]).startswith("*")
    }
    constants_at = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(
        ASTSource(kernel, signature, constants_at, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": tile.warps, "num_stages": tile.stages},
    )
    ptx = compiled.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    return {"shared_bytes": compiled.metadata.shared, "tensor_core_products": products}


if __name__ == "__main__":
    capability, dtype, head_dim, *names = sys.argv[1:]
    for kernel_name in names:
        found = compile_for(int(capability), kernel_name, dtype, int(head_dim))
        print(json.dumps({"kernel": kernel_name, **found}), flush=True)
