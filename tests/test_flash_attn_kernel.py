"""The flash-attn kernel: what goes to the package, how, and what to the other kernel.

The package is not there to test with: a module of the same signatures stands in its place, so
this proves routing and layouts, not the package. Nothing here has run on a GPU.
"""

from __future__ import annotations

import importlib.metadata
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import flash_attn_package
import pytest
import torch
from flash_attn_package import ends
from torch import Tensor

import dcp
from dcp import registry
from dcp.errors import MissingPackageError, SpecError
from dcp.kernel_interface import BlockMask
from dcp.kernels import flash_attn
from dcp.kernels.flash_attn import FlashAttention, Rectangle, rectangle
from dcp.kernels.torch_flash import TorchFlash
from dcp.masks import Mask
from dcp.runtime.block_by_block import BlockByBlock
from dcp.verification import kernel_conformance
from dcp.verification.kernel_conformance import Check
from dcp.verification.local_run import check_numbers

KERNEL = FlashAttention(other="torch")


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a module that computes with torch in the package's place."""
    parent = ModuleType("flash_attn")
    parent.__spec__ = ModuleSpec("flash_attn", None, is_package=True)
    parent.__path__ = []
    monkeypatch.setitem(sys.modules, "flash_attn", parent)
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", flash_attn_package)
    monkeypatch.setattr(flash_attn, "version", lambda name: "2.8.3")
    ends.clear()


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the other kernel computes."""
    done = []

    class Watched(TorchFlash):
        def forward(self, *arguments: Any) -> tuple[Tensor, Tensor]:
            done.append("forward")
            return super().forward(*arguments)

        def backward(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
            done.append("backward")
            return super().backward(*arguments)

    monkeypatch.setattr(flash_attn, "other_kernel", lambda request: Watched())
    return done


@pytest.mark.parametrize(
    "check", kernel_conformance.checks(("bfloat16", "float16", "float32")), ids=str
)
def test_it_conforms(check: Check) -> None:
    check.run(KERNEL)


def both_ways(
    dtype: torch.dtype, mask: Mask | None, q_len: int, kv_len: int, head_dim: int = 16
) -> None:
    q, k, v = (torch.randn(n, 2, head_dim).to(dtype) for n in (q_len, kv_len, kv_len))
    block = None if mask is None else BlockMask.of(mask.slices(q_len, kv_len))
    out, lse = KERNEL.forward(q, k, v, block, 0.3)
    KERNEL.backward(q, k, v, out.to(dtype), lse, torch.zeros_like(lse), block, 0.3)


class TestRouting:
    """Full and causal blocks in half precision go to the package, all else to the other kernel."""

    def test_full_blocks(self, others: list[str]) -> None:
        both_ways(torch.bfloat16, None, 5, 9)
        assert ends == [(5, 9, False)] * 2
        assert not others

    def test_causal_squares(self, others: list[str]) -> None:
        both_ways(torch.bfloat16, dcp.masks.causal(), 9, 9)
        assert ends == [(9, 9, True)] * 2
        assert not others

    def test_queries_that_end_with_the_keys(self, others: list[str]) -> None:
        """The package aligns a causal mask with the last corner."""
        both_ways(torch.bfloat16, dcp.masks.causal(offset=4), 5, 9)
        assert ends == [(5, 9, True)] * 2
        assert not others

    def test_causal_blocks_that_end_elsewhere(self, others: list[str]) -> None:
        both_ways(torch.bfloat16, dcp.masks.causal(), 5, 9)
        assert ends == [(5, 5, True)] * 2  # keys that nobody sees are left out
        both_ways(torch.bfloat16, dcp.masks.causal(offset=2), 5, 9)
        assert ends[2:] == [(5, 7, True)] * 2
        assert not others

    @pytest.mark.parametrize(
        "mask",
        [dcp.masks.sliding_window(3), ~dcp.masks.causal(), dcp.masks.lambda_mask(2, 3)],
        ids=["window", "inverse causal", "lambda"],
    )
    def test_other_masks(self, others: list[str], mask: Mask) -> None:
        both_ways(torch.bfloat16, mask, 9, 9)
        assert others == ["forward", "backward"]
        assert not ends

    def test_float32(self, others: list[str]) -> None:
        both_ways(torch.float32, None, 4, 4)
        assert others == ["forward", "backward"]

    def test_large_head_dims(self, others: list[str]) -> None:
        both_ways(torch.bfloat16, None, 4, 4, head_dim=264)
        assert others == ["forward", "backward"]

    def test_gradients_of_float16(self, others: list[str]) -> None:
        both_ways(torch.float16, None, 4, 4)
        assert ends == [(4, 4, False)]
        assert others == ["backward"]


def test_a_mask_of_nothing_is_no_work() -> None:
    nothing = BlockMask.of((dcp.masks.full() - dcp.masks.full()).slices(4, 4))
    assert rectangle(nothing, 4, 4) == Rectangle(0, 0, 0, 0, False)
    assert rectangle(nothing, 4, 4).empty  # type: ignore[union-attr]


@pytest.mark.parametrize("how", [{"baseline": "ring"}, {"baseline": "zigzag"}, {}], ids=str)
def test_a_plan_is_within_its_error_budget(how: dict[str, str]) -> None:
    batch = dcp.Batch([100, 0, 33, 1])
    spec = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=20, dtype="bfloat16")
    plan = dcp.plan(batch, spec, dcp.Cluster(devices_per_node=3), block_size=16, **how)
    check_numbers(batch, plan, kernel=KERNEL)
    assert ends


@pytest.mark.gpu
@pytest.mark.parametrize("check", kernel_conformance.checks(("bfloat16", "float16")), ids=str)
def test_the_package_conforms_on_a_gpu(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # what `package` put in its place
    available, reason = FlashAttention.availability()
    if not available:
        pytest.skip(reason)
    check.run(registry.create("kernels", "flash_attn"), "cuda")


def test_the_other_kernel_does_what_is_not_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    done = set()

    class Noted(BlockByBlock):
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_"):
                done.add(name)
            return super().__getattribute__(name)

    class Other(TorchFlash):
        def bind(self, *arguments: Any) -> BlockByBlock:
            return Noted(self, *arguments)

    monkeypatch.setattr(flash_attn, "other_kernel", lambda request: Other())
    batch = dcp.Batch([60])
    spec = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=16, dtype="bfloat16")
    how = {"partitioner": "greedy", "scheduler": "overlap"}
    plan = dcp.plan(batch, spec, dcp.Cluster(devices_per_node=3), block_size=8, **how)
    check_numbers(batch, plan, kernel=KERNEL)
    assert done == {"reduce", "copy", "pack", "unpack"}
    assert ends


class TestWhatItRefuses:
    """It says what is missing, and takes nothing else instead."""

    def test_a_machine_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A module of its name alone is not the package."""
        monkeypatch.setattr(flash_attn, "version", importlib.metadata.version)
        with pytest.raises(MissingPackageError, match="'flash_attn' cannot run here: install the"):
            registry.create("kernels", "flash_attn")

    @pytest.mark.parametrize("installed", ["2.6.3", "2", "2.6rc1", "unknown"])
    def test_versions_with_other_signatures(
        self, monkeypatch: pytest.MonkeyPatch, installed: str
    ) -> None:
        monkeypatch.setattr(flash_attn, "version", lambda name: installed)
        found = rf"flash-attn is {installed}; it takes 2\.7 or"
        with pytest.raises(MissingPackageError, match=found):
            registry.create("kernels", "flash_attn")

    @pytest.mark.parametrize("installed", ["2.7", "2.8rc1", "2.8.3.post1+cu12", "3.0.0b1"])
    def test_no_version_that_is_new_enough(
        self, monkeypatch: pytest.MonkeyPatch, installed: str
    ) -> None:
        monkeypatch.setattr(flash_attn, "version", lambda name: installed)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert FlashAttention.availability() == (True, "")

    def test_a_machine_without_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(MissingPackageError, match="torch finds no GPU"):
            registry.create("kernels", "flash_attn")

    def test_work_for_another_kernel_that_cannot_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dcp.kernels.triton_launch.find_spec", lambda name: None)
        q = torch.zeros(4, 1, 16)
        with pytest.raises(MissingPackageError, match="'triton' cannot run here"):
            FlashAttention().forward(q, q, q, None, 1.0)

    def test_itself_as_the_other_kernel(self) -> None:
        with pytest.raises(SpecError, match="other is 'flash_attn'; name another kernel"):
            FlashAttention(other="flash_attn")
