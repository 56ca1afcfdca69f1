"""A partitioner that heeds nothing: whatever comes after it has to work for any placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.checks import check_integer
from dcp.placement import Assignment, Partitioner, PlacementProblem


@dataclass(frozen=True, kw_only=True)
class AnyPlacement(Partitioner):
    """Homes and devices drawn at random, heedless of balance: any placement has to work."""

    name: ClassVar[str] = "any"
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, least=0)

    def place(self, problem: PlacementProblem) -> Assignment:
        """Answer a problem; the seed alone decides."""
        draw, devices = np.random.default_rng(self.seed), problem.cluster.num_devices
        return Assignment(
            draw.integers(0, devices, len(problem.token_tokens)),
            draw.integers(0, devices, len(problem.comp_q)),
        )
