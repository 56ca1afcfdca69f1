"""The torch kernel passes the conformance suite of kernels, and the suite finds faulty kernels."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dcp.instructions import CommLaunch, Copy, Reduce
from dcp.kernel_interface import BlockMask
from dcp.kernels import torch_flash
from dcp.kernels.torch_flash import TorchFlash
from dcp.runtime.block_by_block import BlockByBlock
from dcp.verification import kernel_conformance
from dcp.verification.kernel_conformance import Block, Check, check_block
from dcp.verification.strategies import HEAD_LAYOUTS, masks_for

DTYPES = ("float64", "float32", "bfloat16", "float16")


@pytest.mark.parametrize("check", kernel_conformance.checks(DTYPES), ids=str)
def test_the_torch_kernel_conforms(check: Check) -> None:
    check.run(TorchFlash())


@pytest.mark.parametrize("kind", [(False, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("check", kernel_conformance.checks(("bfloat16",)), ids=str)
def test_it_conforms_on_every_kind_of_cpu(
    check: Check, kind: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They compute bfloat16 as such in forward and in backward, in backward alone, or never."""
    forward, backward = kind
    monkeypatch.setattr(torch_flash, "_has_bfloat16_forward", lambda: forward)
    monkeypatch.setattr(torch_flash, "_has_bfloat16_backward", lambda: backward)
    check.run(TorchFlash())


@pytest.mark.property
@given(data=st.data(), q_len=st.integers(0, 40), kv_len=st.integers(0, 40))
def test_the_torch_kernel_is_exact_on_any_block(
    data: st.DataObject, q_len: int, kv_len: int
) -> None:
    heads, kv_heads = data.draw(st.sampled_from(HEAD_LAYOUTS))
    block = Block(
        q_len=q_len,
        kv_len=kv_len,
        dtype=data.draw(st.sampled_from(DTYPES)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=data.draw(st.sampled_from([16, 24])),
        mask=data.draw(st.none() | masks_for(q_len, kv_len)),
    )
    check_block(block, TorchFlash(), "cpu")


@dataclass(frozen=True, kw_only=True)
class Faulty(TorchFlash):
    """The torch kernel with one fault."""

    fault: str

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        if self.fault == "mask ignored":
            mask = None
        if self.fault == "mask moved by one" and mask is not None:
            mask = BlockMask(tuple((*row[:4], row[4] - 1, row[5] - 1) for row in mask.rows))
        if self.fault == "heads interleaved":
            ratio = q.shape[1] // k.shape[1]
            k, v = k.repeat(1, ratio, 1), v.repeat(1, ratio, 1)
        out, lse = super().forward(q, k, v, mask, scale)
        if self.fault == "lse in base 2":
            lse = lse / math.log(2.0)
        if self.fault == "lse finite without keys":
            lse = lse.clamp_min(-1e9)
        if self.fault == "output left alone without keys":
            out = out.masked_fill((lse == -math.inf)[..., None], 1.0)
        return out, lse

    def backward(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        if self.fault == "delta ignored":
            arguments = (*arguments[:5], torch.zeros_like(arguments[5]), *arguments[6:])
        dq, dk, dv = super().backward(*arguments)
        if self.fault == "dk without scale":
            dk = dk / arguments[-1]
        if self.fault == "dv of the first query head only":
            dv = dv / 2
        if self.fault == "NaN for rows without key":
            dq = dq.masked_fill((arguments[4] == -math.inf)[..., None], math.nan)
        return dq, dk, dv

    def merge(self, out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> None:
        if self.fault != "merge by the sigmoid form":
            super().merge(out, lse, new_out, new_lse)
            return
        share = torch.sigmoid(new_lse - lse)
        out.add_(share[..., None] * (new_out.to(out.dtype) - out))
        lse.sub_(torch.nn.functional.logsigmoid(lse - new_lse))


@pytest.mark.parametrize(
    "fault",
    [
        "mask ignored",
        "mask moved by one",
        "heads interleaved",
        "lse in base 2",
        "lse finite without keys",
        "output left alone without keys",
        "delta ignored",
        "dk without scale",
        "dv of the first query head only",
        "NaN for rows without key",
        "merge by the sigmoid form",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_suite_finds_a_fault(fault: str, dtype: str) -> None:
    failed = []
    for check in kernel_conformance.checks([dtype]):
        try:
            check.run(Faulty(fault=fault))
        except AssertionError:
            failed.append(check.name)
    assert failed


_WITHOUT_ASSERTS = """
from dcp.kernels.torch_flash import TorchFlash
from dcp.verification import kernel_conformance

class Lazy(TorchFlash):
    def merge(self, *arguments):
        pass

for check in kernel_conformance.checks(["float32"]):
    if "merge" in check.name:
        check.run(Lazy())
"""


def test_faults_are_found_also_where_python_leaves_assert_statements_out() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", _WITHOUT_ASSERTS], capture_output=True, text=True, timeout=240
    )
    assert "AssertionError: " in done.stderr


class Lossy(BlockByBlock):
    """Instructions block by block, but one kind of them brings nothing."""

    lost: str

    def reduce(self, instruction: Reduce) -> None:
        if self.lost != "reduce":
            super().reduce(instruction)

    def copy(self, instruction: Copy) -> None:
        if self.lost != "copy":
            super().copy(instruction)

    def pack(self, launch: CommLaunch, data: Tensor) -> None:
        super().pack(launch, data)
        if self.lost == "pack":
            data.zero_()

    def unpack(self, launch: CommLaunch, data: Tensor) -> None:
        super().unpack(launch, data.zero_() if self.lost == "unpack" else data)


@pytest.mark.parametrize("lost", ["reduce", "copy", "pack", "unpack"])
def test_the_suite_finds_instructions_that_bring_nothing(lost: str) -> None:
    class Bound(TorchFlash):
        def bind(self, *arguments: Any) -> Lossy:
            bound = Lossy(self, *arguments)
            bound.lost = lost
            return bound

    plans = [check for check in kernel_conformance.checks(["float32"]) if "plan" in check.name]
    failed = 0
    for check in plans:
        try:
            check.run(Bound())
        except AssertionError:
            failed += 1
    assert failed


def test_the_suite_finds_a_dtype_that_is_not_refused() -> None:
    (check,) = kernel_conformance.checks([], refused=["float64"])
    with pytest.raises(AssertionError, match="float64 was not refused"):
        check.run(TorchFlash())
