"""DeepSpeed-Ulysses: all-to-alls that trade tokens for heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcp.baselines.dealing import Grid
from dcp.baselines.hybrid import HybridBaseline
from dcp.plan_request import PlanRequest


@dataclass(frozen=True, kw_only=True)
class Ulysses(HybridBaseline):
    """Rank r of P is home to chunk r of every sequence and computes 1 / P of the heads.

    All-to-alls of Q, K and V come before the work and one of O after it; in each a rank sends
    (P - 1) / P of its tensor. Backward, dO goes the way of Q, dQ and dKV that of O, and Q, K and
    V are exchanged again (the original keeps them from the forward pass).

    The original refuses head counts that P does not divide; later DeepSpeed deals them unevenly,
    as here: 7 heads over 4 ranks are 2, 2, 2, 1. With fewer key heads than ranks a key head is
    replicated to each rank that computes query heads of it, and its gradients are added up at
    home. Lengths are cut at floor(i * L / P), where the original needs even chunks.

    Raises:
        SpecError: (from `arrange`) more ranks than query heads.
    Source: Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv 2309.14509.
    """

    name: ClassVar[str] = "ulysses"

    def grid(self, request: PlanRequest) -> Grid:
        """One Ulysses group of all ranks."""
        return Grid(ulysses_degree=request.cluster.num_devices)
