"""Starting points of the search."""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.search_level import Level
from dcp.backends.search_places import Places
from dcp.backends.search_seed_kernels import bisect


def bisected(
    level: Level,
    places: Places,
    node: IntArray | None = None,
) -> IntArray:
    """Devices by recursive bisection along queries, keys or head groups, [C].

    Args:
        level: What to place.
        places: Where.
        node: Node of every computation where that is settled already, [C].
    """
    count, orders = len(level.comps), _orders(level)
    parts = np.zeros((len(places) + places.nodes + 1, 4), dtype=np.int64)
    if node is None:
        parts[0] = 0, count, 0, len(places)
    else:
        orders = np.stack([order[np.argsort(node[order], kind="stable")] for order in orders])
        ends = np.cumsum(np.bincount(node, minlength=places.nodes))
        first = np.arange(places.nodes) * places.per_node
        begins = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
        parts[: places.nodes] = np.stack([begins, ends, first, first + places.per_node], axis=1)
    device = np.zeros(count, dtype=np.int64)
    bisect(
        level.comps["row"].astype(np.int64),
        level.comps["column"].astype(np.int64),
        level.comps["work"].astype(np.float64),
        level.nets["size"].copy(),
        orders,
        parts,
        places.per_node,
        device,
        np.zeros(len(level.nets), dtype=np.int64),
        np.zeros(count, dtype=np.bool_),
        np.zeros(count, dtype=np.int64),
    )
    return device


def _orders(level: Level) -> IntArray:
    """Computations by queries, by keys and by head group, [orders, C]."""
    row, column = level.comps["row"], level.comps["column"]
    query, group = np.divmod(row, level.groups)
    key = column // level.groups
    keys = [(group, key, query), (group, query, key), (key, query, group)]
    return np.stack([np.lexsort(each) for each in keys[: 3 if level.groups > 1 else 2]])
