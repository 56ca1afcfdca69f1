"""Computation blocks with the head groups of one (query, key) pair of token blocks tied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import IntArray
from dcp.packing import loads
from dcp.placement import PlacementProblem


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """One entry a (query, key) pair of token blocks, ordered by (q, kv).

    Attributes:
        q, kv: Token blocks, [P].
        flops: Work of all head groups together, [P].
        of_comp: Pair of every computation block, [C].
        q_bytes, kv_bytes: Forward bytes for each extra place at the queries (Q and O) and at
            the keys of every token block, all head groups together, [T].
    """

    q: IntArray
    kv: IntArray
    flops: IntArray
    of_comp: IntArray
    q_bytes: IntArray
    kv_bytes: IntArray

    @classmethod
    def of(cls, problem: PlacementProblem) -> Pairs:
        """Tie the computations of a problem."""
        tokens = max(len(problem.token_tokens), 1)
        key, of_comp = np.unique(problem.comp_q * tokens + problem.comp_kv, return_inverse=True)
        of_comp = of_comp.reshape(-1)
        return cls(
            q=key // tokens,
            kv=key % tokens,
            flops=loads(of_comp, problem.comp_flops, len(key)),
            of_comp=of_comp,
            q_bytes=problem.q_side_bytes.sum(axis=1),
            kv_bytes=problem.kv_side_bytes.sum(axis=1),
        )

    def saving(self, where: IntArray, places: int) -> IntArray:
        """Bytes that each place saves as home of each token block, [T, places]."""
        touched = np.zeros((2, len(self.q_bytes), places), dtype=bool)
        touched[0, self.q, where] = True
        touched[1, self.kv, where] = True
        saved = touched[0] * self.q_bytes[:, None] + touched[1] * self.kv_bytes[:, None]
        return np.asarray(saved, dtype=np.int64)
