"""Ring attention with contiguous chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcp.baselines.dealing import Grid
from dcp.baselines.hybrid import HybridBaseline
from dcp.plan_request import PlanRequest


@dataclass(frozen=True, kw_only=True)
class Ring(HybridBaseline):
    """Rank r of P is home to chunk r of every sequence; keys are passed round.

    Forward, each chunk's KV makes P - 1 hops from neighbour to neighbour, also where the mask
    needs nothing of it; a rank sends (P - 1) / P of all KV. Backward KV makes them again, and
    dKV makes P hops, one behind, collecting on the way until it is home.

    Chunks are cut at floor(i * L / P). The originals split evenly and refuse or pad lengths that
    P does not divide; here chunks may differ by a token and be empty. Under a causal mask the
    last rank computes about twice the mean: that is the scheme (`Zigzag` mends it).

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite
        Context", arXiv 2310.01889.
    """

    name: ClassVar[str] = "ring"

    def grid(self, request: PlanRequest) -> Grid:
        """One ring of all ranks."""
        return Grid(ring_degree=request.cluster.num_devices)
