"""The cost model: how long computing and sending take on a cluster, and a program played through.

Every rank repeats the same round: wait for the messages of a step, unpack and merge what came,
pack and launch the messages of the next step, compute the division, copy results that are final.
Messages move beside the computing. They queue, first come first served, at the ports they pass:
the two devices' own ports inside a node, the two NICs between nodes, so devices that share a NIC
share its bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.cluster import Cluster, Device
from dcp.errors import SpecError

# Times the FLOPs of forward: five products of as many elements for two, scores computed anew.
BACKWARD_FLOPS = 2.5


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Simulated time of one phase.

    Attributes:
        total_s: Until the last rank is done.
        exposed_comm_s: Time that a rank waits for messages, mean over ranks.
        overlapped_comm_s: Time in which messages reach a rank while it does not wait, mean.
        idle_s: Time between a rank's end and the last rank's, mean.
    """

    total_s: float
    exposed_comm_s: float
    overlapped_comm_s: float
    idle_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Messages:
    """What ranks send each other, arrays [messages].

    Ordered by step, then source; the messages of one source start with its next rank and go
    round, so that not all sources begin with the same destination.
    """

    src: IntArray
    dst: IntArray
    step: IntArray
    message_bytes: IntArray

    @classmethod
    def joined(cls, src: IntArray, dst: IntArray, step: IntArray, item_bytes: IntArray) -> Messages:
        """Items with the same source, destination and step travel as one message."""
        ranks = int(max(src.max(initial=0), dst.max(initial=0))) + 1
        key = (step * ranks + src) * ranks + (dst - src) % ranks
        order = np.argsort(key, kind="stable")
        key = key[order]
        begins = np.flatnonzero(np.diff(key, prepend=-1))
        total = np.add.reduceat(item_bytes[order], begins) if len(begins) else item_bytes
        rest, offset = np.divmod(key[begins], ranks)
        step, src = np.divmod(rest, ranks)
        return cls(src=src, dst=(src + offset) % ranks, step=step, message_bytes=total)


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """Seconds that every rank spends in every step, each [ranks, steps]."""

    reduce_s: FloatArray
    attention_s: FloatArray
    copy_s: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """When everything happens, in seconds from the start.

    Attributes:
        work, messages: What was played.
        unpack_s, pack_s: Seconds that every rank spends on messages in every step, to write what
            arrived into its slots and to gather what it launches, [ranks, steps].
        wait_s, begin_s, end_s: When a rank starts to wait for a step, has its messages, is done
            with the step, each [ranks, steps].
        sent_s, arrived_s: When each message enters its first port and is complete, [messages].
    """

    work: Work
    messages: Messages
    unpack_s: FloatArray
    pack_s: FloatArray
    wait_s: FloatArray
    begin_s: FloatArray
    end_s: FloatArray
    sent_s: FloatArray
    arrived_s: FloatArray

    @property
    def launch_s(self) -> FloatArray:
        """When every rank launches the messages of the next step, [ranks, steps]."""
        launch: FloatArray = self.begin_s + self.unpack_s + self.work.reduce_s + self.pack_s
        return launch

    @property
    def total_s(self) -> float:
        """Until the last rank is done."""
        return float(self.end_s[:, -1].max())

    def estimate(self) -> Estimate:
        """Totals over ranks."""
        waits = (self.begin_s - self.wait_s).sum(axis=1)
        receiving = np.zeros(len(waits))
        np.add.at(receiving, self.messages.dst, self.arrived_s - self.sent_s)
        finish, total = self.end_s[:, -1], self.total_s
        return Estimate(
            total_s=total,
            exposed_comm_s=float(waits.mean()),
            overlapped_comm_s=float(np.maximum(receiving - waits, 0).mean()),
            idle_s=float((total - finish).mean()),
        )


def attention_seconds(
    device: Device,
    *,
    backward: bool,
    flops_a_pair: IntArray,
    pairs: IntArray,
    q_tokens: IntArray,
    kv_tokens: IntArray,
) -> FloatArray:
    """Time of blocks of attention inside a running kernel, [n].

    A kernel works in square tiles: along the border of a mask, half a tile a row is computed for
    nothing, at most the whole rectangle.

    Args:
        device: Rates.
        backward: Whether gradients are computed: `BACKWARD_FLOPS` times the FLOPs.
        flops_a_pair: Forward FLOPs of one allowed pair, over all heads of the group, [n].
        pairs: Allowed pairs, [n].
        q_tokens, kv_tokens: Size of the blocks, [n].
    """
    rectangle = q_tokens * kv_tokens
    wasted = np.where(pairs < rectangle, device.tile_tokens // 2 * q_tokens, 0)
    computed = np.minimum(pairs + wasted, rectangle)
    rate = device.backward_flops_per_s / BACKWARD_FLOPS if backward else device.flops_per_s
    seconds: FloatArray = computed * flops_a_pair / rate
    return seconds


def memory_seconds(device: Device, touched_bytes: IntArray) -> FloatArray:
    """Time to merge or copy: to read these bytes, and to read and write what they go into.

    Args:
        device: Rates.
        touched_bytes: What is merged or copied, [n].
    """
    seconds: FloatArray = 3 * touched_bytes / device.memory_bytes_per_s
    return seconds


def rewriting_seconds(device: Device, rewritten_bytes: FloatArray | IntArray) -> FloatArray:
    """Time to read these bytes and to write as many, [n].

    Messages are packed and unpacked so. Attention that goes on with sums of an earlier division
    takes as much besides for its accumulators: a kernel keeps what it sums up in registers, but
    only while it runs.

    Args:
        device: Rates.
        rewritten_bytes: What is read and written, [n].
    """
    seconds: FloatArray = 2 * rewritten_bytes / device.memory_bytes_per_s
    return seconds


def summed(
    amounts: FloatArray | IntArray, rank: IntArray, step: IntArray, shape: tuple[int, int]
) -> FloatArray:
    """Sum of what every rank has in every step, [ranks, steps].

    Args:
        amounts, rank, step: What, and whose and when it is, [n].
        shape: Ranks and steps.
    """
    total = np.bincount(rank * shape[1] + step, amounts, shape[0] * shape[1])
    return np.asarray(total, dtype=np.float64).reshape(shape)


def in_kernels(device: Device, seconds: FloatArray) -> FloatArray:
    """What is done in a step is one kernel, and takes its launch besides, [ranks, steps]."""
    return seconds + (seconds > 0) * device.launch_s


def simulate(work: Work, messages: Messages, cluster: Cluster) -> Timeline:
    """Play the ranks' rounds through.

    Args:
        work: Seconds of every rank in every step; as many steps as the messages need.
        messages: All messages.
        cluster: Links and the devices' memory.

    Raises:
        SpecError: times so long that they are not finite.
    """
    from dcp.event_engine import play  # compiled code, loaded when something is simulated

    duration, latency, ports_out, ports_in = _passage(messages, cluster)
    unpack_s, pack_s = _packing(messages, cluster, work.attention_s.shape[1])
    before_launch_s = unpack_s + work.reduce_s + pack_s
    after_launch_s = work.attention_s + work.copy_s
    for seconds in (before_launch_s, after_launch_s, duration, latency):
        if not np.isfinite(seconds).all():
            raise SpecError(
                "work or messages would take infinitely long; legal: rates and bandwidths of the "
                f"cluster at which every time is finite; given: {cluster}"
            )
    wait, begin, end, sent, arrived = play(
        before_launch_s,
        after_launch_s,
        messages.src,
        messages.dst,
        messages.step,
        duration,
        latency,
        ports_out,
        ports_in,
    )
    return Timeline(
        work=work,
        messages=messages,
        unpack_s=unpack_s,
        pack_s=pack_s,
        wait_s=wait,
        begin_s=begin,
        end_s=end,
        sent_s=sent,
        arrived_s=arrived,
    )


def _packing(messages: Messages, cluster: Cluster, steps: int) -> tuple[FloatArray, FloatArray]:
    """Seconds to unpack what arrives for a step, and to pack for the next, [ranks, steps] each.

    All messages of a step are packed, and unpacked, by one kernel.
    """

    def busy(rank: IntArray, step: IntArray) -> FloatArray:
        moved = summed(messages.message_bytes, rank, step, (cluster.num_devices, steps))
        return in_kernels(cluster.device, rewriting_seconds(cluster.device, moved))

    return busy(messages.dst, messages.step), busy(messages.src, messages.step - 1)


def _passage(
    messages: Messages, cluster: Cluster
) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    """Of each message: seconds on its ports, latency, and the ports it leaves and enters through.

    Device ports are numbered first, then NICs.
    """
    node, nic = cluster.device_node, cluster.num_devices + cluster.device_nic
    src, dst = messages.src, messages.dst
    crosses = node[src] != node[dst]
    intra, inter = cluster.intra, cluster.inter
    bandwidth = np.where(crosses, inter.bandwidth_bytes_per_s, intra.bandwidth_bytes_per_s)
    latency = np.where(crosses, inter.latency_s, intra.latency_s)
    out, into = np.where(crosses, nic[src], src), np.where(crosses, nic[dst], dst)
    return messages.message_bytes / bandwidth, latency, out, into
