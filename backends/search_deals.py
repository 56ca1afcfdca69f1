"""Sequences dealt out in order: starting points under windows and other sparse masks.

A deal keeps sequences together but for those at the ends of a place's share. Which are cut, and
where, follows from their order alone, so that many can be compared in one go.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.backends.search_level import Level
from dcp.backends.search_places import Places
from dcp.backends.search_random import scattered

_ORDERS, _MOST_ITEMS = 128, 800_000
"""Orders that are compared at most, and items (computations; blocks by place) in all of them."""


class Deal(NamedTuple):
    """Homes, and where to compute with them.

    Attributes:
        device: Of every computation, [C].
        home: Of every token block, [T].
    """

    device: IntArray
    home: IntArray

    @classmethod
    def of(cls, level: Level, home: IntArray) -> Deal:
        """The deal of these homes, [T]."""
        return cls(_devices(level, home[None])[0], home)


def dealt(level: Level, places: Places) -> Deal:
    """Equal runs of tokens to devices in turn, in the order of the batch."""
    return Deal.of(level, _homes(level, len(places), np.arange(_runs(level))[None])[0])


def best_dealt(level: Level, places: Places, seed: int, most: int) -> list[Deal]:
    """The cheapest of many deals in random orders and that of the batch, cheapest first.

    Args:
        level: What to place.
        places: Where.
        seed: Of the orders, 0 or more.
        most: Deals to return; fewer where there are not so many of different cost.
    """
    items = max(len(level.comps), len(level.nets) * len(places))
    count = int(np.clip(_MOST_ITEMS // max(items, 1), 1, _ORDERS))
    homes = _homes(level, len(places), _orders(level, seed, count))
    devices = _devices(level, homes)
    _, cheapest = np.unique(_costs(level, places, homes, devices), return_index=True)
    return [Deal(devices[one], homes[one]) for one in cheapest[:most].tolist()]


def _runs(level: Level) -> int:
    return int(level.tokens["run"].max(initial=0)) + 1


def _orders(level: Level, seed: int, count: int) -> IntArray:
    """Orders of the runs, the first one that of the batch, [count, runs]."""
    runs = _runs(level)
    numbers = count * runs
    rank = scattered(seed * numbers + 1, numbers).reshape(count, runs)
    rank[0] = np.arange(runs)
    return np.argsort(rank, axis=1, kind="stable")


def _homes(level: Level, devices: int, orders: IntArray) -> IntArray:
    """Homes of the token blocks when runs are dealt in these orders, [orders, T]."""
    tokens, run = level.tokens["tokens"], level.tokens["run"].astype(np.int64)
    length = np.zeros(orders.shape[1], dtype=np.int64)
    np.add.at(length, run, tokens)
    begin = np.zeros_like(orders)
    dealt_before = np.cumsum(length[orders], axis=1) - length[orders]
    np.put_along_axis(begin, orders, dealt_before, axis=1)
    inside = np.cumsum(tokens) - (np.cumsum(length) - length)[run] - tokens / 2
    home = (begin[:, run] + inside) * devices // max(int(tokens.sum()), 1)
    return np.asarray(np.minimum(home, devices - 1).astype(np.int64))


def _devices(level: Level, homes: IntArray) -> IntArray:
    """Where to compute: at the queries, or at the keys where all of those in one place weigh more.

    Args:
        level: What to place.
        homes: Of the token blocks, [deals, T].

    Returns:
        Device of every computation, [deals, C].
    """
    comps, size = level.comps, level.nets["size"]
    queries, keys = homes[:, level.query_token], homes[:, level.nets["token"][comps["column"]]]
    deals, count, rows = len(homes), int(homes.max(initial=0)) + 1, len(level.nets) // 2
    group = (np.arange(deals)[:, None] * rows + comps["row"].astype(np.int64)) * count + keys
    weight = np.tile(size[comps["column"]].astype(np.float64), deals)
    fetched = np.bincount(group.ravel(), weight, deals * rows * count)
    return np.where(fetched[group] > size[comps["row"]], keys, queries)


def _costs(level: Level, places: Places, homes: IntArray, devices: IntArray) -> FloatArray:
    """Bytes of deals, and about those of what has yet to leave for the limits, [deals].

    Args:
        level, places: See `best_dealt`.
        homes: Of the token blocks, [deals, T].
        devices: Of the computations, [deals, C].
    """
    deal, count, keys = np.arange(len(homes))[:, None], len(places), len(level.nets) // 2
    at_home = np.arange(keys) * count + np.repeat(homes, level.groups, axis=1)
    cost: FloatArray = np.zeros(len(homes))
    for side, size in (("row", level.nets["size"][:keys]), ("column", level.nets["size"][keys:])):
        net = level.comps[side].astype(np.int64) % keys
        needed = np.zeros((len(homes), keys * count), dtype=np.bool_)
        needed[deal, net * count + devices] = True
        needed[deal, at_home] = False
        cost += needed @ np.repeat(size, count)
    heaviest = max(float(level.comps["work"].max(initial=0)), 1.0)
    work = _excess(devices, level.comps["work"], count, places.device_limit) / heaviest
    held = _excess(homes, level.tokens["tokens"], count, places.token_limit_on(level))
    return cost + level.usual_bytes * (work + held / max(level.usual_tokens, 1.0))


def _excess(place: IntArray, size: IntArray, count: int, limit: float) -> FloatArray:
    """Sum over places of what they hold beyond the limit, [deals].

    Args:
        place: Of every item, [deals, n].
        size: Of every item, [n].
        count: Places.
        limit: Of a place.
    """
    deals = len(place)
    key = (np.arange(deals)[:, None] * count + place).ravel()
    held = np.bincount(key, np.tile(size, deals), deals * count).reshape(deals, count)
    return np.asarray(np.maximum(held - limit, 0.0).sum(axis=1))
