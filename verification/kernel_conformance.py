"""The conformance suite of kernels: what every implementation of `Kernel` must do.

Run it on a kernel of your own from a test:

    @pytest.mark.parametrize("check", kernel_conformance.checks(["float32"]), ids=str)
    def test_conforms(check):
        check.run(MyKernel())

Results are held against dense attention in float64, within the error budget of
`dcp.verification.tolerances` and some last places of the accumulator: at most twice the error
that torch's attention makes in the same dtype on the same input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcp import masks
from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.errors import DtypeError
from dcp.execution_plan import ExecutionPlan
from dcp.kernel_interface import BlockMask, Kernel, accumulator_dtype
from dcp.masks import Mask
from dcp.planner import plan
from dcp.runtime.dtypes import DTYPES
from dcp.verification.kernel_blocks import (
    Block,
    assert_result,
    assert_within_budget,
    forward_backward,
    row_sums,
)
from dcp.verification.local_run import random_inputs, run_with_gradients
from dcp.verification.oracle import OracleResult, attention_oracle
from dcp.verification.tolerances import check_within_budget, max_error, require

HEAD_DIMS = (16, 24, 64, 80, 128, 192, 256)
HEADS = ((1, 1), (3, 3), (4, 2), (5, 1))
LENGTHS = ((1, 1), (1, 40), (40, 1), (16, 32), (47, 33))
_PLANS: dict[str, tuple[Batch, int, int, dict[str, Any]]] = {  # with ranks and key heads
    "ring": (Batch([18, 0, 9, 1]), 3, 2, {"baseline": "ring"}),
    "ulysses, key head shared": (Batch([18, 0, 9, 1]), 2, 1, {"baseline": "ulysses"}),
    "greedy, lambda": (
        Batch([29], mask=masks.lambda_mask(3, 9)),
        2,
        2,
        {"partitioner": "greedy", "scheduler": "overlap"},
    ),
}
_LENGTH = 35  # of the blocks that masks are tried on: two tiles of 16 and a little


@dataclass(frozen=True, kw_only=True)
class Check:
    """One statement about a kernel.

    Attributes:
        name: What is checked, and with what.
        action: Called with the kernel and a device; raises AssertionError.
    """

    name: str
    action: Callable[[Kernel, str], None]

    def run(self, kernel: Kernel, device: str = "cpu") -> None:
        """Assert that the statement is true of a kernel on a device."""
        self.action(kernel, device)

    def __str__(self) -> str:
        return self.name


def checks(dtypes: Iterable[str], *, refused: Iterable[str] = ()) -> list[Check]:
    """Every check, for every dtype.

    Args:
        dtypes: Dtypes that the kernel computes in on the device.
        refused: Dtypes that it has to refuse there.
    """
    found = [
        Check(name=f"{dtype}-{name}", action=action)
        for dtype in dtypes
        for name, action in _checks_of(dtype)
    ]
    found += [
        Check(name=f"{dtype}-refused", action=partial(check_refused, dtype)) for dtype in refused
    ]
    return found


def _checks_of(dtype: str) -> Iterator[tuple[str, Callable[[Kernel, str], None]]]:
    for name, mask in _masks().items():
        block = Block(q_len=_LENGTH, kv_len=_LENGTH, dtype=dtype, mask=mask)
        yield f"mask {name}", partial(check_block, block)
    for q_len, kv_len in LENGTHS:
        block = Block(q_len=q_len, kv_len=kv_len, dtype=dtype)
        yield f"lengths {q_len} {kv_len}", partial(check_block, block)
    ragged = np.random.default_rng(5).random((18, 18)) < 0.4
    ragged[[0, 7, 17]] = False
    block = Block(q_len=18, kv_len=18, dtype=dtype, mask=masks.from_dense(ragged))
    yield "mask ragged, with empty rows", partial(check_block, block)
    for heads, kv_heads in HEADS:
        block = Block(q_len=17, kv_len=18, dtype=dtype, heads=heads, kv_heads=kv_heads)
        yield f"heads {heads} {kv_heads}", partial(check_block, block)
    for head_dim in HEAD_DIMS:
        block = Block(
            q_len=18,
            kv_len=30,
            dtype=dtype,
            head_dim=head_dim,
            mask=masks.causal(offset=12),
            scale=head_dim**-0.5,
        )
        yield f"head_dim {head_dim}", partial(check_block, block)
    for check in (
        check_two_halves_merge_into_the_whole,
        check_gradient_of_lse,
        check_large_scores_do_not_overflow,
        check_strided_views,
        check_same_bits_again,
        check_length_zero,
        check_rows_without_key,
        check_merge_of_far_apart_partials,
        check_merge_with_nothing,
    ):
        yield check.__name__.removeprefix("check_").replace("_", " "), partial(check, dtype)
    for name in _PLANS:
        yield f"plan {name}", partial(check_plan, dtype, name)


def _masks() -> dict[str, Mask | None]:
    length = _LENGTH
    stripes = [
        (row, row + 1, row % 9, 10 + row % 25, -length, length) for row in range(0, length, 2)
    ]
    return {
        "none": None,
        "full": masks.full(),
        "causal": masks.causal(),
        "causal for a tail of queries": masks.causal(offset=13),
        "inverse causal": ~masks.causal(),
        "sliding window": masks.sliding_window(9),
        "wide window": masks.sliding_window(29),
        "lambda": masks.lambda_mask(3, 8),
        "causal blockwise": masks.causal_blockwise(7, 1),
        "shared question": masks.shared_question(answer_lengths=[9, 1, 14]),
        "prefix": masks.prefix_lm(11),
        "documents": masks.documents([5, 0, 17, 1, 12], masks.causal()),
        "a slice every other row": masks.from_slices(np.array(stripes), length, length),
        "nothing": masks.full() - masks.full(),
    }


# --- against float64 ---------------------------------------------------------------------------


def check_block(block: Block, kernel: Kernel, device: str) -> None:
    """One block, forward and backward, is as exact as torch's attention."""
    tensors = block.tensors()
    q, k, v, dout = (x.to(device) for x in tensors)
    mask = block.block_mask
    out, lse = kernel.forward(q, k, v, mask, block.scale)
    assert_result(block, q, out)
    require(lse.dtype == accumulator_dtype(q.dtype), f"lse is {lse.dtype}")
    delta = row_sums(dout, out)
    dq, dk, dv = kernel.backward(q, k, v, dout, lse, delta, mask, block.scale)
    for like, grad in ((q, dq), (k, dk), (v, dv)):
        assert_result(block, like, grad)
    assert_within_budget(block, tensors, {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv})


def check_two_halves_merge_into_the_whole(dtype: str, kernel: Kernel, device: str) -> None:
    """Two key blocks computed apart, merged and added up, are as exact as one."""
    block = Block(q_len=40, kv_len=64, dtype=dtype, mask=masks.causal(offset=20))
    tensors = block.tensors()
    q, k, v, dout = (x.to(device) for x in tensors)
    slices = block.batch.masks[0].slices(40, 64)
    halves = []
    for start, stop in ((0, 32), (32, 64)):
        part = masks.from_slices(slices, 40, 64) & _columns(40, 64, start, stop)
        moved = part.slices(40, 64) - np.array([0, 0, start, start, start, start])
        halves.append((k[start:stop], v[start:stop], BlockMask.of(moved)))
    parts = [kernel.forward(q, *half, block.scale) for half in halves]
    accumulator = accumulator_dtype(q.dtype)
    out, lse = (x.to(accumulator).clone() for x in parts[0])
    kernel.merge(out, lse, *parts[1])
    delta = row_sums(dout, out)
    grads = [
        kernel.backward(q, *half[:2], dout, lse, delta, half[2], block.scale) for half in halves
    ]
    dq = grads[0][0].to(accumulator) + grads[1][0].to(accumulator)
    dk, dv = (torch.cat([grad[index] for grad in grads]) for index in (1, 2))
    assert_within_budget(block, tensors, {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv})


def check_gradient_of_lse(dtype: str, kernel: Kernel, device: str) -> None:
    """A gradient of lse enters through delta, also in rows whose output has no gradient."""
    block = Block(q_len=24, kv_len=20, dtype=dtype, mask=masks.causal(offset=2))
    q, k, v, dout = block.tensors()
    dout[::2] = 0.0
    dlse = torch.linspace(-1.0, 1.0, 24 * 2).view(24, 2).to(accumulator_dtype(q.dtype))
    expected = attention_oracle(block.batch, block.spec, q, k, v, dout, dlse)
    delta = row_sums(dout, expected.out.to(dlse.dtype)) - dlse
    lse = expected.lse.to(delta)
    q, k, v, dout, lse, delta = (x.to(device) for x in (q, k, v, dout, lse, delta))
    grads = kernel.backward(q, k, v, dout, lse, delta, block.block_mask, block.scale)
    tolerance = 16 * torch.finfo(q.dtype).eps
    for name, grad in zip(("dq", "dk", "dv"), grads, strict=True):
        wanted = _tensor(expected, name)
        error = max_error(grad.cpu(), wanted)
        require(error <= tolerance * float(wanted.abs().max()), f"{name} is off by {error:.3g}")


def check_large_scores_do_not_overflow(dtype: str, kernel: Kernel, device: str) -> None:
    """Scores in the thousands, where exponentials of them overflow in any dtype."""
    block = Block(q_len=20, kv_len=33, dtype=dtype, spread=30.0, mask=masks.causal(offset=13))
    q, k, v, _ = (x.to(device) for x in block.tensors())
    out, lse = kernel.forward(q, k, v, block.block_mask, block.scale)
    expected = attention_oracle(block.batch, block.spec, q, k, v)
    require(bool(out.isfinite().all()), "out is not finite")
    # The exponent's rounding grows with the scores, so out is exact to eps times the largest.
    scores = float(expected.lse.abs().max())
    eps = torch.finfo(q.dtype).eps + scores * torch.finfo(accumulator_dtype(q.dtype)).eps
    for name, actual in (("out", out), ("lse", lse)):
        wanted = _tensor(expected, name)
        error = max_error(actual.cpu(), wanted)
        require(error <= 8 * eps * float(wanted.abs().max()), f"{name} is off by {error:.3g}")


def check_plan(dtype: str, name: str, kernel: Kernel, device: str) -> None:
    """A whole plan, run by the kernel's own way with instructions, is within its budget."""
    made = _planned(dtype, name)
    q, k, v, dout = inputs = random_inputs(_PLANS[name][0], made.spec)
    on_device = (q.to(device), k.to(device), v.to(device), dout.to(device))
    results = {
        each: x.cpu() for each, x in run_with_gradients(made, on_device, kernel=kernel).items()
    }
    check_within_budget(_PLANS[name][0], made.spec, inputs, results)


# --- the same bits -----------------------------------------------------------------------------


def check_strided_views(dtype: str, kernel: Kernel, device: str) -> None:
    """Views of some heads of larger tensors give the bits that contiguous copies give."""
    wide = Block(q_len=21, kv_len=21, dtype=dtype, heads=6, kv_heads=3, mask=masks.causal())
    q, k, v, dout = (x.to(device) for x in wide.tensors())
    views = (q[:, 2:4], k[:, 1:2], v[:, 1:2], dout[:, 2:4])
    copies = tuple(view.contiguous() for view in views)
    for one, other in zip(
        forward_backward(kernel, wide, views), forward_backward(kernel, wide, copies), strict=True
    ):
        require(torch.equal(one, other), "a strided view gives other bits than its copy")


def check_same_bits_again(dtype: str, kernel: Kernel, device: str) -> None:
    """Two runs give the same bits."""
    block = Block(q_len=20, kv_len=33, dtype=dtype, heads=4, kv_heads=2, mask=masks.causal(5))
    tensors = tuple(x.to(device) for x in block.tensors())
    first, again = (forward_backward(kernel, block, tensors) for _ in range(2))
    require(all(map(torch.equal, first, again)), "a second run gives other bits")


# --- edges -------------------------------------------------------------------------------------


def check_length_zero(dtype: str, kernel: Kernel, device: str) -> None:
    """No queries or no keys: output 0, lse -inf, gradients 0."""
    for q_len, kv_len in ((0, 5), (5, 0), (0, 0)):
        block = Block(q_len=q_len, kv_len=kv_len, dtype=dtype)
        tensors = tuple(x.to(device) for x in block.tensors())
        out, lse, *grads = forward_backward(kernel, block, tensors)
        for like, result in zip(tensors[:1] + tensors[:3], (out, *grads), strict=True):
            require(result.shape == like.shape, f"{tuple(result.shape)}, not {tuple(like.shape)}")
            require(not result.any(), "a result of no keys or no queries is not 0")
        require(bool((lse == -math.inf).all()), "lse of no keys is not -inf")
        kernel.merge(out.float().to(lse.dtype), lse, out, lse.clone())


def check_rows_without_key(dtype: str, kernel: Kernel, device: str) -> None:
    """Rows that see no key of any block: output 0, lse -inf, gradient 0, and no NaN."""
    allowed = np.zeros((40, 24), dtype=np.bool_)
    allowed[9:20, 4:20] = True
    block = Block(q_len=40, kv_len=24, dtype=dtype, mask=masks.from_dense(allowed))
    out, lse, dq, dk, dv = forward_backward(
        kernel, block, tuple(x.to(device) for x in block.tensors())
    )
    blind = torch.ones(40, dtype=torch.bool, device=device)
    blind[9:20] = False
    require(not out[blind].any(), "out of a row without key is not 0")
    require(bool((lse[blind] == -math.inf).all()), "lse of a row without key is not -inf")
    require(not dq[blind].any(), "dq of a row without key is not 0")
    for name, result in (("out", out), ("dq", dq), ("dk", dk), ("dv", dv)):
        require(bool(result.isfinite().all()), f"{name} is not finite")


def check_merge_of_far_apart_partials(dtype: str, kernel: Kernel, device: str) -> None:
    """The larger lse wins without overflow (TransformerEngine#716, ring-flash-attention#30)."""
    for far in (100.0, 1000.0, 2.0**100):
        fades, wins = (1.0, -far), (2.0, far)
        for first, second in ((fades, wins), (wins, fades)):
            merged = _merged(kernel, dtype, device, first, second)
            require(merged == wins, f"{first} with {second} gives {merged}")
    out, lse = _merged(kernel, dtype, device, (1.0, 2.0), (3.0, 2.0))
    require(abs(out - 2.0) <= 1e-6, f"the mean of 1 and 3 is {out}")
    require(abs(lse - 2.0 - math.log(2.0)) <= 1e-6, f"log(2 e^2) is {lse}")


def check_merge_with_nothing(dtype: str, kernel: Kernel, device: str) -> None:
    """A partial without keys is neutral on both sides, and two of them stay nothing."""
    nothing, some = (0.0, -math.inf), (3.0, -5.0)
    for first, second, wanted in (
        (nothing, nothing, nothing),
        (nothing, some, some),
        (some, nothing, some),
    ):
        merged = _merged(kernel, dtype, device, first, second)
        require(merged == wanted, f"{first} with {second} gives {merged}")


def check_refused(dtype: str, kernel: Kernel, device: str) -> None:
    """A dtype without code is refused by name."""
    block = Block(q_len=4, kv_len=4, dtype=dtype)
    q, k, v, _ = (x.to(device) for x in block.tensors())
    try:
        kernel.forward(q, k, v, None, block.scale)
    except DtypeError as error:
        message = str(error)
    else:
        raise AssertionError(f"{dtype} was not refused")
    require(dtype in message, f"the message does not name {dtype}: {message}")


# --- helpers -----------------------------------------------------------------------------------


@lru_cache
def _planned(dtype: str, name: str) -> ExecutionPlan:
    batch, ranks, kv_heads, how = _PLANS[name]
    spec = AttentionSpec(num_q_heads=4, num_kv_heads=kv_heads, head_dim=16, dtype=dtype)
    return plan(batch, spec, Cluster(devices_per_node=ranks), block_size=8, **how)


def _merged(
    kernel: Kernel, dtype: str, device: str, *parts: tuple[float, float]
) -> tuple[float, float]:
    """Merge partials in turn, the later ones in the given dtype, and return out and lse."""
    spec_dtype = DTYPES[dtype]
    accumulator = accumulator_dtype(spec_dtype)
    (out, lse), *others = (
        (
            torch.full((1, 1, 16), value, dtype=accumulator, device=device),
            torch.full((1, 1), log, dtype=accumulator, device=device),
        )
        for value, log in parts
    )
    for new_out, new_lse in others:
        kernel.merge(out, lse, new_out.to(spec_dtype), new_lse)
    return float(out[0, 0, 0]), float(lse)


def _columns(q_len: int, kv_len: int, start: int, stop: int) -> Mask:
    rows = np.array([[0, q_len, start, stop, -q_len, kv_len]])
    return masks.from_slices(rows, q_len, kv_len)


def _tensor(result: OracleResult, name: str) -> Tensor:
    return result.tensors()[name]
