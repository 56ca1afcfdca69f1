"""Which devices share a node, chosen again for a placement whose devices are settled.

Bytes between devices stay what they are; only how many of them cross nodes changes.
"""

from __future__ import annotations

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.backends.search_places import Places
from dcp.backends.search_state import State


def regrouped(state: State, places: Places) -> IntArray:
    """Exchange devices between nodes while fewer bytes cross and no limit of work breaks.

    Returns:
        New number of every device, [D].
    """
    count = len(places)
    traffic, node = _traffic(state), np.arange(count) // places.per_node
    gains = _gains(traffic, node, places.nodes)
    for _ in range(4 * count):
        a, b = divmod(int(gains.argmax()), count)
        if gains[a, b] <= 0:
            break
        node[a], node[b] = node[b], node[a]
        if _fit(state, places, node, node[[a, b]]):
            gains = _gains(traffic, node, places.nodes)
        else:
            node[a], node[b] = node[b], node[a]
            gains[a, b] = gains[b, a] = 0
    number = np.zeros(count, dtype=np.int64)
    number[np.argsort(node, kind="stable")] = np.arange(count)
    return number


def _traffic(state: State) -> FloatArray:
    """Bytes between every two devices, both directions together, [D, D]."""
    home = state.tokens["home"][state.nets["token"]].astype(np.int64)
    count = state.used.shape[1]
    net, device = np.nonzero(state.used)
    sent = np.bincount(home[net] * count + device, state.nets["size"][net], count * count)
    traffic = np.asarray(sent, dtype=np.float64).reshape(count, count)
    np.fill_diagonal(traffic, 0.0)
    both: FloatArray = traffic + traffic.T
    return both


def _gains(traffic: FloatArray, node: IntArray, nodes: int) -> FloatArray:
    """Crossing bytes saved by exchanging two devices, [D, D]; 0 inside a node."""
    with_node = traffic @ (node[:, None] == np.arange(nodes))
    own, there = with_node[np.arange(len(node)), node], with_node[:, node]
    gains: FloatArray = there + there.T - own[:, None] - own[None, :] - 2 * traffic
    gains[node[:, None] == node[None, :]] = 0.0
    return gains


def _fit(state: State, places: Places, node: IntArray, changed: IntArray) -> bool:
    """Whether nodes of these devices hold their limits of work."""
    for one in changed.tolist():
        work = state.devices["work"][node == one]
        inside = places.inside_factor * float(work.sum()) / places.per_node
        if work.sum() > places.node_limit or work.max() > min(places.device_limit, inside):
            return False
    return True
