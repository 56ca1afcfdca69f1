"""The event loop of the simulator, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.compiled import compiled, inner

# A rank in a step: seconds before and after its launch, and which messages that sends; how many
# messages it still misses and when the last of the others arrived; when it begins and ends.
_ROUND = np.dtype(
    [
        ("before_launch", "f8"),
        ("after_launch", "f8"),
        ("first", "i8"),
        ("last", "i8"),
        ("missing", "i8"),
        ("begin", "f8"),
        ("end", "f8"),
    ]
)
# `behind` is the next message in the queue of the port that it leaves through.
_MESSAGE = np.dtype(
    [
        ("round", "i8"),
        ("port_out", "i8"),
        ("port_in", "i8"),
        ("duration", "f8"),
        ("latency", "f8"),
        ("behind", "i8"),
        ("sent", "f8"),
        ("arrived", "f8"),
    ]
)
# The queue of messages that leave through a port, and when it has taken in what entered so far.
_PORT = np.dtype([("head", "i8"), ("tail", "i8"), ("free", "f8")])


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
    rounds = np.zeros(steps * ranks, _ROUND)
    rounds["before_launch"] = before_launch.T.ravel()
    rounds["after_launch"] = after_launch.T.ravel()
    sends = np.bincount(step * ranks + src - ranks, minlength=len(rounds))
    rounds["last"] = np.cumsum(sends)
    rounds["first"] = rounds["last"] - sends
    messages = np.zeros(len(src), _MESSAGE)
    messages["behind"] = -1
    messages["round"] = step * ranks + dst
    rounds["missing"] = np.bincount(messages["round"], minlength=len(rounds))
    messages["port_out"], messages["port_in"] = port_out, port_in
    messages["duration"], messages["latency"] = duration, latency
    ports = np.zeros(1 + np.maximum(port_out, port_in).max(initial=-1), _PORT)
    ports["head"] = -1
    leaves = 1 << (ranks + len(ports) - 1).bit_length()
    due, earliest = np.full(leaves, np.inf), np.zeros(2 * leaves, np.int64)
    _play(rounds, messages, ports, np.arange(ranks), due, earliest)
    begin, end = (rounds[name].reshape(steps, ranks).T.copy() for name in ("begin", "end"))
    wait = np.zeros((ranks, steps))
    wait[:, 1:] = end[:, :-1]
    return wait, begin, end, messages["sent"].copy(), messages["arrived"].copy()


@compiled
def _play(
    rounds: Any,
    messages: Any,
    ports: Any,
    reached: IntArray,
    due: FloatArray,
    earliest: IntArray,
) -> None:
    """Play the rounds.

    Args:
        rounds: By (step, rank).
        messages: By (step, source).
        ports: All ports.
        reached: The round that each rank is in or waits for, [ranks].
        due: When each rank launches and then when each port sends next; infinity for never. Of
            a length that is a power of 2.
        earliest: Room for a tournament of `due`, twice as long: the earlier one of nodes 2n and
            2n + 1 wins node n, and entry i is the leaf i places after the first.
    """
    ranks = reached.shape[0]
    for entry in range(due.shape[0]):
        earliest[due.shape[0] + entry] = entry
        _set_due(due, earliest, entry, rounds[entry].before_launch if entry < ranks else np.inf)
    while due[earliest[1]] < np.inf:
        which, now = earliest[1], due[earliest[1]]
        _set_due(due, earliest, which, np.inf)
        if which < ranks:
            here, rank = reached[which], which
            rounds[here].end = now + rounds[here].after_launch
            for message in range(rounds[here].first, rounds[here].last):
                port = messages[message].port_out
                if ports[port].head < 0:
                    ports[port].head = message
                else:
                    messages[ports[port].tail].behind = message
                ports[port].tail = message
                if due[ranks + port] == np.inf:
                    _set_due(due, earliest, ranks + port, now)
            here += ranks
            reached[rank] = here
            if here >= rounds.shape[0]:
                continue
        else:
            message = ports[which - ranks].head
            if message < 0:
                continue
            ports[which - ranks].head = messages[message].behind
            port = messages[message].port_in
            enters = max(now, ports[port].free)
            leaves = enters + messages[message].duration
            ports[port].free = leaves
            messages[message].sent = enters
            messages[message].arrived = leaves + messages[message].latency
            _set_due(due, earliest, which, leaves)
            here = messages[message].round
            rank = here % ranks
            rounds[here].missing -= 1
            rounds[here].begin = max(rounds[here].begin, messages[message].arrived)
        if rounds[here].missing == 0 and reached[rank] == here:
            begin = max(rounds[here].begin, rounds[here - ranks].end)
            rounds[here].begin = begin
            _set_due(due, earliest, rank, begin + rounds[here].before_launch)


@inner
def _set_due(due: FloatArray, earliest: IntArray, entry: int, when: float) -> None:
    """Change when an entry is due. Of those due at once the first entry wins: ranks, then ports."""
    due[entry] = when
    node = (due.shape[0] + entry) // 2
    while node > 0:
        earliest[node] = earliest[2 * node]
        if due[earliest[2 * node + 1]] < due[earliest[node]]:
            earliest[node] = earliest[2 * node + 1]
        node //= 2
