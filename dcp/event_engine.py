"""The event loop of the simulator, compiled."""

from __future__ import annotations

from heapq import heappop, heappush

import numba
import numpy as np

from dcp.arrays import FloatArray, IntArray


@numba.njit(cache=True)
def play(
    before_launch: FloatArray,
    after_launch: FloatArray,
    src: IntArray,
    dst: IntArray,
    step: IntArray,
    duration: FloatArray,
    latency: FloatArray,
    port_out: IntArray,
    port_in: IntArray,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Rounds of all ranks, launch by launch in order of time.

    A launch sends its messages in their order; each enters its ports when both are free. A rank
    begins a step once it has finished the one before and every message of the step has arrived.

    Args:
        before_launch, after_launch: Seconds in a step before and after its launch,
            [ranks, steps].
        src, dst, step: Of each message, ordered by (step, src), [messages].
        duration, latency: Seconds that a message occupies its ports, and that it takes besides.
        port_out, port_in: Ports of each message.

    Returns:
        When each rank waits, begins and ends in each step, [ranks, steps] each, and when each
        message enters its ports and has arrived, [messages] each.
    """
    ranks, steps = before_launch.shape
    count = len(src)
    wait = np.zeros((ranks, steps))
    begin = np.zeros((ranks, steps))
    end = np.zeros((ranks, steps))
    sent = np.zeros(count)
    arrived = np.zeros(count)
    missing = np.zeros((ranks, steps), np.int64)
    last_arrival = np.zeros((ranks, steps))
    first = np.zeros(ranks * steps + 1, np.int64)
    for message in range(count):
        missing[dst[message], step[message]] += 1
        first[step[message] * ranks + src[message] + 1] += 1
    first = np.cumsum(first)
    out_free = np.zeros(max(0, _highest(port_out)) + 1)
    in_free = np.zeros(max(0, _highest(port_in)) + 1)

    reached = np.zeros(ranks, np.int64)  # step that a rank waits for
    launches = [(0.0, 0, 0)]
    launches.clear()
    for rank in range(ranks):
        heappush(launches, (before_launch[rank, 0], rank, 0))
    while launches:
        now, rank, here = heappop(launches)
        end[rank, here] = now + after_launch[rank, here]
        if here + 1 < steps:
            wait[rank, here + 1] = end[rank, here]
            slot = (here + 1) * ranks + rank
            for message in range(first[slot], first[slot + 1]):
                enters = max(now, out_free[port_out[message]], in_free[port_in[message]])
                leaves = enters + duration[message]
                out_free[port_out[message]] = leaves
                in_free[port_in[message]] = leaves
                sent[message] = enters
                arrived[message] = leaves + latency[message]
                other = dst[message]
                missing[other, here + 1] -= 1
                last_arrival[other, here + 1] = max(last_arrival[other, here + 1], arrived[message])
                if missing[other, here + 1] == 0 and reached[other] == here + 1:
                    begin[other, here + 1] = max(
                        wait[other, here + 1], last_arrival[other, here + 1]
                    )
                    start = begin[other, here + 1] + before_launch[other, here + 1]
                    heappush(launches, (start, other, here + 1))
            reached[rank] = here + 1
            if missing[rank, here + 1] == 0:
                begin[rank, here + 1] = max(wait[rank, here + 1], last_arrival[rank, here + 1])
                start = begin[rank, here + 1] + before_launch[rank, here + 1]
                heappush(launches, (start, rank, here + 1))
    return wait, begin, end, sent, arrived


@numba.njit(cache=True)
def _highest(values: IntArray) -> int:
    highest = 0
    for value in values:
        highest = max(highest, value)
    return highest
