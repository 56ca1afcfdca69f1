"""Ulysses x ring on a grid of ranks, the common form of ring, zigzag, Ulysses and USP.

With a Ulysses degree above 1, step 1 is an all-to-all that trades tokens for heads, and work
starts in division 1. Then keys are passed round the rings, one neighbour a division.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.baseline import Arrangement, Baseline
from dcp.baselines.dealing import Grid, deal_heads, place_blocks
from dcp.batch import DTYPE_BYTES
from dcp.blocks import BlockGraph, Kind
from dcp.cutting import cut
from dcp.direct_transfers import transfer_rows
from dcp.placement import Assignment
from dcp.plan_request import PlanRequest
from dcp.scheduling import (
    KEY_INPUT,
    KEY_RESULT,
    QUERY_INPUTS,
    QUERY_RESULT,
    Phase,
    Schedule,
    Transfers,
)


class HybridBaseline(Baseline):
    """A scheme that is a grid of ranks."""

    @abstractmethod
    def grid(self, request: PlanRequest) -> Grid:
        """The grid, of as many ranks as the cluster has devices.

        Raises:
            SpecError: the scheme cannot serve this request.
        """

    def arrange(self, request: PlanRequest) -> Arrangement:
        """Cut, place and schedule.

        Raises:
            SpecError: the scheme cannot serve this request.
        """
        return arrange_hybrid(request, self.grid(request))

    def least_seconds(self, request: PlanRequest) -> float:
        """Time of the even work or of what is passed round, whichever is more in each phase."""
        return least_hybrid_seconds(request, self.grid(request))


def least_hybrid_seconds(request: PlanRequest, grid: Grid) -> float:
    """Least time of forward and backward together.

    Over every link of a ring come the keys of all ring shares but the receiver's, and backward
    the gradients of all keys, if each rank adds to those of its own share at once, as it does
    where every token sees itself. The slowest link decides. Shares are even but for a token a
    chunk of each sequence; a rank passes on the keys of at least one head.
    """
    spec, cluster = request.spec, request.cluster
    tokens, rings = request.batch.num_kv_tokens, grid.ring_degree
    others = max(tokens - tokens / rings - 2 * len(request.batch), 0.0)
    elements = 2 * max(spec.num_kv_heads // grid.ulysses_degree, 1) * spec.head_dim
    ring = grid.rank(np.arange(rings), np.zeros(1, dtype=np.int64))
    crosses = len(np.unique(cluster.device_node[ring])) > 1
    bandwidth = (cluster.inter if crosses else cluster.intra).bandwidth_bytes_per_s
    keys_s = others * elements * spec.dtype_bytes / bandwidth
    gradient_bytes = elements * DTYPE_BYTES[spec.wire_partial_dtype]
    gradients_s = tokens * gradient_bytes / bandwidth * (rings > 1 and request.sees_itself)
    again_s = keys_s if request.keep_bytes == 0 else 0.0
    return max(keys_s, request.work_s["forward"]) + max(
        again_s + gradients_s, request.work_s["backward"]
    )


def arrange_hybrid(request: PlanRequest, grid: Grid) -> Arrangement:
    """Cut, place and schedule on a grid of as many ranks as the cluster has devices.

    A computation block runs where its query's ring share meets its head group, in the division
    in which its keys come by. With `start` 1 where there is an all-to-all, else 0, and R ranks
    in a ring, the steps are:

        Q, KV, DO    1                    all-to-all: from the home to the member for the heads
        KV           start + j            hop j = 1 ... R - 1, from neighbour to neighbour
        O, DQ        start + R + 1        all-to-all: back to the home
        DKV          start + 1 + j        hop j = 1 ... R, ends where the keys started
        DKV          start + R + 2        all-to-all: to the home (start + R + 1 without rings)

    Inputs go this way whether the mask needs them or not. Of results, a sum to which nothing
    has been added is not sent, for there is nothing in it: a DKV starts on its way at the first
    rank that adds to it (the originals pass zeros until then), an O without keys is not sent.

    Raises:
        SpecError: more ranks in a Ulysses group than query heads.
    """
    groups, owner = deal_heads(request.spec, grid.ulysses_degree)
    blocks = cut(
        request.batch,
        request.spec,
        request.block_size,
        chunk_edges=grid.chunk_edges,
        groups=groups,
    )
    ring, ulysses = place_blocks(blocks, grid)
    home = grid.rank(ring, ulysses)
    hybrid = _Hybrid(blocks=blocks, grid=grid, ring=ring, home=home, owner=owner)
    device = grid.rank(ring[blocks.comp_q], owner[blocks.comp_group])
    return Arrangement(
        blocks=blocks,
        assignment=Assignment(token_home=home, comp_device=device),
        forward=hybrid.schedule("forward"),
        backward=hybrid.schedule("backward"),
    )


class _Data(NamedTuple):
    """Data blocks by token block and head group, [n]."""

    block: IntArray
    group: IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class _Hybrid:
    """Blocks on a grid.

    Attributes:
        ring: Ring place of every token block's home, [T].
        home: That home, [T].
        owner: Member of a Ulysses group that computes each head group, [groups].
    """

    blocks: BlockGraph
    grid: Grid
    ring: IntArray
    home: IntArray
    owner: IntArray

    def schedule(self, phase: Phase) -> Schedule:
        """The scheme's schedule of one phase; see `arrange_hybrid` for the steps."""
        queries, keys = self._all(self.blocks.has_q), self._all(self.blocks.has_kv)
        results, _ = self._computed(self.blocks.comp_q)
        last = self._start + self.grid.ring_degree
        rows = [
            *(self._exchange(kind, queries) for kind in QUERY_INPUTS[phase]),
            self._exchange(KEY_INPUT, keys),
            self._pass(KEY_INPUT, keys, 1, self.grid.ring_degree - 1, self._start),
            self._send_home(QUERY_RESULT[phase], results, last + 1),
        ]
        if phase == "backward":
            gradients, first_hop = self._computed(self.blocks.comp_kv)
            goes_round = int(self.grid.ring_degree > 1)
            rows += [
                self._pass(
                    KEY_RESULT, gradients, first_hop + 1, self.grid.ring_degree, self._start + 1
                ),
                self._send_home(KEY_RESULT, gradients, last + 1 + goes_round),
            ]
        return Schedule(
            phase=phase,
            num_divisions=last,
            comp_division=self._start + self._comp_hop,
            transfers=Transfers.of(np.concatenate(rows)),
        )

    @property
    def _start(self) -> int:
        """Division in which work starts: after the all-to-all, where there is one."""
        return int(self.grid.ulysses_degree > 1)

    @property
    def _comp_hop(self) -> IntArray:
        """Hops that its keys have come when a computation block runs, [C]."""
        distance = self.ring[self.blocks.comp_q] - self.ring[self.blocks.comp_kv]
        return distance % self.grid.ring_degree

    def _all(self, carries: BoolArray) -> _Data:
        """All data blocks of the token blocks marked."""
        groups = len(self.owner)
        block = np.flatnonzero(carries)
        return _Data(np.repeat(block, groups), np.tile(np.arange(groups), len(block)))

    def _computed(self, block: IntArray) -> tuple[_Data, IntArray]:
        """Data blocks that computation adds to, and the hop of each at which it first does."""
        added_to = block * len(self.owner) + self.blocks.comp_group
        first = np.full(self.blocks.num_token_blocks * len(self.owner), self.grid.ring_degree)
        np.minimum.at(first, added_to, self._comp_hop)
        data = np.flatnonzero(first < self.grid.ring_degree)
        return _Data(data // len(self.owner), data % len(self.owner)), first[data]

    def _rank(self, data: _Data, hop: IntArray | int = 0) -> IntArray:
        """Rank that holds the data after the all-to-all and some hops."""
        ring = (self.ring[data.block] + hop) % self.grid.ring_degree
        return self.grid.rank(ring, self.owner[data.group])

    def _exchange(self, kind: Kind, data: _Data) -> IntArray:
        return transfer_rows(kind, *data, self.home[data.block], self._rank(data), 1)

    def _send_home(self, kind: Kind, data: _Data, step: int) -> IntArray:
        return transfer_rows(kind, *data, self._rank(data), self.home[data.block], step)

    def _pass(
        self, kind: Kind, data: _Data, first_hop: IntArray | int, last_hop: int, step: int
    ) -> IntArray:
        """Hop j, from the rank that j - 1 hops lead to to its neighbour, at step + j."""
        hops = np.arange(1, last_hop + 1)
        begins = np.broadcast_to(first_hop, data.block.shape)
        which, column = np.nonzero(hops >= begins[:, None])
        moved, hop = _Data(data.block[which], data.group[which]), hops[column]
        src, dst = self._rank(moved, hop - 1), self._rank(moved, hop)
        return transfer_rows(kind, *moved, src, dst, step + hop)
