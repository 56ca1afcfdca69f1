"""Bring an answer inside both limits at few bytes, whoever gave it.

Solvers know one balance limit at most; the problem has two, tokens exact and compute on two
levels. Nothing here hides an answer that stays outside: `dcp.placement.evaluate` has the word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.answers import node_epsilon
from dcp.backends.homes import settle_homes
from dcp.backends.settle_kernels import exchange, fill_savings, follow, refill, relieve, save
from dcp.backends.touching import Touching
from dcp.cluster import Cluster
from dcp.packing import loads, pack_longest_first
from dcp.placement import Assignment, PlacementProblem, compute_limit

_ROUNDS = 2
_MAX_SWEEPS = 4

_SHARES = (1.0, *(1 - 0.5**one for one in range(8, -1, -1)))
"""Of an even load: what places keep when they are filled anew, or up to where bytes decide."""


def repair(problem: PlacementProblem, answer: Assignment) -> Assignment:
    """Make an answer feasible, then take what single moves save within the limits.

    Homes and computations are settled in turn: homes under the token limit for the
    computations as they are, then nodes and then devices under the compute limits for those
    homes. Deterministic. Where moves get stuck, places are filled anew, at worst by the packings
    that define the limits, so each limit is kept that can be kept by itself. Exact limits between
    and inside nodes at once may be more than there is a placement for, or than is found.
    """
    home, device = answer
    node_of = problem.cluster.device_node
    for _ in range(max(1, round(_ROUNDS * problem.budget))):
        devices = Touching(problem, home, device, problem.cluster.num_devices)
        nodes = Touching(problem, node_of[home], node_of[device], problem.cluster.nodes)
        # A home in a node that needs the block anyway also saves a crossing.
        saving = devices.saving() + nodes.saving()[:, node_of]
        home = settle_homes(saving, problem.token_tokens, problem.token_limit, home)
        before, (home, device) = device, settle_computations(problem, home, device)
        if (before == device).all():
            break  # another round would change nothing
    return Assignment(home, device)


def settle_computations(problem: PlacementProblem, home: IntArray, device: IntArray) -> Assignment:
    """Devices within the compute limits: nodes first, then devices inside each node.

    Homes stay, unless whole devices have to change nodes.
    """
    cluster, node_of = problem.cluster, problem.cluster.device_node
    nodes = Touching(problem, node_of[home], node_of[device], cluster.nodes)
    node_limit = compute_limit(problem.comp_flops, cluster.nodes, node_epsilon(problem.limits))
    falling = np.argsort(-problem.comp_flops, kind="stable")
    _settle(nodes, falling, np.arange(cluster.nodes), node_limit)

    devices = Touching(problem, home, device, cluster.num_devices)
    follow(devices.tables, node_of, nodes.where)
    _settle_inside_nodes(problem, devices, falling)
    if float(devices.loads.max()) > problem.overall_compute_limit:
        number = _settle_devices(problem, devices, falling)
        home = number[home]
        devices = Touching(problem, home, number[devices.where], cluster.num_devices)
        _settle_inside_nodes(problem, devices, falling)
    return Assignment(home, devices.where)


def _settle_devices(problem: PlacementProblem, devices: Touching, falling: IntArray) -> IntArray:
    """Fill all devices anew, whatever their nodes; returns new numbers that even nodes out, [D]."""
    limit, places = problem.overall_compute_limit, np.arange(problem.cluster.num_devices)
    packed = pack_longest_first(problem.comp_flops[falling], len(places))

    def fits(load: IntArray) -> bool:
        mixed = _node_loads(problem, _mixed(problem.cluster, load), load)
        return bool(load.max() <= limit and mixed.max() <= problem.node_compute_limit)

    _fill(devices, falling, places, packed, limit, fits)
    if _node_loads(problem, places, devices.loads).max() <= problem.node_compute_limit:
        return places
    return _mixed(problem.cluster, devices.loads)


def _node_loads(problem: PlacementProblem, number: IntArray, load: IntArray) -> IntArray:
    """Work of nodes, [nodes], where devices with some loads, [D], get these numbers, [D]."""
    return loads(problem.cluster.device_node[number], load, problem.cluster.nodes)


def _mixed(cluster: Cluster, load: IntArray) -> IntArray:
    """New numbers of devices, [D], so that full ones share nodes with empty ones."""
    free = [np.flatnonzero(cluster.device_node == node).tolist() for node in range(cluster.nodes)]
    node_load, number = np.zeros(cluster.nodes), np.zeros_like(load)
    for device in np.argsort(-load, kind="stable").tolist():
        node = min(range(cluster.nodes), key=lambda node: (not free[node], node_load[node]))
        number[device] = free[node].pop()
        node_load[node] += load[device]
    return number


def _settle_inside_nodes(problem: PlacementProblem, devices: Touching, falling: IntArray) -> None:
    node_of = problem.cluster.device_node
    for node in range(problem.cluster.nodes):
        mine = falling[node_of[devices.where[falling]] == node]
        limit = problem.device_compute_limit(problem.comp_flops[mine])
        _settle(devices, mine, np.flatnonzero(node_of == node), limit)


def _settle(touching: Touching, falling: IntArray, places: IntArray, limit: float) -> None:
    """Move computations between places until none is over the limit, then to save bytes."""
    if not relieve(touching.tables, falling, places, limit, touching.scratch):
        packed = places[pack_longest_first(touching.tables.flops[falling], len(places))]
        _fill(touching, falling, places, packed, limit, lambda load: bool(load.max() <= limit))
    for _ in range(_MAX_SWEEPS):
        if not _save_bytes(touching, falling, places, limit):
            break


def _fill(
    touching: Touching,
    falling: IntArray,
    places: IntArray,
    packed: IntArray,
    limit: float,
    fits: Callable[[IntArray], bool],
) -> None:
    """Share computations out anew: the cheapest of several ways that fit.

    Args:
        touching: Where they are; changed.
        falling: Computations in falling order of work, [n].
        places: Where they may go.
        packed: A packing that defines the limit, to fall back on, [n].
        limit: Most work of a place.
        fits: Whether places may have these loads, [places].
    """
    tables, start = touching.tables, touching.where[falling]
    even = float(tables.flops[falling].sum()) / len(places)
    room = np.zeros((3, len(tables.loads)), dtype=np.int64)
    touching.put(falling, packed)
    best, best_volume = packed, touching.volume()
    ways = [(share * even, limit) for share in _SHARES]
    ways += [(0.0, share * even) for share in _SHARES]
    for kept, cap in ways:
        touching.put(falling, start)
        refill(tables, falling, places, kept, cap, touching.scratch, room)
        if fits(tables.loads[places]) and touching.volume() < best_volume:
            best, best_volume = touching.where[falling], touching.volume()
    touching.put(falling, best)


def _save_bytes(touching: Touching, falling: IntArray, places: IntArray, limit: float) -> int:
    """One sweep of moves, then exchanges, that save bytes within the limit, best first.

    Returns their number.
    """
    tables, saved = touching.tables, np.empty(len(falling), dtype=np.int64)
    fill_savings(tables, falling, places, saved)
    order = np.argsort(saved, kind="stable")[: np.count_nonzero(saved)]
    moved = save(tables, falling[order], places, limit)
    return moved + exchange(tables, falling[order], falling, places, limit)
