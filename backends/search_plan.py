"""The course of a search: starting points, then annealing from coarse blocks to fine ones."""

from __future__ import annotations

import numpy as np

from dcp.backends.search_anneal import improved, score
from dcp.backends.search_level import Level, Runs
from dcp.backends.search_places import Places
from dcp.backends.search_regroup import regrouped
from dcp.backends.search_seeds import bisected, dealt
from dcp.backends.search_state import State
from dcp.placement import Assignment, PlacementProblem

_FEWEST_BLOCKS, _FEWEST_EACH = 32, 2
"""Token blocks of the coarsest level: in all, and for each device; fewer cannot be balanced.

Nodes, which hold the more, are searched from the second on: whole sequences move first.
"""

_MOST_GROUPS = 8
"""Head groups placed apart; of more groups some stay together, as time grows with them."""

_NODE_STEPS, _SHORT_STEPS, _STEPS = 30_000, 40_000, 60_000
"""Moves a cycle of annealing: of nodes, of one start among several, of the best."""

_USUAL_COMPUTATIONS, _GROWTH = 4000, 0.6
"""More computations than this take more moves, but not in proportion."""

_CYCLES = 2
"""Cycles of annealing at a time; temperatures of the cycles in turn follow."""

_HEATS, _SPARSE_HEATS = (0.2, 0.8), (0.4, 1.6)

_SPARSE = 4.5
"""A level is sparse where a net has fewer users on average, as under windows."""


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
        self._nodes = Places.nodes_of(problem)
        # Nodes matter where there are several of several devices, and links that cost more.
        self._by_nodes = min(self._places.nodes, self._places.per_node, inter_weight) > 1
        self._effort = problem.budget**0.5
        self._seed = problem.seed * 1000

    def run(self) -> Assignment:
        """The best answer found."""
        lengths = self._lengths(max(_FEWEST_EACH * len(self._places), _FEWEST_BLOCKS))
        coarse, level = self._level(lengths[0]), self._level(lengths[min(1, len(lengths) - 1)])
        starts = (
            self._node_starts(lengths[0], coarse, level)
            if self._by_nodes
            else [self._flat_start(coarse, level)]
        )
        if _is_sparse(level):
            starts.append(self._places.state(level, *dealt(level, self._places)))
        best = min((self._annealed(start, _SHORT_STEPS) for start in starts), key=score)
        best = self._annealed(self._regrouped(level, best), _STEPS)
        for length in lengths[2:]:
            finer = self._level(length)
            best = self._annealed(_passed_on(level, best, finer, self._places), _STEPS)
            level = finer
        return _answer(level, best)

    def _flat_start(self, coarse: Level, level: Level) -> State:
        """Devices cut apart and annealed on the coarse level."""
        start = self._places.state(coarse, bisected(coarse, self._places))
        return _passed_on(coarse, self._annealed(start, _STEPS), level, self._places)

    def _node_starts(self, length: int, coarse: Level, level: Level) -> list[State]:
        """Nodes searched first, then cut into devices: on the coarse level, and on the next.

        Args:
            length: Blocks merged on the coarse level.
            coarse: Where devices of the first start are annealed before they are passed on.
            level: Level of the starts.
        """
        answer = None
        for each in self._lengths(_FEWEST_EACH * len(self._nodes)):
            if each >= length:
                answer = self._nodes_annealed(self._level(each), answer)
        if answer is None:
            answer = self._nodes_annealed(coarse, None)
        first = self._annealed(self._cut_nodes(coarse, answer), _SHORT_STEPS)
        answer = self._nodes_annealed(level, answer)
        return [
            _passed_on(coarse, first, level, self._places),
            self._cut_nodes(level, answer),
        ]

    def _nodes_annealed(self, level: Level, answer: Assignment | None) -> Assignment:
        """An answer in nodes; head groups stay together, as parting them in a node costs little."""
        tied = Level.of(self._problem, level.token_of, np.zeros_like(level.group_of))
        if answer is None:
            state = self._nodes.state(tied, bisected(tied, self._nodes))
        else:
            home, node = tied.lowered(answer)
            state = self._nodes.state(tied, node, home)
        return _answer(tied, self._annealed(state, _NODE_STEPS))

    def _cut_nodes(self, level: Level, answer: Assignment) -> State:
        """What each node computes, cut into its devices; homes stay in their nodes."""
        home, node = level.lowered(answer)
        device = bisected(level, self._places, node, home[level.nets["token"]])
        return self._places.state(level, device, node=home)

    def _regrouped(self, level: Level, state: State) -> State:
        if not self._by_nodes:
            return state
        number = regrouped(state, self._places)
        home, device = number[state.tokens["home"]], number[state.comps["device"]]
        return min(state, self._places.state(level, device, home), key=score)

    def _annealed(self, state: State, steps: int) -> State:
        self._seed += 1
        hot = _SPARSE_HEATS if _is_sparse(state) else _HEATS
        cycles = max(1, round(_CYCLES * self._effort))
        growth = max(1.0, len(state.comps) / _USUAL_COMPUTATIONS) ** _GROWTH
        return improved(
            state,
            [hot[cycle % len(hot)] for cycle in range(cycles)],
            max(1, round(steps * growth * self._effort)),
            self._seed,
        )

    def _lengths(self, fewest: int) -> list[int]:
        """Numbers of blocks merged at the levels, falling to 1."""
        lengths = [1]
        while fewest <= self._runs.count(2 * lengths[-1]) < self._runs.count(lengths[-1]):
            lengths.append(2 * lengths[-1])
        return lengths[::-1]

    def _level(self, length: int) -> Level:
        groups = self._problem.data_bytes.shape[2]
        apart = max(one for one in range(1, _MOST_GROUPS + 1) if groups % one == 0)
        group_of = np.arange(groups) * apart // groups
        return Level.of(self._problem, self._runs.merged(length), group_of)


def _is_sparse(one: Level | State) -> bool:
    return 2 * len(one.comps) < _SPARSE * len(one.nets)


def _answer(level: Level, state: State) -> Assignment:
    return level.raised(state.tokens["home"], state.comps["device"])


def _passed_on(level: Level, state: State, finer: Level, places: Places) -> State:
    home, device = finer.lowered(_answer(level, state))
    return places.state(finer, device, home)
