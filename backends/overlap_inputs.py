"""Inputs that devices need from elsewhere, and when to let each arrive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dcp.arrays import BoolArray, FloatArray, Int8Array, IntArray
from dcp.cluster import Cluster
from dcp.direct_transfers import Touches
from dcp.scheduling import (
    KEY_INPUT,
    KEY_RESULT,
    QUERY_INPUTS,
    QUERY_RESULT,
    RESULTS,
    Phase,
    SchedulingProblem,
)


class Moves(NamedTuple):
    """What travels, ordered by (kind, block, group), arrays [m].

    Attributes:
        kind, block, group: Data blocks.
        which: The input that each is, or is the partial result of.
        returns: Whether it is a partial result.
    """

    kind: IntArray
    block: IntArray
    group: IntArray
    which: IntArray
    returns: BoolArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """One input a (block, group, device that is not its home): queries first, then keys.

    Attributes:
        block, group, home, device: [n].
        size_bytes: Bytes of all that travels for it: with backward queries, DO too, [n].
        queries, keys: Where the two kinds stand.
        of_query, of_key: Input of each computation block, [C]; n where it is at home.
        comp_s: Seconds of each computation block, [C].
        cluster: Devices and links.
        phase: What is scheduled.
    """

    block: IntArray
    group: IntArray
    home: IntArray
    device: IntArray
    size_bytes: IntArray
    queries: slice
    keys: slice
    of_query: IntArray
    of_key: IntArray
    comp_s: FloatArray
    cluster: Cluster
    phase: Phase

    @classmethod
    def of(cls, problem: SchedulingProblem) -> Inputs:
        """Inputs of a placed batch in one phase."""
        blocks = problem.blocks
        queries = Touches.of(problem, blocks.comp_q)
        keys = Touches.of(problem, blocks.comp_kv)
        query_bytes = blocks.data_bytes[list(QUERY_INPUTS[problem.phase])].sum(axis=0)
        total = len(queries) + len(keys)
        return cls(
            block=np.concatenate([queries.block, keys.block]),
            group=np.concatenate([queries.group, keys.group]),
            home=np.concatenate([queries.home, keys.home]),
            device=np.concatenate([queries.device, keys.device]),
            size_bytes=np.concatenate(
                [
                    query_bytes[queries.block, queries.group],
                    blocks.data_bytes[KEY_INPUT, keys.block, keys.group],
                ]
            ),
            queries=slice(0, len(queries)),
            keys=slice(len(queries), total),
            of_query=np.where(queries.index < len(queries), queries.index, total),
            of_key=np.where(keys.index < len(keys), keys.index + len(queries), total),
            comp_s=problem.comp_s,
            cluster=problem.cluster,
            phase=problem.phase,
        )

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def moves(self) -> Moves:
        """All inputs and all partial results, each once."""
        every = np.arange(len(self))
        parts = dict.fromkeys(QUERY_INPUTS[self.phase], every[self.queries])
        parts |= {KEY_INPUT: every[self.keys], QUERY_RESULT[self.phase]: every[self.queries]}
        if self.phase == "backward":
            parts[KEY_RESULT] = every[self.keys]
        kinds = sorted(parts)
        which = np.concatenate([parts[kind] for kind in kinds])
        kind = np.repeat(kinds, [len(parts[kind]) for kind in kinds])
        return Moves(kind, self.block[which], self.group[which], which, np.isin(kind, RESULTS))

    def arrivals(self, steps: int, step_s: float) -> IntArray:
        """Step of every input from 1 on, [n].

        Args:
            steps: What has not arrived before this step arrives at it, or right behind its relay.
            step_s: Seconds for which a device receives, and for which one sends, at a step.
        """
        from dcp.backends.overlap_kernel import deal_inputs  # compiled code

        missing, worth_s = self._worth
        step = np.zeros(len(self), dtype=np.int64)
        deal_inputs(
            *self._by_device,
            self.source,
            self._relay,
            self._sending_s,
            self.of_query,
            self.of_key,
            self.comp_s,
            *self._unlocked,
            missing.copy(),
            worth_s.copy(),
            np.zeros(self.cluster.num_devices),
            steps,
            step_s,
            step,
        )
        return step

    def departures(self, division: IntArray) -> tuple[IntArray, IntArray]:
        """Destination and step of the partial result that goes with every input, [n] each.

        A result leaves once it is complete; those of a node are added up before they cross.

        Args:
            division: Division of each computation block, [C].
        """
        begins, comps = self._unlocked
        step = np.maximum.reduceat(division[comps], begins[:-1]) + 2
        leader = self._leaders(step.max(initial=0) - step)
        led = self._led(leader)
        after = np.zeros(len(step), dtype=np.int64)
        np.maximum.at(after, leader[led], step[led] + 1)
        return np.where(led, self.device[leader], self.home), np.maximum(step, after)

    @cached_property
    def source(self) -> IntArray:
        """Device that each input comes from: its home, or one of the same node, [n]."""
        relayed = self._relay < len(self)
        source: IntArray = np.where(relayed, np.append(self.device, 0)[self._relay], self.home)
        return source

    @cached_property
    def _relay(self) -> IntArray:
        """Input of the same node that has to arrive before each, [n]; n for none.

        The device that has most work for it gets it first.
        """
        begins, comps = self._unlocked
        needed_s = np.add.reduceat(self.comp_s[comps], begins[:-1])
        rank = np.empty(len(self), dtype=np.int64)
        rank[np.argsort(-needed_s, kind="stable")] = np.arange(len(self))
        leader = self._leaders(rank)
        relay: IntArray = np.where(self._led(leader), leader, len(self))
        return relay

    def _leaders(self, rank: IntArray) -> IntArray:
        """For every input, the one of lowest rank among those of the same data in its node."""
        same, begins = self._same_in_node
        key = (same * (rank.max(initial=0) + 1) + rank) * self.cluster.num_devices + self.device
        leader: IntArray = np.argsort(key)[begins][same]
        return leader

    def _led(self, leader: IntArray) -> BoolArray:
        """Inputs that travel by way of their leader: from another node, and not leading."""
        node = self.cluster.device_node
        crosses = node[self.home] != node[self.device]
        led: BoolArray = crosses & (leader != np.arange(len(leader)))
        return led

    @cached_property
    def _same_in_node(self) -> tuple[IntArray, IntArray]:
        """Number of the set of inputs of the same data and node, [n]; where sorted sets begin."""
        kind = np.zeros(len(self), dtype=np.int64)
        kind[self.keys] = 1
        key = (kind * (self.block.max(initial=0) + 1) + self.block) * (
            self.group.max(initial=0) + 1
        ) + self.group
        key = key * self.cluster.nodes + self.cluster.device_node[self.device]
        _, same, count = np.unique(key, return_inverse=True, return_counts=True)
        return same, np.cumsum(count) - count

    @cached_property
    def _by_device(self) -> tuple[IntArray, IntArray]:
        """Inputs by device: where each device's begin, [devices + 1], and inputs, [n]."""
        order = np.argsort(self.device, kind="stable")
        devices = np.arange(self.cluster.num_devices + 1)
        return np.searchsorted(self.device[order], devices), order

    @cached_property
    def _unlocked(self) -> tuple[IntArray, IntArray]:
        """Computations by input: where each input's begin, [n + 1], and computations."""
        comps = np.tile(np.arange(len(self.comp_s)), 2)
        inputs = np.concatenate([self.of_query, self.of_key])
        order = np.argsort(inputs, kind="stable")
        order = order[: np.count_nonzero(inputs < len(self))]
        return np.searchsorted(inputs[order], np.arange(len(self) + 1)), comps[order]

    @cached_property
    def _worth(self) -> tuple[Int8Array, FloatArray]:
        """Inputs that each computation misses, [C]; seconds that each input unlocks, [n + 1].

        Half of what another input is missing for counts too.
        """
        inputs = np.stack([self.of_query, self.of_key], axis=1)
        missing = (inputs < len(self)).sum(axis=1, dtype=np.int8)
        share_s = np.where(missing == 2, 0.5, 1.0) * self.comp_s
        worth_s = np.bincount(inputs.ravel(), np.repeat(share_s, 2), len(self) + 1)
        return missing, worth_s.astype(np.float64)

    @cached_property
    def _sending_s(self) -> FloatArray:
        """Seconds that every input takes on its link when all devices of a node receive."""
        cluster = self.cluster
        crosses = cluster.device_node[self.source] != cluster.device_node[self.device]
        shared = cluster.inter.bandwidth_bytes_per_s * cluster.node_nics / cluster.devices_per_node
        seconds: FloatArray = self.size_bytes / np.where(
            crosses, shared, cluster.intra.bandwidth_bytes_per_s
        )
        return seconds
