"""Ring attention with head and tail chunks, balanced under causal masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcp.baselines.dealing import Grid
from dcp.baselines.hybrid import HybridBaseline
from dcp.plan_request import PlanRequest


@dataclass(frozen=True, kw_only=True)
class Zigzag(HybridBaseline):
    """Of 2P chunks of every sequence, rank r of P is home to chunks r and 2P - 1 - r.

    The KV of both chunks make each hop together; hops and bytes are those of `Ring`. Chunks are
    cut at floor(i * L / 2P). The originals (ring-flash-attention's zigzag, TransformerEngine,
    Megatron-LM) need every sequence to be padded to a multiple of 2P; here chunks may differ by
    a token and be empty.

    Source: Brandon et al. 2023, "Striped Attention", arXiv 2311.09431, states the imbalance;
        Dubey et al. 2024, "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2, the
        head and tail chunks.
    """

    name: ClassVar[str] = "zigzag"

    def grid(self, request: PlanRequest) -> Grid:
        """One ring of all ranks, with head and tail chunks."""
        return Grid(ring_degree=request.cluster.num_devices, zigzag=True)
