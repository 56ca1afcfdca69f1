"""What the benchmarks of the executor have in common: batches, strategies and the reference."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
import typer
from torch import Tensor

import dcp
from dcp import masks, slices

aten = torch.ops.aten

Q_HEADS, KV_HEADS = 8, 2


class Shape(NamedTuple):
    """A batch to attend over, and how it is cut."""

    lengths: list[int]
    mask: masks.Mask
    block_size: int = 1024

    @property
    def batch(self) -> dcp.Batch:
        """The batch."""
        return dcp.Batch(self.lengths, mask=self.mask)

    @property
    def share_of_causal(self) -> float:
        """Allowed pairs of the mask over those of a causal one."""
        allowed = sum(
            int(slices.size(self.mask.slices(length, length)).sum()) for length in self.lengths
        )
        return allowed / sum(length * (length + 1) // 2 for length in self.lengths)


_QUESTION = masks.shared_question(question_fraction=0.2, answers=4)
SHAPES = {
    "one-4k": Shape([4096], masks.causal(), 512),
    "one": Shape([8192], masks.causal()),
    "one-16k": Shape([16384], masks.causal()),
    "varlen-4k": Shape([2048, 1000, 520, 528], masks.causal(), 512),
    "short": Shape(
        [1500, 1100, 800, 600, 500, 400, 300, 300, 200, 200, 100, 100], masks.causal(), 512
    ),
    "ragged": Shape([4000, 2100, 1200, 700, 192], masks.causal()),
    "one-32k": Shape([32768], masks.causal(), 2048),
    "ragged-16k": Shape([6000, 4100, 2500, 1500, 900, 700, 400, 192], masks.causal()),
    "ragged-32k": Shape([14000, 7100, 5500, 3500, 1900, 700, 68], masks.causal(), 2048),
    "lambda": Shape([8192], masks.lambda_mask(sink=64, window=4096)),
    "lambda-2k": Shape([8192], masks.lambda_mask(sink=64, window=2048)),
    "lambda-16k": Shape([16384], masks.lambda_mask(sink=64, window=2048)),
    "lambda-32k": Shape([32768], masks.lambda_mask(sink=64, window=4096), 2048),
    "shared-question": Shape([8192], _QUESTION),
    "shared-question-16k": Shape([16384], _QUESTION),
    "shared-question-32k": Shape([32768], _QUESTION, 2048),
    "causal-blockwise": Shape([8192], masks.causal_blockwise(block=256, local=2)),
    "causal-blockwise-16k": Shape([16384], masks.causal_blockwise(block=256, local=2)),
    "causal-blockwise-32k": Shape([32768], masks.causal_blockwise(block=256, local=2), 2048),
    "causal-blockwise-1k": Shape([8192], masks.causal_blockwise(block=1024, local=1)),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "auto": {},
    "ours": {"partitioner": "local_search", "scheduler": "overlap"},
    "zigzag": {"baseline": "zigzag"},
    "ring": {"baseline": "ring"},
    "usp": {"baseline": "usp"},
    "ulysses": {"baseline": "ulysses"},
    "allgather": {"baseline": "allgather"},
}


def chosen(text: str, legal: Collection[str]) -> list[str]:
    """Names between commas.

    Raises:
        BadParameter: one that is not legal; the message lists those that are.
    """
    names = text.split(",")
    unknown = [name for name in names if name not in legal]
    if unknown:
        raise typer.BadParameter(f"no {', '.join(unknown)}; legal: {', '.join(legal)}")
    return names


def spec_of(head_dim: int, dtype: str) -> dcp.AttentionSpec:
    """Heads and dtype."""
    return dcp.AttentionSpec(
        num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=head_dim, dtype=dtype
    )


def planned(
    shape: Shape, strategy: str, spec: dcp.AttentionSpec, cluster: dcp.Cluster, *, seed: int
) -> dcp.ExecutionPlan:
    """The plan of a strategy."""
    options = STRATEGIES[strategy]
    return dcp.plan(shape.batch, spec, cluster, block_size=shape.block_size, seed=seed, **options)


def random_tensors(
    tokens: int, head_dim: int, dtype: str, *, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and dout, standard normal, [tokens, heads, head_dim]."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v, dout = (
        torch.randn(tokens, heads, head_dim, generator=generator).to(getattr(torch, dtype))
        for heads in (Q_HEADS, KV_HEADS, KV_HEADS, Q_HEADS)
    )
    return q, k, v, dout


def fused_causal(lengths: list[int], tensors: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """Causal attention of whole sequences and its gradients, by torch's fused CPU operators.

    Args:
        lengths: Of the sequences.
        tensors: q, k, v and dout, packed.
    """
    for part in zip(*(torch.split(x, lengths) for x in tensors), strict=True):
        q, k, v, dout = (x.transpose(0, 1)[None].contiguous() for x in part)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, True
        )
