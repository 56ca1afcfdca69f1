"""Which devices touch which data blocks, and how many bytes each saves as a home."""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.settle_kernels import Scratch, Tables, put
from dcp.packing import loads
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
        self._shape = 2, len(problem.token_tokens), groups
        # Data blocks (side, token block, group) are the rows of one table: queries, then keys.
        q_row = problem.comp_q * groups + problem.comp_group
        kv_row = (self._shape[1] + problem.comp_kv) * groups + problem.comp_group
        size = np.concatenate([problem.q_side_bytes.ravel(), problem.kv_side_bytes.ravel()])
        where = where.astype(np.int64)
        touched = np.concatenate([q_row * places + where, kv_row * places + where])
        users = np.bincount(touched, minlength=len(size) * places).astype(np.int32)
        self.tables = Tables(
            q_row=q_row,
            kv_row=kv_row,
            flops=np.array(problem.comp_flops),
            where=where,
            size=size.astype(np.int64),
            home=np.tile(np.repeat(home, groups), 2),
            users=users.reshape(len(size), places),
            loads=loads(where, problem.comp_flops, places),
        )
        self.scratch = Scratch.of(len(where))

    @property
    def where(self) -> IntArray:
        """Place of every computation block, [C]."""
        return self.tables.where

    @property
    def loads(self) -> IntArray:
        """Work of every place, [P]."""
        return self.tables.loads

    def volume(self) -> int:
        """Bytes that travel: of each data block to every place that touches it, but its home."""
        touched = self.tables.users > 0
        at_home = touched[np.arange(len(touched)), self.tables.home]
        return int(self.tables.size @ (touched.sum(axis=1) - at_home))

    def saving(self) -> IntArray:
        """Bytes that each place saves as home of each token block, [T, P]."""
        touched = np.where(self.tables.users > 0, self.tables.size[:, None], 0)
        saved = touched.reshape(*self._shape, -1).sum(axis=(0, 2))
        return np.asarray(saved, dtype=np.int64)

    def put(self, comps: IntArray, places: IntArray) -> None:
        """Compute some blocks, [n], each at its own place, [n]."""
        put(self.tables, comps, places)
