"""The event loop against a plain one: the same moments, also where many things happen at once."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.event_engine import play

LAUNCH, PORT = 0, 1


def plainly(before, after, src, dst, step, duration, latency, port_out, port_in):
    """When ranks begin and end, [ranks, steps], and messages enter and arrive: by a heap."""
    ranks, steps = before.shape
    begin, end = np.zeros((ranks, steps)), np.zeros((ranks, steps))
    sent, arrived = np.zeros(len(src)), np.zeros(len(src))
    missing = {
        (rank, at): int(((dst == rank) & (step == at)).sum())
        for rank, at in np.ndindex(ranks, steps)
    }
    reached, queues, free, busy = [0] * ranks, {}, {}, set()
    events = [(before[rank, 0], LAUNCH, rank) for rank in range(ranks)]
    heapq.heapify(events)
    while events:
        now, kind, which = heapq.heappop(events)
        if kind == LAUNCH:
            rank, at = which, reached[which]
            end[rank, at] = now + after[rank, at]
            at += 1
            if at == steps:
                continue
            reached[rank] = at
            for message in np.flatnonzero((src == rank) & (step == at)):
                port = port_out[message]
                queues.setdefault(port, []).append(message)
                if port not in busy:
                    busy.add(port)
                    heapq.heappush(events, (now, PORT, port))
        else:
            if not queues[which]:
                busy.remove(which)
                continue
            message = queues[which].pop(0)
            sent[message] = max(now, free.get(port_in[message], 0.0))
            free[port_in[message]] = sent[message] + duration[message]
            arrived[message] = free[port_in[message]] + latency[message]
            heapq.heappush(events, (free[port_in[message]], PORT, which))
            rank, at = dst[message], step[message]
            missing[rank, at] -= 1
        if missing[rank, at] == 0 and reached[rank] == at:
            last = arrived[(dst == rank) & (step == at)].max(initial=0.0)
            begin[rank, at] = max(end[rank, at - 1], last)
            heapq.heappush(events, (begin[rank, at] + before[rank, at], LAUNCH, rank))
    return begin, end, sent, arrived


@pytest.mark.property
@given(
    ranks=st.integers(1, 9),
    steps=st.integers(1, 6),
    count=st.integers(0, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_everything_happens_when_a_plain_loop_says(ranks, steps, count, seed):
    random = np.random.default_rng(seed)
    count = count if steps > 1 else 0
    src, dst = random.integers(0, ranks, (2, count))
    step = random.integers(1, max(steps, 2), count)
    order = np.lexsort((src, step))
    src, dst, step = src[order], dst[order], step[order]
    # Few different numbers, so that much happens at the same moment.
    before, after = random.integers(0, 4, (2, ranks, steps)) / 3
    duration, latency = random.integers(0, 4, (2, count)) / 2
    ports = random.integers(0, ranks + 2, (2, count))
    given_all = before, after, src, dst, step, duration, latency, *ports
    wait, *found = play(*given_all)
    for ours, plain in zip(found, plainly(*given_all), strict=True):
        np.testing.assert_array_equal(ours, plain)
    np.testing.assert_array_equal(wait[:, 1:], found[1][:, :-1])
