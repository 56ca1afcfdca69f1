"""USP: Ulysses groups crossed with rings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from dcp.baselines.dealing import Grid
from dcp.baselines.hybrid import HybridBaseline
from dcp.checks import check_choice, check_integer
from dcp.errors import SpecError
from dcp.plan_request import PlanRequest

Layout = Literal["ulysses_inner", "ring_inner"]
Chunks = Literal["zigzag", "contiguous"]


@dataclass(frozen=True, kw_only=True)
class USP(HybridBaseline):
    """Heads are exchanged inside Ulysses groups, keys are passed round between the groups.

    The ranks of a Ulysses group share one ring share (a chunk, or a head and a tail chunk of
    every sequence) in even parts. After their all-to-all each holds the whole share for its
    heads, passes the keys on to the next group, and sends the output back by another
    all-to-all. 1 x P is the ring itself, P x 1 is Ulysses.

    The original refuses head counts that the Ulysses degree does not divide, and pads lengths;
    for what happens here see `Ulysses` and `Zigzag`.

    Args:
        ulysses_degree: Ranks that exchange heads. None: derived from `ring_degree`; if that is
            None too, the largest that divides both the ranks and the key heads.
        ring_degree: Ranks in a ring. None: what is left of the ranks.
        layout: Which groups consist of consecutive ranks, so share a node.
        ring: How the rings deal every sequence out.
    Raises:
        SpecError: an illegal option; from `arrange`, degrees that do not multiply to the number
            of ranks, or more ranks in a Ulysses group than query heads.
    Source: Fang & Zhao 2024, "USP: A Unified Sequence Parallelism Approach for Long Context
        Generative AI", arXiv 2405.07719.
    """

    name: ClassVar[str] = "usp"
    ulysses_degree: int | None = None
    ring_degree: int | None = None
    layout: Layout = "ulysses_inner"
    ring: Chunks = "zigzag"

    def __post_init__(self) -> None:
        for field, legal in (
            ("layout", ("ulysses_inner", "ring_inner")),
            ("ring", ("zigzag", "contiguous")),
        ):
            check_choice(field, getattr(self, field), legal)
        for field in ("ulysses_degree", "ring_degree"):
            value = getattr(self, field)
            if value is not None:
                check_integer(field, value)

    def grid(self, request: PlanRequest) -> Grid:
        """Rings across Ulysses groups.

        Raises:
            SpecError: degrees that do not multiply to the number of ranks.
        """
        ulysses, ring = self._degrees(request.cluster.num_devices, request.spec.num_kv_heads)
        return Grid(
            ulysses_degree=ulysses,
            ring_degree=ring,
            zigzag=self.ring == "zigzag",
            ulysses_inner=self.layout == "ulysses_inner",
        )

    def _degrees(self, ranks: int, kv_heads: int) -> tuple[int, int]:
        ulysses, ring = self.ulysses_degree, self.ring_degree
        if ulysses is None:
            ulysses = math.gcd(ranks, kv_heads) if ring is None else ranks // ring
        if ring is None:
            ring = ranks // ulysses
        if ulysses * ring != ranks:
            raise SpecError(
                f"ulysses_degree={self.ulysses_degree} and ring_degree={self.ring_degree} do not "
                f"fit {ranks} ranks; their product must be {ranks}, so give divisors of it"
            )
        return ulysses, ring
