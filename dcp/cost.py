"""The cost model: α–β links and a FLOP rate, played through division by division.

A device computes one division after the other. When a division begins, the messages of the next
step start; a device sends its messages of one link kind one after another, α + bytes / bandwidth
each, beside its computing. A division begins when the one before is done and the messages of its
own step have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.cluster import Cluster

BACKWARD_FLOPS_RATIO = 2.5


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Simulated time of one phase.

    Attributes:
        total_s: Until the last rank is done.
        exposed_comm_s: Time that a rank waits for messages, mean over ranks.
    """

    total_s: float
    exposed_comm_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Messages:
    """What devices send each other in which step, arrays [messages]."""

    src: IntArray
    dst: IntArray
    step: IntArray
    message_bytes: IntArray

    @classmethod
    def joined(cls, src: IntArray, dst: IntArray, step: IntArray, item_bytes: IntArray) -> Messages:
        """Items with the same source, destination and step travel as one message."""
        ends = np.stack([step, src, dst], axis=1)
        distinct, message = np.unique(ends, axis=0, return_inverse=True)
        total = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(total, message.reshape(-1), item_bytes)
        return cls(src=distinct[:, 1], dst=distinct[:, 2], step=distinct[:, 0], message_bytes=total)


def simulate(flops: FloatArray, messages: Messages, cluster: Cluster) -> Estimate:
    """Play a schedule through.

    Args:
        flops: Work of every device in every division, [devices, divisions].
        messages: All messages, ordered by step, then source.
        cluster: Rates.
    """
    devices, divisions = flops.shape
    last_step = max(divisions, int(messages.step.max(initial=0)))
    duration = _durations(messages, cluster)
    is_inter = cluster.device_node[messages.src] != cluster.device_node[messages.dst]
    ready = np.zeros(devices)
    waited = np.zeros(devices)
    arrival = np.zeros((devices, last_step + 2))
    link_free = np.zeros((2, devices))
    edges = np.searchsorted(messages.step, np.arange(last_step + 3))
    for step in range(last_step + 1):
        begin = np.maximum(ready, arrival[:, step])
        waited += begin - ready
        launched = slice(edges[step + 1], edges[step + 2])
        for link in (0, 1):
            chosen = np.flatnonzero(is_inter[launched] == bool(link)) + edges[step + 1]
            src = messages.src[chosen]
            start = np.maximum(begin, link_free[link])
            end = start[src] + _running_sum(src, duration[chosen])
            np.maximum.at(arrival, (messages.dst[chosen], step + 1), end)
            np.maximum.at(link_free[link], src, end)
        ready = begin + (flops[:, step] / cluster.flops_per_s if step < divisions else 0.0)
    return Estimate(total_s=float(ready.max()), exposed_comm_s=float(waited.mean()))


def _durations(messages: Messages, cluster: Cluster) -> FloatArray:
    inter = cluster.device_node[messages.src] != cluster.device_node[messages.dst]
    latency = np.where(inter, cluster.inter.latency_s, cluster.intra.latency_s)
    rate = np.where(inter, cluster.inter.bandwidth_bytes_per_s, cluster.intra.bandwidth_bytes_per_s)
    durations: FloatArray = latency + messages.message_bytes / rate
    return durations


def _running_sum(owner: IntArray, values: FloatArray) -> FloatArray:
    """Sum of the values so far, restarting with every new owner; owners are ascending."""
    total = np.cumsum(values)
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    before = np.concatenate([[0.0], total])[first]
    since: FloatArray = total - np.repeat(before, np.diff(first, append=len(owner)))
    return since
