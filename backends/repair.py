"""Bring an answer inside both limits at few bytes, whoever gave it.

Solvers know one balance limit at most; the problem has two, tokens exact and compute on two
levels. Nothing here hides an answer that stays outside: `dcp.placement.evaluate` has the word.
"""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.answers import node_epsilon
from dcp.backends.homes import settle_homes
from dcp.backends.settle_kernels import fill_savings, follow, relieve, save
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
    follow(devices.tables, node_of, nodes.where)
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


def _settle(touching: Touching, comps: IntArray, places: IntArray, limit: float) -> None:
    """Move computations between places until none is over the limit, then to save bytes."""
    if not relieve(touching.tables, comps, places, limit, touching.scratch):
        _pack(touching, comps, places)
    for _ in range(_MAX_SWEEPS):
        if not _save_bytes(touching, comps, places, limit):
            break


def _pack(touching: Touching, comps: IntArray, places: IntArray) -> None:
    """The packing that defines the limit; bins in order of the places."""
    bins = pack_longest_first(touching.tables.flops[comps], len(places))
    for comp, place in zip(comps.tolist(), places[bins].tolist(), strict=True):
        touching.move(comp, place)


def _save_bytes(touching: Touching, comps: IntArray, places: IntArray, limit: float) -> int:
    """One sweep of moves that save bytes within the limit, best first; returns their number."""
    saved = np.empty(len(comps), dtype=np.int64)
    fill_savings(touching.tables, comps, places, saved)
    order = np.argsort(saved, kind="stable")[: np.count_nonzero(saved)]
    return save(touching.tables, comps[order], places, limit)
