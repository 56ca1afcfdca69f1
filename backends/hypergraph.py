"""The problem as hypergraphs, and the recursion that solves them: nodes first, then devices.

Vertices are token blocks and computation blocks; the head groups of one (query, key) pair of
blocks are tied into one vertex. Nets are data blocks: a query side (Q and O) and a key side (KV)
for every token block, weighted by its bytes over all head groups; pins are the token block and
the computations that touch it. Connectivity minus one, summed over both levels, is then the
placement formula's volume. docs/placement.md says how two limits are put to solvers of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.answers import cheapest, node_epsilon, trivial_answer
from dcp.backends.homes import settle_homes
from dcp.backends.pairs import Pairs
from dcp.packing import pack_longest_first
from dcp.placement import Assignment, PlacementProblem, compute_limit

_MAX_SUM = 2**30
"""Solvers add weights in int32 without a check; every sum stays below half of that range."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypergraph:
    """One call to a solver; token blocks come first among the vertices.

    Attributes:
        vertex_weight: Positive; the sum fits into int32, [V].
        net_weight: Positive; times (parts - 1) the sum fits into int32, [N].
        net_ptr: Net n has pins net_ptr[n]:net_ptr[n + 1], two or more, [N + 1].
        pins: Vertices, ascending within a net, [pins].
        fixed: Part that a vertex has to be in, -1 for any, [V].
        parts: Number of parts, at least 2.
        epsilon: A part weighs at most (1 + epsilon) × ceil(total ÷ parts).
        seed: Equal seeds give equal answers; 0 … 2**31 - 1.
    """

    vertex_weight: IntArray
    net_weight: IntArray
    net_ptr: IntArray
    pins: IntArray
    fixed: IntArray
    parts: int
    epsilon: float
    seed: int


Solver = Callable[[Hypergraph], IntArray]
"""Part of every vertex, [V]."""


def place_with(
    problem: PlacementProblem, solve: Callable[[PlacementProblem], Assignment]
) -> Assignment:
    """Answer a problem through a solver: degenerate ones without it, the others repaired.

    Args:
        problem: What to place; from a budget of 2 on, the solver is run so many times with
            seeds that follow one another, and the best answer is taken.
        solve: Runs the solver once, for instance by `solve_by_levels`.
    """
    answer = trivial_answer(problem)
    if answer is not None:
        return answer
    tries = [
        replace(problem, seed=problem.seed + more) for more in range(max(1, int(problem.budget)))
    ]
    return cheapest(problem, map(solve, tries))


def solve_by_levels(
    problem: PlacementProblem, solver: Solver, *, fixed_vertices: bool = True
) -> Assignment:
    """Split over nodes, then the share of each node over its devices; not repaired.

    Args:
        problem: What to place, with some work.
        solver: Called once or twice for every split.
        fixed_vertices: Whether the solver heeds `Hypergraph.fixed`.
    """
    cluster = problem.cluster
    splitter = _Splitter(problem, solver, fixed_vertices)
    home, where = splitter.split(
        np.arange(len(problem.token_tokens)),
        np.arange(len(splitter.pairs.q)),
        parts=cluster.nodes,
        epsilon=node_epsilon(problem.limits),
        capacity=problem.token_limit * cluster.devices_per_node,
    )
    token_device, pair_device = np.zeros_like(home), np.zeros_like(where)
    for node in range(cluster.nodes):
        tokens, mine = np.flatnonzero(home == node), np.flatnonzero(where == node)
        inner_home, inner_where = splitter.split(
            tokens,
            mine,
            parts=cluster.devices_per_node,
            epsilon=splitter.device_epsilon(mine),
            capacity=problem.token_limit,
        )
        first = node * cluster.devices_per_node
        token_device[tokens] = first + inner_home
        pair_device[mine] = first + inner_where
    return Assignment(token_device, pair_device[splitter.pairs.of_comp])


class _Splitter:
    """Splits some token blocks and pairs into parts under both limits."""

    def __init__(self, problem: PlacementProblem, solver: Solver, fixed_vertices: bool) -> None:
        self.pairs = Pairs.of(problem)
        self._problem = problem
        self._tokens = problem.token_tokens
        self._solver = solver
        self._fixed_vertices = fixed_vertices
        self._seed = problem.seed % 2**31

    def device_epsilon(self, mine: IntArray) -> float:
        """How far over the mean of its node a device may go with these pairs, as a fraction."""
        problem = self._problem
        mean = float(self.pairs.flops[mine].sum()) / problem.cluster.devices_per_node
        overall = problem.overall_compute_limit / mean - 1 if mean else 0.0
        return max(min(problem.limits.intra_node, overall), 0.0)

    def split(
        self, tokens: IntArray, mine: IntArray, *, parts: int, epsilon: float, capacity: int
    ) -> tuple[IntArray, IntArray]:
        """Part of each of these token blocks and of each of these pairs.

        The solver balances computing alone; then homes are settled under the token capacity;
        then, where that moved any, the solver places the pairs again around fixed homes.
        """
        flops = self.pairs.flops[mine]
        if parts == 1 or len(mine) < parts or not flops.any():
            home = pack_longest_first(self._tokens[tokens], parts)
            return home, pack_longest_first(flops, parts)
        free = self._graph(tokens, mine, parts, epsilon)
        part = self._solver(free)
        wanted, where = part[: len(tokens)], part[len(tokens) :]
        sub = replace(self.pairs, q=self.pairs.q[mine], kv=self.pairs.kv[mine])
        saving = sub.saving(where, parts)[tokens]
        home = settle_homes(saving, self._tokens[tokens], capacity, wanted)
        if self._fixed_vertices and (home != wanted).any():
            fixed = free.fixed.copy()
            fixed[: len(tokens)] = home
            where = self._solver(replace(free, fixed=fixed))[len(tokens) :]
        return home, where

    def _graph(self, tokens: IntArray, mine: IntArray, parts: int, epsilon: float) -> Hypergraph:
        # Zero weights are illegal, so token blocks weigh one part in a thousand million.
        work = _scaled(self.pairs.flops[mine], _MAX_SUM)
        light = np.ones_like(tokens)
        limit = compute_limit(work, parts, epsilon) + len(tokens)
        mean = -(-(int(work.sum()) + len(tokens)) // parts)
        net_weight, net_ptr, pins = self._nets(tokens, mine, parts)
        return Hypergraph(
            vertex_weight=np.concatenate([light, work]),
            net_weight=net_weight,
            net_ptr=net_ptr,
            pins=pins,
            fixed=np.full(len(tokens) + len(mine), -1, dtype=np.int64),
            parts=parts,
            epsilon=limit / mean - 1,
            seed=self._seed,
        )

    def _nets(
        self, tokens: IntArray, mine: IntArray, parts: int
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Weights, ptr and pins of the nets that can be cut and weigh anything."""
        count = len(self._tokens)
        pair_vertex = len(tokens) + np.arange(len(mine))
        token_vertex = np.arange(len(tokens))
        net = np.concatenate(
            [self.pairs.q[mine], count + self.pairs.kv[mine], tokens, count + tokens]
        )
        pin = np.concatenate([pair_vertex, pair_vertex, token_vertex, token_vertex])
        weight = np.concatenate([self.pairs.q_bytes, self.pairs.kv_bytes])
        keep = (np.bincount(net, minlength=2 * count)[net] > 1) & (weight[net] > 0)
        net, pin = net[keep], pin[keep]
        order = np.lexsort((pin, net))
        used, start = np.unique(net[order], return_index=True)
        ptr = np.append(start, len(pin))
        return _scaled(weight[used], _MAX_SUM // (parts - 1)), ptr, pin[order]


def _scaled(weights: IntArray, total: int) -> IntArray:
    """Positive integers in proportion to weights, their sum close to a total."""
    factor = total / max(float(weights.sum()), 1.0)
    return np.asarray(np.maximum(np.rint(weights * factor), 1), dtype=np.int64)
