"""The event loop of the simulator, compiled."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.compiled import compiled

LAUNCH, PORT = 0, 1  # kinds of event: a rank launches, a port may send its next message


@compiled
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
    """Rounds of all ranks, event by event in order of time.

    A launch appends its messages, in their order, to the queue of the port that they leave
    through. The head of a queue enters when the port that it arrives through is free; those that
    wait for one port enter first come, first served. A rank begins a step once it has finished
    the one before and every message of the step has arrived.

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
    ports = max(_highest(port_out), _highest(port_in)) + 1
    in_free = np.zeros(ports)
    head, tail = np.full(ports, -1), np.full(ports, -1)  # queues of messages
    behind = np.full(count, -1)
    sending = np.zeros(ports, np.bool_)

    reached = np.zeros(ranks, np.int64)  # step that a rank waits for
    events = [(0.0, LAUNCH, 0, 0)]
    events.clear()
    for rank in range(ranks):
        heappush(events, (before_launch[rank, 0], LAUNCH, rank, 0))
    while events:
        now, kind, which, here = heappop(events)
        if kind == LAUNCH:
            end[which, here] = now + after_launch[which, here]
            if here + 1 == steps:
                continue
            wait[which, here + 1] = end[which, here]
            slot = (here + 1) * ranks + which
            for message in range(first[slot], first[slot + 1]):
                port = port_out[message]
                if head[port] < 0:
                    head[port] = message
                else:
                    behind[tail[port]] = message
                tail[port] = message
                if not sending[port]:
                    sending[port] = True
                    heappush(events, (now, PORT, port, 0))
            reached[which] = here + 1
            other, step_of = which, here + 1
        else:
            message = head[which]
            if message < 0:
                sending[which] = False
                continue
            head[which] = behind[message]
            sent[message] = max(now, in_free[port_in[message]])
            leaves = sent[message] + duration[message]
            in_free[port_in[message]] = leaves
            arrived[message] = leaves + latency[message]
            heappush(events, (leaves, PORT, which, 0))
            other, step_of = dst[message], step[message]
            missing[other, step_of] -= 1
            last_arrival[other, step_of] = max(last_arrival[other, step_of], arrived[message])
        if missing[other, step_of] == 0 and reached[other] == step_of:
            begin[other, step_of] = max(wait[other, step_of], last_arrival[other, step_of])
            start = begin[other, step_of] + before_launch[other, step_of]
            heappush(events, (start, LAUNCH, other, step_of))
    return wait, begin, end, sent, arrived


@compiled
def _highest(values: IntArray) -> int:
    highest = 0
    for value in values:
        highest = max(highest, value)
    return highest
