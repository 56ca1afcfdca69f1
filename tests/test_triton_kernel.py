"""The Triton kernel, interpreted on the CPU, passes the conformance suite of kernels.

The interpreter has to be chosen before Triton is imported, so the tests marked `triton` run in a
process of their own: `tox run -e triton`. One test here runs some of them in such a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp import registry
from dcp.errors import BackendError, DtypeError, MissingPackageError, ShapeError, SpecError
from dcp.kernels.triton_attention import TritonAttention
from dcp.kernels.triton_tiling import padded_head_dim
from dcp.verification import kernel_conformance
from dcp.verification.kernel_conformance import Block, Check, check_block
from dcp.verification.strategies import masks_for

SMALL = TritonAttention(tile_q=16, tile_k=16)
WIDE = TritonAttention(tile_q=16, tile_k=32)
ROOT = Path(__file__).parent.parent

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 is not set")


def run_alone(*command: str, interpret: bool) -> subprocess.CompletedProcess[str]:
    """Run Python in a process in which Triton is told what to do from the start."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


@needs_triton
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(INTERPRETED, reason="this process interprets Triton itself")
def test_some_of_the_triton_tier_passes_in_a_process_of_its_own() -> None:
    """Enough to see a broken kernel; all of it is for `tox run -e triton`."""
    some = "fused or ulysses or float32 and (causal or window or lengths or halves or heads)"
    files = __file__, str(ROOT / "tests" / "test_triton_plans.py")
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "triton", "-k", some, *files)
    done = run_alone(*tests, interpret=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout, done.stdout[-2000:]


@pytest.mark.triton
@interpreted
@pytest.mark.parametrize(
    "check", kernel_conformance.checks(("float32", "float16"), refused=("float64",)), ids=str
)
def test_it_conforms(check: Check) -> None:
    check.run(SMALL)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "check",
    kernel_conformance.checks(("float32", "float16", "bfloat16"), refused=("float64",)),
    ids=str,
)
def test_it_conforms_on_a_gpu(check: Check) -> None:
    check.run(TritonAttention(), "cuda")


@pytest.mark.triton
@interpreted
@settings(max_examples=15)  # a second each, interpreted
@given(data=st.data(), q_len=st.integers(0, 34), kv_len=st.integers(0, 34))
def test_it_is_exact_on_any_block(data: st.DataObject, q_len: int, kv_len: int) -> None:
    heads, kv_heads = data.draw(st.sampled_from([(1, 1), (2, 1), (2, 2)]))
    block = Block(
        q_len=q_len,
        kv_len=kv_len,
        dtype=data.draw(st.sampled_from(["float32", "float16"])),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=data.draw(st.sampled_from([16, 24, 1])),
        mask=data.draw(st.none() | masks_for(q_len, kv_len)),
    )
    check_block(block, data.draw(st.sampled_from([SMALL, WIDE])), "cpu")


@pytest.mark.triton
@interpreted
def test_the_interpreter_computes_bfloat16_in_float32() -> None:
    block = Block(q_len=20, kv_len=20, dtype="bfloat16")
    check_block(block, SMALL, "cpu")


@pytest.mark.triton
@interpreted
def test_default_tiles_serve_every_dtype_and_head_dim() -> None:
    for dtype in ("float32", "float16"):
        for head_dim in (16, 40, 256):
            block = Block(
                q_len=3, kv_len=5, dtype=dtype, heads=1, kv_heads=1, head_dim=head_dim, scale=0.1
            )
            check_block(block, TritonAttention(), "cpu")


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "shared_bytes", "dtype", "head_dim"),
    [
        (80, 163 << 10, "bfloat16", 128),
        (80, 163 << 10, "float32", 64),
        (90, 227 << 10, "float16", 80),
    ],
)
def test_every_kernel_compiles_for_gpus(
    capability: int, shared_bytes: int, dtype: str, head_dim: int
) -> None:
    """All that a plan launches, as it is launched; no GPU is needed to compile."""
    attention = ("forward", "backward_dq", "backward_dkv")
    script = str(ROOT / "tests" / "triton_compilation.py")
    done = run_alone(script, str(capability), dtype, str(head_dim), interpret=False)
    assert done.returncode == 0, done.stderr[-5000:]
    compiled = {line["kernel"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert set(compiled) == {*attention, "merge", "copy"}
    assert all(compiled[name]["variants"] == 1 for name in (*attention, "merge"))
    assert compiled["copy"]["variants"] <= 8
    assert all(line["shared_bytes"] <= shared_bytes for line in compiled.values())
    if dtype != "float32":
        assert all(compiled[name]["tensor_core_products"] > 0 for name in attention)


class TestWhatItRefuses:
    """Nothing falls back to another kernel."""

    def test_a_machine_without_gpu_and_interpreter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(MissingPackageError, match=r"'triton' cannot run here: (torch|install)"):
            registry.create("kernels", "triton")

    def test_a_machine_without_triton(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dcp.kernels.triton_launch.find_spec", lambda name: None)
        with pytest.raises(MissingPackageError, match="install the extra `triton`"):
            registry.create("kernels", "triton")
        block = torch.zeros(2, 1, 16)
        with pytest.raises(MissingPackageError, match="install the extra `triton`"):
            SMALL.forward(block, block, block, None, 1.0)

    @needs_triton
    @pytest.mark.skipif(INTERPRETED, reason="this process interprets Triton")
    def test_tensors_on_the_cpu_without_interpreter(self) -> None:
        block = torch.zeros(2, 1, 16)
        with pytest.raises(BackendError, match="TRITON_INTERPRET=1"):
            SMALL.forward(block, block, block, None, 1.0)

    def test_float64(self) -> None:
        block = torch.zeros(2, 1, 16, dtype=torch.float64)
        with pytest.raises(DtypeError, match=r"no code for torch\.float64; legal: float16"):
            SMALL.forward(block, block, block, None, 1.0)

    def test_head_dims_beyond_its_tiles(self) -> None:
        block = torch.zeros(2, 1, 257)
        with pytest.raises(ShapeError, match="head_dim is 257; kernel 'triton' takes at most 256"):
            SMALL.forward(block, block, block, None, 1.0)

    def test_a_last_dimension_that_is_not_contiguous(self) -> None:
        block = torch.zeros(2, 16, 4).mT
        with pytest.raises(ShapeError, match="last dimension must be contiguous"):
            SMALL.forward(block, block, block, None, 1.0)

    @pytest.mark.parametrize("tile", [8, 24, 0])
    def test_tiles_that_tensor_cores_cannot_multiply(self, tile: int) -> None:
        with pytest.raises(SpecError, match=f"tile_q is {tile}; legal: powers of two of 16"):
            TritonAttention(tile_q=tile)


def test_head_dims_are_padded_to_powers_of_two_of_at_least_16() -> None:
    assert [padded_head_dim(dim) for dim in (1, 16, 17, 80, 128, 129, 256)] == [
        *(16, 16, 32, 128, 128, 256, 256)
    ]
