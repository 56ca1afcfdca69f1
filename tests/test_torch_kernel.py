"""The torch kernel on one block: equal to the formulas, in every dtype, at every edge."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dcp import registry
from dcp.errors import DtypeError, ShapeError
from dcp.kernel_interface import BlockMask, Kernel, accumulator_dtype
from dcp.kernels import torch_masks, torch_ops
from dcp.kernels.torch_flash import TorchFlash

KERNEL = TorchFlash()
SCALE = 0.3

MASKS = {
    "full": None,
    "causal": lambda q, k: BlockMask(((0, q, 0, q, 1 - q, 0),)) if q == k else band(q, k, -q, 0),
    "window": lambda q, k: band(q, k, -3, 0),
    "rows without key": lambda q, k: BlockMask(((2, q, 1, k, 1 - q, k - 3),)),
    "two slices": lambda q, k: BlockMask(((0, 2, 0, k, -1, k - 1), (3, q, 0, 2, 1 - q, -2))),
}


def band(q_len: int, kv_len: int, lo: int, hi: int) -> BlockMask:
    return BlockMask(((0, q_len, 0, kv_len, lo, hi),))


def mask_named(name: str, q_len: int, kv_len: int) -> BlockMask | None:
    make = MASKS[name]
    return make(q_len, kv_len) if make else None


def random_block(
    q_len: int, kv_len: int, heads: int, kv_heads: int, dtype: torch.dtype, head_dim: int = 24
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = [(q_len, heads), (kv_len, kv_heads), (kv_len, kv_heads), (q_len, heads)]
    q, k, v, dout = (
        torch.randn(*shape, head_dim, generator=generator, dtype=torch.float64).to(dtype)
        for shape in shapes
    )
    return q, k, v, dout


def dense_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None
) -> tuple[Tensor, Tensor, Tensor]:
    """out, lse and probabilities in float64; [.., heads first] for the last."""
    heads = q.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(heads // len(x), dim=0) for x in (k, v))
    scores = SCALE * q @ k.mT
    if mask is not None:
        allowed = torch.from_numpy(mask.dense(q.shape[1], k.shape[1]))
        scores = scores.masked_fill(~allowed, -math.inf)
    lse = scores.logsumexp(dim=-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
    return (weights @ v).transpose(0, 1), lse.T, weights


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.detach().double() - expected).norm() / expected.norm().clamp_min(1e-30))


TOLERANCE = {
    torch.float64: 1e-14,
    torch.float32: 1e-6,
    torch.bfloat16: 1e-2,
    torch.float16: 1e-3,
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(9, 9), (7, 13), (33, 5)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (4, 2)])
def test_forward_and_backward_follow_the_formulas(
    dtype: torch.dtype, mask_name: str, q_len: int, kv_len: int, heads: int, kv_heads: int
) -> None:
    q, k, v, dout = random_block(q_len, kv_len, heads, kv_heads, dtype)
    mask = mask_named(mask_name, q_len, kv_len)
    out, lse = KERNEL.forward(q, k, v, mask, SCALE)
    expected_out, expected_lse, weights = dense_forward(q, k, v, mask)
    assert lse.dtype == accumulator_dtype(dtype)
    assert lse.shape == (q_len, heads)
    assert torch.equal(lse == -math.inf, expected_lse == -math.inf)
    some = expected_lse > -math.inf
    assert relative_error(out, expected_out) < TOLERANCE[dtype]
    # lse never takes the tensors' rounding: products of them are exact in the accumulator.
    assert relative_error(lse[some], expected_lse[some]) < max(TOLERANCE[dtype] / 1000, 1e-6)

    delta = (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    grads = KERNEL.backward(q, k, v, dout, lse, delta, mask, SCALE)
    grad, keys, values = (x.double().transpose(0, 1) for x in (dout, k, v))
    ratio = heads // kv_heads
    keys, values = keys.repeat_interleave(ratio, 0), values.repeat_interleave(ratio, 0)
    dscores = SCALE * weights * (grad @ values.mT - delta.double().T[..., None])

    def per_key_head(x: Tensor) -> Tensor:
        return x.view(kv_heads, ratio, *x.shape[1:]).sum(1).transpose(0, 1)

    expected = (
        (dscores @ keys).transpose(0, 1),
        per_key_head(dscores.mT @ q.double().transpose(0, 1)),
        per_key_head(weights.mT @ grad),
    )
    for actual, wanted in zip(grads, expected, strict=True):
        assert relative_error(actual, wanted) < 3 * TOLERANCE[dtype]


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (0, 0)])
def test_blocks_of_length_zero_do_not_reach_torch(q_len: int, kv_len: int) -> None:
    q, k, v, dout = random_block(q_len, kv_len, 2, 1, torch.float32)
    out, lse = KERNEL.forward(q, k, v, None, SCALE)
    assert out.shape == q.shape
    assert not out.any()
    assert bool((lse == -math.inf).all())
    dq, dk, dv = KERNEL.backward(q, k, v, dout, lse, torch.zeros_like(lse), None, SCALE)
    assert (dq.shape, dk.shape, dv.shape) == (q.shape, k.shape, v.shape)
    assert not any(grad.any() for grad in (dq, dk, dv))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rows_without_any_key_have_gradient_zero(dtype: torch.dtype) -> None:
    q, k, v, dout = random_block(8, 8, 2, 1, dtype)
    mask = BlockMask(((5, 8, 0, 8, -7, 2),))
    out, lse = KERNEL.forward(q, k, v, mask, SCALE)
    assert bool((lse[:5] == -math.inf).all())
    delta = (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    dq, dk, dv = KERNEL.backward(q, k, v, dout, lse, delta, mask, SCALE)
    assert not dq[:5].any()
    assert all(bool(grad.isfinite().all()) for grad in (dq, dk, dv))
    seeing = KERNEL.backward(
        q[5:], k, v, dout[5:], lse[5:], delta[5:], BlockMask(((0, 3, 0, 8, -2, 7),)), SCALE
    )
    assert relative_error(dk, seeing[1].double()) < TOLERANCE[dtype]
    assert relative_error(dv, seeing[2].double()) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_strided_views_of_a_head_group_give_the_same_bits(dtype: torch.dtype) -> None:
    q, k, v, dout = random_block(11, 11, 6, 3, dtype)
    heads, key_head = slice(2, 4), slice(1, 2)
    views = q[:, heads], k[:, key_head], v[:, key_head]
    copies = tuple(x.contiguous() for x in views)
    mask = mask_named("window", 11, 11)
    (out, lse), (out_copy, lse_copy) = (
        KERNEL.forward(*tensors, mask, SCALE) for tensors in (views, copies)
    )
    assert torch.equal(out, out_copy)
    assert torch.equal(lse, lse_copy)
    dout = dout[:, heads]
    delta = (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    grads = KERNEL.backward(*views, dout, lse, delta, mask, SCALE)
    again = KERNEL.backward(*copies, dout.contiguous(), lse.contiguous(), delta, mask, SCALE)
    assert all(map(torch.equal, grads, again))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_two_merged_blocks_err_at_most_twice_as_much_as_one_device(dtype: torch.dtype) -> None:
    q, k, v, dout = random_block(256, 512, 4, 1, dtype, head_dim=64)
    halves = [(k[:256], v[:256]), (k[256:], v[256:])]
    parts = [KERNEL.forward(q, *half, None, SCALE) for half in halves]
    accumulator = accumulator_dtype(dtype)
    out, lse = (x.to(accumulator).contiguous() for x in parts[0])
    KERNEL.merge(out, lse, *parts[1])
    out = out.to(dtype)
    delta = (dout.to(accumulator) * out.to(accumulator)).sum(-1)
    grads = [KERNEL.backward(q, *half, dout, lse, delta, None, SCALE) for half in halves]
    dq = sum(grad[0].to(accumulator) for grad in grads)
    dk, dv = (torch.cat([grad[index] for grad in grads]).to(dtype) for index in (1, 2))

    def one_device(dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        heads_first = [x.transpose(0, 1)[None] for x in inputs]
        heads_first[1:] = [x.expand(1, 4, 512, 64) for x in heads_first[1:]]
        result = torch.nn.functional.scaled_dot_product_attention(*heads_first, scale=SCALE)
        result = result[0].transpose(0, 1)
        return result.detach(), *torch.autograd.grad(result, inputs, dout.to(dtype))

    exact, single = one_device(torch.float64), one_device(dtype)
    for actual, reference, wanted in zip((out, dq.to(dtype), dk, dv), single, exact, strict=True):
        assert relative_error(actual, wanted) <= 2 * relative_error(reference, wanted)


class TestMerge:
    """Merging partials by their lse."""

    def merged(self, *parts: tuple[float, float]) -> tuple[float, float]:
        (out, lse), *others = (
            (torch.full((1, 1, 2), value), torch.full((1, 1), log)) for value, log in parts
        )
        for other in others:
            KERNEL.merge(out, lse, *other)
        return float(out[0, 0, 0]), float(lse)

    def test_far_apart_partials_do_not_overflow(self) -> None:
        """TransformerEngine#716 and ring-flash-attention#30."""
        assert self.merged((1.0, 0.0), (2.0, 1000.0)) == (2.0, 1000.0)
        assert self.merged((2.0, 1000.0), (1.0, 0.0)) == (2.0, 1000.0)
        assert self.merged((1.0, -100.0), (2.0, 100.0)) == (2.0, 100.0)

    def test_nothing_merged_with_nothing_stays_nothing(self) -> None:
        assert self.merged((0.0, -math.inf), (0.0, -math.inf)) == (0.0, -math.inf)

    def test_nothing_is_neutral_on_both_sides(self) -> None:
        assert self.merged((0.0, -math.inf), (3.0, -5.0)) == (3.0, -5.0)
        assert self.merged((3.0, -5.0), (0.0, -math.inf)) == (3.0, -5.0)

    def test_equal_partials_average(self) -> None:
        out, lse = self.merged((1.0, 2.0), (3.0, 2.0))
        assert out == pytest.approx(2.0)
        assert lse == pytest.approx(2.0 + math.log(2.0))

    def test_half_precision_partials_accumulate_in_float32(self) -> None:
        out, lse = torch.ones(1, 1, 2), torch.zeros(1, 1)
        KERNEL.merge(out, lse, torch.ones(1, 1, 2, dtype=torch.bfloat16), torch.tensor([[-12.0]]))
        assert out.dtype == torch.float32
        assert float(lse) == pytest.approx(math.log1p(math.exp(-12.0)))


@pytest.mark.parametrize("mask_name", MASKS)
def test_rows_where_only_lse_has_a_gradient_are_exact(mask_name: str) -> None:
    q, k, v, dout = random_block(9, 9, 4, 2, torch.float64)
    mask = mask_named(mask_name, 9, 9)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, lse, _ = dense_forward(q, k, v, mask)
    dout[::2] = 0.0
    some = lse > -math.inf
    dlse = torch.randn(lse.shape, dtype=torch.float64)
    loss = (out * dout).sum() + (lse[some] * dlse[some]).sum()
    expected = torch.autograd.grad(loss, (q, k, v))
    delta = ((out * dout).sum(-1) - dlse * some).detach()
    grads = KERNEL.backward(q, k, v, dout, lse.detach(), delta, mask, SCALE)
    for actual, wanted in zip(grads, expected, strict=True):
        assert relative_error(actual, wanted) < 1e-13


class TestMasks:
    """What is derived from a mask."""

    def test_only_the_square_causal_mask_is_called_causal(self) -> None:
        assert BlockMask(((0, 4, 0, 4, -3, 0),)).is_causal_square(4, 4)
        assert not BlockMask(((0, 4, 0, 4, -3, 0),)).is_causal_square(4, 5)
        assert not BlockMask(((0, 4, 0, 4, -2, 0),)).is_causal_square(4, 4)

    def test_equal_masks_share_one_tensor(self) -> None:
        cpu = torch.device("cpu")
        tensors = [
            torch_masks.additive(BlockMask.of(slices), 6, 5, torch.float32, cpu)
            for slices in np.array([[[0, 6, 0, 5, -5, 0]]] * 2)
        ]
        assert tensors[0] is tensors[1]
        allowed = BlockMask(((0, 6, 0, 5, -5, 0),)).dense(6, 5)
        assert torch.equal(tensors[0] == 0.0, torch.from_numpy(allowed))

    def test_the_cache_forgets_what_was_used_longest_ago(self) -> None:
        cache = torch_masks.TensorCache(limit_bytes=1000)
        made = []

        def tensor_of(key: str) -> Tensor:
            return cache.get(key, lambda: made.append(key) or torch.zeros(100))

        for key in "ab", "cd", "ab", "ef", "ab", "cd":
            tensor_of(key)
        assert made == ["ab", "cd", "ef", "cd"]
        assert len(cache) == 2


class TestCuda:
    """Shapes only, on tensors without data: this code has never run on a GPU."""

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
    @pytest.mark.parametrize("with_bias", [False, True])
    def test_operators_accept_what_they_are_given(
        self, dtype: torch.dtype, with_bias: bool
    ) -> None:
        with FakeTensorMode():
            q = torch.empty(1, 4, 40, 64, dtype=dtype, device="cuda")
            k = torch.empty(1, 4, 56, 64, dtype=dtype, device="cuda")
            bias = torch.empty(40, 64, dtype=dtype, device="cuda").narrow(1, 0, 56)
            shape = torch_ops.Shape(False, bias if with_bias else None, SCALE)
            out, lse = torch_ops.forward(q, k, k, shape)
            assert out.shape == q.shape
            assert (lse.shape, lse.dtype) == ((1, 4, 40), torch.float32)
            grads = torch_ops.backward(q, k, k, out, out, lse, shape)
            assert [grad.shape for grad in grads] == [q.shape, k.shape, k.shape]

    def test_what_has_no_fused_operator_is_refused(self) -> None:
        shape = torch_ops.Shape(True, None, SCALE)
        with FakeTensorMode():
            double = torch.empty(1, 1, 8, 64, dtype=torch.float64, device="cuda")
            with pytest.raises(DtypeError, match="no fused float64 attention on CUDA"):
                torch_ops.forward(double, double, double, shape)
            odd = torch.empty(1, 1, 8, 60, dtype=torch.bfloat16, device="cuda")
            with pytest.raises(ShapeError, match=r"head_dim 60 .* pad head_dim"):
                torch_ops.forward(odd, odd, odd, shape)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask_name", MASKS)
def test_cuda_equals_cpu(dtype: torch.dtype, mask_name: str) -> None:
    q, k, v, dout = random_block(33, 33, 4, 2, dtype, head_dim=64)
    mask = mask_named(mask_name, 33, 33)
    out, lse = KERNEL.forward(q, k, v, mask, SCALE)
    delta = (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    inputs = q, k, v, dout, lse, delta
    expected = out, lse, *KERNEL.backward(*inputs, mask, SCALE)
    q, k, v, *rest = (x.cuda() for x in inputs)
    results = *KERNEL.forward(q, k, v, mask, SCALE), *KERNEL.backward(q, k, v, *rest, mask, SCALE)
    for actual, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(
            actual.cpu().float(), wanted.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


def test_it_is_the_kernel_named_torch() -> None:
    kernel = registry.create("kernels", "torch")
    assert isinstance(kernel, Kernel)
    assert kernel == KERNEL
