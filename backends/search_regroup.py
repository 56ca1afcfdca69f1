"""Which devices share a node, chosen again for a placement whose devices are settled.

Bytes between devices stay what they are; only how many of them cross nodes changes.
"""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.search_places import Places
from dcp.backends.search_seed_kernels import exchange_devices, tally_traffic
from dcp.backends.search_state import State


def regrouped(state: State, places: Places) -> IntArray:
    """Exchange devices between nodes while fewer bytes cross and no limit of work breaks.

    Returns:
        New number of every device, [D].
    """
    count = len(places)
    traffic = np.zeros((count, count))
    tally_traffic(state, traffic)
    node = np.arange(count) // places.per_node
    with_node = traffic.reshape(count, places.nodes, places.per_node).sum(axis=2)
    members = np.arange(count).reshape(places.nodes, places.per_node)
    exchange_devices(state, traffic, with_node, node, members)
    number = np.zeros(count, dtype=np.int64)
    number[members.ravel()] = np.arange(count)
    return number
