"""Which devices touch which data blocks, and what a change of place costs in bytes."""

from __future__ import annotations

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.placement import PlacementProblem


class Touching:
    """Counts of computations at each data block and place, kept up to date under moves.

    A place is a device or a node, so the same arithmetic serves both levels. Bytes follow the
    formula of `dcp.placement`: each place that touches a data block, other than its home, costs
    the block's bytes once.

    Args:
        problem: Blocks and their bytes.
        home: Place of every token block, [T].
        where: Place of every computation block, [C].
        places: Number of places.
    """

    def __init__(
        self, problem: PlacementProblem, home: IntArray, where: IntArray, places: int
    ) -> None:
        groups = problem.q_side_bytes.shape[1]
        self.home = home.copy()
        self.where = where.copy()
        self.flops = problem.comp_flops
        self.loads = loads(where, self.flops, places)
        self._tokens = len(problem.token_tokens)
        # Data blocks (side, token block, group) are the rows of one table: queries, then keys.
        self._q_row = problem.comp_q * groups + problem.comp_group
        self._kv_row = (self._tokens + problem.comp_kv) * groups + problem.comp_group
        self._bytes = np.concatenate(
            [problem.q_side_bytes.ravel(), problem.kv_side_bytes.ravel()]
        ).astype(np.int64)
        self._row_token = np.tile(np.repeat(np.arange(self._tokens), groups), 2)
        rows = len(self._bytes)
        self._count = np.zeros((rows, places), dtype=np.int64)
        np.add.at(self._count, (self._q_row, where), 1)
        np.add.at(self._count, (self._kv_row, where), 1)

    def saving(self) -> IntArray:
        """Bytes that each place saves as home of each token block, [T, P]."""
        touched = np.where(self._count > 0, self._bytes[:, None], 0)
        saved = touched.reshape(2, self._tokens, -1, touched.shape[1]).sum(axis=(0, 2))
        return np.asarray(saved, dtype=np.int64)

    def move_cost(self, comps: IntArray) -> IntArray:
        """Bytes added by moving each of these computation blocks to each place, [n, P]."""
        here = self.where[comps]
        cost = np.zeros((len(comps), self._count.shape[1]), dtype=np.int64)
        each = np.arange(len(comps))
        for row in (self._q_row[comps], self._kv_row[comps]):
            count, size = self._count[row], self._bytes[row]
            home = self.home[self._row_token[row]]
            entering = (count == 0) * size[:, None]
            entering[each, home] = 0
            leaving = ((count[each, here] == 1) & (home != here)) * size
            cost += entering - leaving[:, None]
        cost[each, here] = 0
        return cost

    def shares_data(self, comps: IntArray, comp: int) -> BoolArray:
        """Which of these computation blocks touch a data block that another one touches, [n]."""
        shared = self._q_row[comps] == self._q_row[comp]
        shared |= self._kv_row[comps] == self._kv_row[comp]
        return np.asarray(shared)

    def move(self, comp: int, place: int) -> None:
        """Compute a block elsewhere."""
        old = self.where[comp]
        for row in (self._q_row[comp], self._kv_row[comp]):
            self._count[row, old] -= 1
            self._count[row, place] += 1
        self.loads[old] -= self.flops[comp]
        self.loads[place] += self.flops[comp]
        self.where[comp] = place


def loads(where: IntArray, weights: IntArray, places: int) -> IntArray:
    """Sum of weights at every place, [places]."""
    total = np.zeros(places, dtype=np.int64)
    np.add.at(total, where, weights)
    return total
