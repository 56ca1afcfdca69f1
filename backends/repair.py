"""Bring an answer inside both limits at few bytes, whoever gave it.

Solvers know one balance limit at most; the problem has two, tokens exact and compute on two
levels. Nothing here hides an answer that stays outside: `dcp.placement.evaluate` has the word.
"""

from __future__ import annotations

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.backends.answers import node_epsilon
from dcp.backends.homes import settle_homes
from dcp.backends.touching import Touching
from dcp.packing import pack_longest_first
from dcp.placement import Assignment, PlacementProblem, compute_limit

_ROUNDS = 2
_MAX_SWEEPS = 4


def repair(problem: PlacementProblem, answer: Assignment) -> Assignment:
    """Make an answer feasible, then take what single moves save within the limits.

    Homes and computations are settled in turn: homes under the token limit for the
    computations as they are, then nodes and then devices under the compute limits for those
    homes. Deterministic. Where moves and exchanges get stuck, the packings that define the
    limits take over, so both limits hold afterwards.
    """
    home, device = answer
    node_of = problem.cluster.device_node
    for _ in range(max(1, round(_ROUNDS * problem.budget))):
        devices = Touching(problem, home, device, problem.cluster.num_devices)
        nodes = Touching(problem, node_of[home], node_of[device], problem.cluster.nodes)
        # A home in a node that needs the block anyway also saves a crossing.
        saving = devices.saving() + nodes.saving()[:, node_of]
        home = settle_homes(saving, problem.token_tokens, problem.token_limit, home)
        device = settle_computations(problem, home, device)
    return Assignment(home, device)


def settle_computations(problem: PlacementProblem, home: IntArray, device: IntArray) -> IntArray:
    """Devices within the compute limits: nodes first, then devices inside each node, [C]."""
    cluster, node_of = problem.cluster, problem.cluster.device_node
    nodes = Touching(problem, node_of[home], node_of[device], cluster.nodes)
    node_limit = compute_limit(problem.comp_flops, cluster.nodes, node_epsilon(problem.limits))
    _settle(nodes, np.arange(len(device)), np.arange(cluster.nodes), node_limit)

    devices = Touching(problem, home, device, cluster.num_devices)
    _follow_nodes(devices, node_of, nodes.where)
    _settle_inside_nodes(problem, devices)
    if float(devices.loads.max()) > problem.overall_compute_limit:
        _pack(devices, np.arange(len(device)), np.arange(cluster.num_devices))
        _settle_inside_nodes(problem, devices)
    return devices.where


def _settle_inside_nodes(problem: PlacementProblem, devices: Touching) -> None:
    node_of = problem.cluster.device_node
    for node in range(problem.cluster.nodes):
        mine = np.flatnonzero(node_of[devices.where] == node)
        limit = problem.device_compute_limit(problem.comp_flops[mine])
        _settle(devices, mine, np.flatnonzero(node_of == node), limit)


def _follow_nodes(devices: Touching, node_of: IntArray, node: IntArray) -> None:
    """Give what changed nodes a device there: the cheapest, then the emptiest."""
    for comp in np.flatnonzero(node_of[devices.where] != node).tolist():
        inside = np.flatnonzero(node_of == node[comp])
        cost = devices.move_cost(np.array([comp]))[0, inside]
        devices.move(comp, int(inside[np.lexsort((devices.loads[inside], cost))[0]]))


def _settle(touching: Touching, comps: IntArray, places: IntArray, limit: float) -> None:
    """Move computations between places until none is over the limit, then to save bytes."""
    while float(touching.loads[places].max()) > limit:
        full = int(places[touching.loads[places].argmax()])
        mine = comps[touching.where[comps] == full]
        if not (
            _drain(touching, mine, places, limit, full)
            or _exchange(touching, comps, mine, limit, full)
        ):
            _pack(touching, comps, places)
            break
    for _ in range(_MAX_SWEEPS):
        if not _save_bytes(touching, comps, places, limit):
            break


def _drain(touching: Touching, mine: IntArray, places: IntArray, limit: float, full: int) -> bool:
    """Move computations out of a full place, most excess for a byte first; False if none moved."""
    flops = touching.flops[mine]
    target, cost = _cheapest_room(touching, mine, places, limit)
    moved = False
    while float(touching.loads[full]) > limit:
        useful = np.minimum(flops, touching.loads[full] - limit)
        price = np.where(useful > 0, cost / np.maximum(useful, 1), np.inf)
        index = int(price.argmin())
        if not np.isfinite(price[index]):
            break
        # Places only fill up here, so the cheapest of all is the one to take if it still has room.
        if touching.loads[target[index]] + flops[index] > limit:
            changed = np.array([index])
        else:
            touching.move(int(mine[index]), int(target[index]))
            moved = True
            changed = np.flatnonzero(touching.shares_data(mine, int(mine[index])))
        target[changed], cost[changed] = _cheapest_room(touching, mine[changed], places, limit)
        cost[touching.where[mine] != full] = np.inf
    return moved


def _cheapest_room(
    touching: Touching, comps: IntArray, places: IntArray, limit: float
) -> tuple[IntArray, FloatArray]:
    """Where each computation moves at fewest bytes within the limit, and the bytes; inf: nowhere.

    Returns:
        Place [n] and added bytes [n].
    """
    fits = touching.loads[places][None, :] + touching.flops[comps][:, None] <= limit
    cost = np.where(fits, touching.move_cost(comps)[:, places], np.inf)
    best = cost.argmin(axis=1)
    return places[best], cost[np.arange(len(comps)), best]


def _exchange(touching: Touching, comps: IntArray, mine: IntArray, limit: float, full: int) -> bool:
    """Exchange a computation for a smaller one elsewhere; False where none helps."""
    others = comps[touching.where[comps] != full]
    place = touching.where[others]
    shed = touching.flops[mine][:, None] - touching.flops[others][None, :]
    legal = (shed > 0) & (shed <= (limit - touching.loads[place])[None, :])
    if not legal.any():
        return False
    cost = touching.move_cost(mine)[:, place] + touching.move_cost(others)[:, full][None, :]
    price = cost / np.maximum(np.minimum(shed, touching.loads[full] - limit), 1)
    index, other = np.unravel_index(int(np.where(legal, price, np.inf).argmin()), price.shape)
    touching.move(int(mine[index]), int(place[other]))
    touching.move(int(others[other]), full)
    return True


def _pack(touching: Touching, comps: IntArray, places: IntArray) -> None:
    """The packing that defines the limit; bins in order of the places."""
    bins = pack_longest_first(touching.flops[comps], len(places))
    for comp, place in zip(comps.tolist(), places[bins].tolist(), strict=True):
        touching.move(comp, place)


def _save_bytes(touching: Touching, comps: IntArray, places: IntArray, limit: float) -> int:
    """One sweep of moves that save bytes within the limit, best first; returns their number."""
    moved = 0
    best = touching.move_cost(comps)[:, places].min(axis=1, initial=0)
    for comp in comps[np.argsort(best, kind="stable")[: np.count_nonzero(best)]].tolist():
        fits = touching.loads[places] + touching.flops[comp] <= limit
        cost = np.where(fits, touching.move_cost(np.array([comp]))[0, places], 0)
        if cost.min() < 0:
            touching.move(comp, int(places[cost.argmin()]))
            moved += 1
    return moved
