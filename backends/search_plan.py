"""The course of a search: starting points, then annealing from coarse blocks to fine ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dcp.backends.search_anneal import improved, score
from dcp.backends.search_level import Level, Runs
from dcp.backends.search_places import Places
from dcp.backends.search_regroup import regrouped
from dcp.backends.search_seeds import bisected
from dcp.backends.search_state import State
from dcp.placement import Assignment, PlacementProblem

_FEWEST_BLOCKS = 32
"""No level has fewer token blocks than this or than places: too few cannot be balanced."""

_COARSE_STEPS, _FINE_STEPS = 60_000, 60_000
"""Moves a cycle of annealing, for as many computations as below or fewer."""

_USUAL_COMPUTATIONS, _GROWTH = 4000, 0.75
"""More computations take more moves, but not in proportion."""

_HEATS, _SPARSE_HEATS, _SPARSE = (0.2, 0.8), (0.4, 1.6), 4.5
"""Temperatures of the cycles in turn; higher ones where a net has few users on average."""

_NODES_FIRST = 3.0
"""Weight of bytes between nodes from which nodes are worth a search of their own."""


class Search:
    """A search for a placement of one problem.

    Args:
        problem: What to place.
        inter_weight: Weight of a byte between nodes; inside a node it weighs 1.
    """

    def __init__(self, problem: PlacementProblem, inter_weight: float) -> None:
        self._problem = problem
        self._runs = Runs.of(problem)
        self._places = Places.devices_of(problem, inter_weight)
        # Nodes are more than their devices only where there are several of several.
        layered = self._places.nodes > 1 and self._places.per_node > 1
        self._regroups = layered and inter_weight > 1
        self._nodes_first = layered and inter_weight >= _NODES_FIRST
        self._effort = problem.budget**0.5
        self._seed = problem.seed * 1000

    def run(self) -> Assignment:
        """The best answer found."""
        lengths = self._lengths()
        coarse, level = lengths[0], self._level(lengths[min(1, len(lengths) - 1)])
        starts = [self._flat(coarse, level)]
        if self._nodes_first:
            starts.append(self._node_first(coarse, level))
        best = min((self._annealed(start, 2, _FINE_STEPS) for start in starts), key=score)
        best = self._annealed(self._regrouped(level, best), 2, _FINE_STEPS)
        for length in lengths[2:]:
            finer = self._level(length)
            best = self._annealed(_passed_on(level, best, finer, self._places), 2, _FINE_STEPS)
            level = finer
        return _answer(level, best)

    def _flat(self, length: int, finer: Level) -> State:
        """All devices searched alike on a coarse level, then put into nodes."""
        level, alike = self._level(length), replace(self._places, farther=0.0)
        start = alike.state(level, bisected(level, alike))
        best = self._regrouped(level, self._annealed(start, 2, _COARSE_STEPS))
        return _passed_on(level, best, finer, self._places)

    def _node_first(self, length: int, finer: Level) -> State:
        """Nodes searched first, as if they were devices; then each node cut into its devices.

        Head groups stay together here: parting them inside a node costs no byte between nodes.
        """
        nodes = Places.nodes_of(self._problem)
        level, tied = self._level(length, tied=True), self._tied(finer)
        start = nodes.state(level, bisected(level, nodes))
        best = self._annealed(start, 2, _COARSE_STEPS)
        best = self._annealed(_passed_on(level, best, tied, nodes), 2, _COARSE_STEPS)
        home, node = finer.lowered(_answer(tied, best))
        device = bisected(finer, self._places, node, home[finer.nets["token"]])
        return self._places.state(finer, device)

    def _regrouped(self, level: Level, state: State) -> State:
        if not self._regroups:
            return state
        number = regrouped(state, self._places)
        home, device = number[state.tokens["home"]], number[state.comps["device"]]
        return self._places.state(level, device, home)

    def _annealed(self, state: State, cycles: int, steps: int) -> State:
        self._seed += 1
        count, nets = len(state.comps), len(state.nets)
        hot = _SPARSE_HEATS if 2 * count < _SPARSE * nets else _HEATS
        heats = [hot[index % 2] for index in range(max(1, round(cycles * self._effort)))]
        growth = max(1.0, count / _USUAL_COMPUTATIONS) ** _GROWTH
        return improved(state, heats, max(1, round(steps * growth * self._effort)), self._seed)

    def _lengths(self) -> list[int]:
        """Numbers of blocks merged at the levels, falling to 1."""
        lengths, fewest = [1], max(len(self._places), _FEWEST_BLOCKS)
        while fewest <= self._runs.count(2 * lengths[-1]) < self._runs.count(lengths[-1]):
            lengths.append(2 * lengths[-1])
        return lengths[::-1]

    def _level(self, length: int, tied: bool = False) -> Level:
        groups = self._problem.data_bytes.shape[2]
        group_of = np.zeros(groups, dtype=np.int64) if tied else np.arange(groups)
        return Level.of(self._problem, self._runs.merged(length), group_of)

    def _tied(self, level: Level) -> Level:
        return Level.of(self._problem, level.token_of, np.zeros_like(level.group_of))


def _answer(level: Level, state: State) -> Assignment:
    return level.raised(state.tokens["home"], state.comps["device"])


def _passed_on(level: Level, state: State, finer: Level, places: Places) -> State:
    home, device = finer.lowered(_answer(level, state))
    return places.state(finer, device, home)
