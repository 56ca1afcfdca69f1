"""Inputs that devices need from elsewhere, and when to let each arrive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dcp.arrays import BoolArray, FloatArray, IntArray
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


class _Waiting(NamedTuple):
    """Computations that wait for an input, and what each device can compute without one.

    Attributes:
        order: Inputs by device, [n].
        device_ptr: Inputs of device d are order[device_ptr[d]] … order[device_ptr[d + 1] - 1].
        first, second: Places in that order of the one or two inputs that each computation waits
            for, -1 for none, [c].
        comp_s: Seconds of each of those computations, [c].
        local_s: Seconds of the other work of each device, [D].
    """

    order: IntArray
    device_ptr: IntArray
    first: IntArray
    second: IntArray
    comp_s: FloatArray
    local_s: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """One input a (block, group, device that is not its home): queries first, then keys.

    Attributes:
        block, group, home, device: [n].
        size_bytes: Bytes of all that travels for it: with backward queries, DO too, [n].
        queries, keys: Where the two kinds stand.
        of_query, of_key: Input of each computation block, [C]; n where it is at home.
        comp_s: Seconds of each computation block, [C].
        comp_device: Device of each computation block, [C].
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
    comp_device: IntArray
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
            of_key=keys.index + len(queries),
            comp_s=problem.comp_s,
            comp_device=problem.comp_device,
            cluster=problem.cluster,
            phase=problem.phase,
        )

    @cached_property
    def moves(self) -> Moves:
        """All inputs and all partial results, each once."""
        every = np.arange(len(self.block))
        parts = dict.fromkeys(QUERY_INPUTS[self.phase], every[self.queries])
        parts |= {KEY_INPUT: every[self.keys], QUERY_RESULT[self.phase]: every[self.queries]}
        if self.phase == "backward":
            parts[KEY_RESULT] = every[self.keys]
        kinds = sorted(parts)
        which = np.concatenate([parts[kind] for kind in kinds])
        kind = np.repeat(kinds, [len(parts[kind]) for kind in kinds])
        return Moves(kind, self.block[which], self.group[which], which, np.isin(kind, RESULTS))

    def arrivals(self, steps: int, *, relay: bool) -> tuple[IntArray, IntArray]:
        """Source and step of every input, [n] each.

        Args:
            steps: Even shares that the inputs of a device are dealt into at most.
            relay: Let an input cross to a node once, and go on from there a step later.
        """
        step = self._steps(self.home, steps)
        if not relay:
            return self.home, step
        leader = self._leaders(step)
        source = np.where(self._led(leader), self.device[leader], self.home)
        step = self._steps(source, steps)
        return source, np.where(self._led(leader), np.maximum(step, step[leader] + 1), step)

    def departures(
        self, division: IntArray, *, early: bool, relay: bool
    ) -> tuple[IntArray, IntArray]:
        """Destination and step of the partial result that goes with every input, [n] each.

        Args:
            division: Division of each computation block, [C].
            early: Send a result as soon as it is complete, rather than after all work.
            relay: Add the results of a node up before they cross to another.
        """
        after_all = np.full(len(self.block), division.max(initial=0))
        last = self._last_use(division) if early else after_all
        step = last + 2
        if not relay:
            return self.home, step
        leader = self._leaders(-step)
        led = self._led(leader)
        after = np.zeros(len(step), dtype=np.int64)
        np.maximum.at(after, leader[led], step[led] + 1)
        return np.where(led, self.device[leader], self.home), np.maximum(step, after)

    def _last_use(self, division: IntArray) -> IntArray:
        """Last division that computes with each input, [n]."""
        last = np.zeros(len(self.block) + 1, dtype=np.int64)
        np.maximum.at(last, self.of_query, division)
        np.maximum.at(last, self.of_key, division)
        return last[:-1]

    @cached_property
    def _in_node(self) -> tuple[IntArray, IntArray]:
        """Inputs by data, node, device, [n], and for each a number of its data in its node, [n]."""
        node = self.cluster.device_node[self.device]
        kind = np.arange(len(self.block)) >= self.keys.start
        order = np.lexsort((self.device, node, self.group, self.block, kind))
        same = np.stack([kind, self.block, self.group, node])[:, order]
        number = np.zeros(len(order), dtype=np.int64)
        number[1:] = np.cumsum((np.diff(same, axis=1) != 0).any(axis=0))
        return order, number

    def _leaders(self, rank: IntArray) -> IntArray:
        """For every input, the one of lowest rank among those of the same data in its node."""
        order, number = self._in_node
        ranked = order[np.lexsort((rank[order], number))]
        leader = np.empty(len(order), dtype=np.int64)
        leader[ranked] = ranked[np.searchsorted(number, number)]
        return leader

    def _led(self, leader: IntArray) -> BoolArray:
        """Inputs that travel by way of their leader: from another node, and not leading."""
        node = self.cluster.device_node
        crosses = node[self.home] != node[self.device]
        led: BoolArray = crosses & (leader != np.arange(len(leader)))
        return led

    @cached_property
    def _waiting(self) -> _Waiting:
        devices = self.cluster.num_devices
        order = np.argsort(self.device, kind="stable")
        place = np.empty(len(order) + 1, dtype=np.int64)
        place[order], place[-1] = np.arange(len(order)), -1
        first, second = place[self.of_query], place[self.of_key]
        waits = (first >= 0) | (second >= 0)
        local_s = np.bincount(self.comp_device[~waits], self.comp_s[~waits], devices)
        return _Waiting(
            order=order,
            device_ptr=np.searchsorted(self.device[order], np.arange(devices + 1)),
            first=first[waits],
            second=second[waits],
            comp_s=self.comp_s[waits],
            local_s=np.asarray(local_s, dtype=np.float64),
        )

    def _steps(self, source: IntArray, steps: int) -> IntArray:
        """Step of every input from 1 on, [n]; each device by itself."""
        from dcp.backends.overlap_kernel import deal_inputs  # compiled code

        waiting = self._waiting
        step = np.empty(len(source), dtype=np.int64)
        step[waiting.order] = deal_inputs(
            waiting.device_ptr,
            self._sending_s(source)[waiting.order],
            waiting.first,
            waiting.second,
            waiting.comp_s,
            waiting.local_s,
            steps,
        )
        return step

    def _sending_s(self, source: IntArray) -> FloatArray:
        """Seconds that every input takes on its link when all devices of a node receive."""
        cluster, node = self.cluster, self.cluster.device_node
        crosses = node[source] != node[self.device]
        nics = cluster.nics_per_node or cluster.devices_per_node
        shared = cluster.inter.bandwidth_bytes_per_s * nics / cluster.devices_per_node
        seconds: FloatArray = self.size_bytes / np.where(
            crosses, shared, cluster.intra.bandwidth_bytes_per_s
        )
        return seconds
