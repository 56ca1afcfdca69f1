"""The course of a search: starting points, then annealing from coarse blocks to fine ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np

from dcp.backends.search_anneal import improved, score
from dcp.backends.search_deals import best_dealt, dealt
from dcp.backends.search_level import Level, Runs
from dcp.backends.search_places import Places
from dcp.backends.search_regroup import regrouped
from dcp.backends.search_seeds import bisected
from dcp.backends.search_state import State
from dcp.backends.search_whole import packed_whole
from dcp.packing import pack_within, tightest_load
from dcp.placement import Assignment, PlacementProblem

_FEWEST_BLOCKS, _FEWEST_SPARSE, _FEWEST_EACH = 32, 64, 2
"""Token blocks of the coarsest level: in all, in all under sparse masks, and for each device.

Fewer cannot be balanced, nor packed where sequences are short. Nodes, which hold the more, are
searched from two for each on: whole sequences move first.
"""

_MOST_IN_NODES = 100
"""Token blocks of the finest level on which nodes are searched, unless devices need more."""

_MOST_GROUPS = 8
"""Head groups placed apart; of more groups some stay together, as time grows with them."""

_COARSER = 1.5
"""How many times fewer blocks a level has than the next finer one, where nodes are searched."""

_NODE_STEPS, _SHORT_STEPS, _STEPS = 74_000, 37_000, 74_000
"""Moves a cycle of annealing: of nodes, of one start among several, of the best."""

_STEPS_A_BLOCK = 640
"""Moves of nodes for each token block, where that is fewer."""

_TRIES = 2
"""Searches in nodes, and as many deals under sparse masks; one search often misses by a lot."""

_SLACKS = (0.5, 0.25)
"""How much of what its devices may hold beyond the tightest packing a node may use at first.

With more, sequences stay whole more often; with less, the blocks pack into the devices. So
searches in turn have one or the other.
"""

_USUAL_COMPUTATIONS, _GROWTH = 4000, 0.6
"""More computations than this take more moves, but not in proportion."""

_EFFORT_FOR_MORE, _ENTRY_FOR_MORE = 2.0, 0.5
"""From this effort on, or up to this price of a byte's entry to a node, nodes first is not the
only start."""

_CYCLES = 2
"""Cycles of annealing at a time; temperatures of the cycles in turn follow."""

_HEATS, _SPARSE_HEATS = (0.2, 0.8), (0.4, 1.6)

_SPARSE = 4.5
"""A level is sparse where a net has fewer users on average, as under windows."""


class _InNodes(NamedTuple):
    """An answer in nodes; the lesser in its first two entries is the better.

    Attributes:
        spills: Whether its nodes' blocks do not pack into their devices.
        cost: Its score.
        answer: Homes and devices, with nodes for devices.
    """

    spills: bool
    cost: float
    answer: Assignment


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
        # Nodes matter where there are several of several devices, and links that cost more.
        self._by_nodes = min(self._places.nodes, self._places.per_node, inter_weight) > 1
        self._effort = problem.budget**0.5
        cheap_entry = self._places.entry <= _ENTRY_FOR_MORE
        self._all_at_once = not self._by_nodes or cheap_entry or self._effort >= _EFFORT_FOR_MORE
        self._seed = problem.seed * 1000

    def run(self) -> Assignment:
        """The best answer found."""
        cycles = max(1, round(_CYCLES * self._effort))
        level, best = self._best_start(cycles)
        if self._is_perfect(best):
            return _answer(level, best)
        best = self._annealed(self._regrouped(level, best), _STEPS, cycles)
        while level.length > 1:
            finer = self._level(level.runs, level.length // 2)
            # The coarser level goes before the finer one is searched: both take much memory.
            best, level = _passed_on(level, best, finer, self._places), finer
            best = self._annealed(best, _SHORT_STEPS, cycles)
        return _answer(level, best)

    def _best_start(self, cycles: int) -> tuple[Level, State]:
        """The best of the annealed starts, or the first that is perfect as it is."""
        begun = list[tuple[Level, State]]()
        for level, start in self._starts():
            if self._is_perfect(start):
                return level, start
            begun.append((level, self._annealed(start, _SHORT_STEPS, cycles)))
        return min(begun, key=lambda one: score(one[1]))

    def _is_perfect(self, state: State) -> bool:
        """Whether nothing is sent, within all limits."""
        return not score(state) and int(state.rules["token_limit"][0]) <= self._places.token_limit

    def _starts(self) -> Iterator[tuple[Level, State]]:
        """Placements to begin with: sequences whole, nodes first, all devices at once, dealt."""
        # Not kept meanwhile: under dense masks it takes memory.
        sparse = _is_sparse(self._coarsest(self._runs))
        if sparse:
            yield from self._whole(self._runs)
        for nodes in self._in_nodes() if self._by_nodes else []:
            runs = self._runs.apart(nodes.token_home)
            level = self._coarsest(runs)
            home, node = level.lowered(nodes)
            cut = bisected(level, self._places, node)
            yield level, self._places.state(level, cut, node=home)
            if _is_sparse(level):
                yield from self._whole(runs, nodes)
        if sparse or self._all_at_once:
            level = self._coarsest(self._runs)
        if self._all_at_once:
            yield level, self._places.state(level, bisected(level, self._places))
        if sparse:
            yield level, self._places.state(level, *dealt(level, self._places))

    def _whole(self, runs: Runs, nodes: Assignment | None = None) -> Iterator[tuple[Level, State]]:
        """Sequences packed whole, in their nodes if these are given."""
        level = self._level(runs, self._node_lengths[-1])
        node = None if nodes is None else level.lowered(nodes).token_home
        deal = packed_whole(level, self._places, node)
        if deal is not None:
            yield level, self._regrouped(level, self._places.state(level, *deal))

    def _in_nodes(self) -> list[Assignment]:
        """Answers in nodes: the better half of some, those first that pack into the devices."""
        tries = max(1, round(_TRIES * self._effort))
        level, states = self._searched_in_nodes(tries)
        found = [self._packed(level, state) for state in states]
        found += [self._judged(level, state) for state in self._dealt_to_nodes(level, tries)]
        found.sort(key=lambda one: one[:2])
        return [one.answer for one in found[: (len(found) + 1) // 2]]

    def _searched_in_nodes(self, tries: int) -> tuple[Level, list[State]]:
        """Several searches from whole sequences to single blocks; the last level, too."""
        tight = self._tight_nodes
        most = Places.nodes_of(self._problem).token_limit
        rooms = [
            replace(tight, token_limit=round(tight.token_limit * (1 - slack) + most * slack))
            for slack in islice(cycle(_SLACKS), tries)
        ]
        level = self._level(self._runs, self._node_lengths[0], apart=1)
        begun = bisected(level, tight)
        states = [self._annealed_nodes(level, room.state(level, begun)) for room in rooms]
        for length in self._node_lengths[1:]:
            coarser, level = level, self._level(self._runs, length, apart=1)
            states = [
                self._annealed_nodes(level, _passed_on(coarser, state, level, room))
                for state, room in zip(states, rooms, strict=True)
            ]
        return level, states

    def _packed(self, level: Level, state: State) -> _InNodes:
        """What a search in nodes found, searched on with less room if its blocks do not pack."""
        found = self._judged(level, state)
        if not found.spills:
            return found
        tight = _passed_on(level, state, level, self._tight_nodes)
        return self._judged(level, self._annealed_nodes(level, tight))

    def _judged(self, level: Level, state: State) -> _InNodes:
        answer = _answer(level, state)
        return _InNodes(not self._fits(answer), score(state), answer)

    def _annealed_nodes(self, level: Level, state: State) -> State:
        return self._annealed(state, _node_steps(level), _CYCLES)

    def _dealt_to_nodes(self, level: Level, most: int) -> list[State]:
        """Sequences packed whole or dealt to nodes under a sparse mask, annealed cold."""
        if not _is_sparse(level):
            return []
        nodes = self._tight_nodes
        whole = packed_whole(level, nodes)
        deals = [] if whole is None else [whole]
        if most > len(deals):
            deals = best_dealt(level, nodes, self._problem.seed, most - len(deals)) + deals
        return [
            self._annealed(nodes.state(level, *deal), _node_steps(level), cycles=1)
            for deal in deals
        ]

    @cached_property
    def _tight_nodes(self) -> Places:
        """Nodes that hold no more tokens than the tightest packing asks."""
        nodes = Places.nodes_of(self._problem)
        return replace(nodes, token_limit=tightest_load(self._problem.token_tokens, len(nodes)))

    def _fits(self, answer: Assignment) -> bool:
        """Whether the token blocks of every node pack into its devices."""
        tokens, places = self._problem.token_tokens, self._places
        held = (tokens[answer.token_home == node] for node in range(places.nodes))
        packed = (pack_within(one, places.per_node, places.token_limit) for one in held)
        return all(where is not None for where in packed)

    def _regrouped(self, level: Level, state: State) -> State:
        if not self._by_nodes:
            return state
        number = regrouped(state, self._places)
        home, device = number[state.tokens["home"]], number[state.comps["device"]]
        return min(state, self._places.state(level, device, home), key=score)

    def _annealed(self, state: State, steps: int, cycles: int) -> State:
        self._seed += 1
        hot = _SPARSE_HEATS if _is_sparse(state) else _HEATS
        growth = max(1.0, len(state.comps) / _USUAL_COMPUTATIONS) ** _GROWTH
        return improved(
            state,
            [hot[turn % len(hot)] for turn in range(cycles)],
            max(1, round(steps * growth * self._effort)),
            self._seed,
        )

    def _coarsest(self, runs: Runs) -> Level:
        """The level on which devices are searched first; each next one merges half as many."""
        fewest = max(_FEWEST_BLOCKS, _FEWEST_EACH * len(self._places))
        level = self._level(runs, _lengths(runs, fewest)[0])
        if _is_sparse(level):
            length = _lengths(runs, max(_FEWEST_SPARSE, fewest))[0]
            return level if length == level.length else self._level(runs, length)
        return level

    @cached_property
    def _node_lengths(self) -> list[int]:
        """Numbers of blocks merged where nodes are searched."""
        most = max(_MOST_IN_NODES, 2 * _FEWEST_EACH * len(self._places))
        lengths = _lengths(self._runs, _FEWEST_EACH * self._places.nodes)
        chosen = [one for one in lengths if self._runs.count(one) <= most][-1:] or lengths[:1]
        for length in reversed(lengths):
            if _COARSER * self._runs.count(length) <= self._runs.count(chosen[0]):
                chosen.insert(0, length)
        return chosen

    def _level(self, runs: Runs, length: int, apart: int = _MOST_GROUPS) -> Level:
        groups = self._problem.data_bytes.shape[2]
        apart = max(one for one in range(1, apart + 1) if groups % one == 0)
        return Level.of(self._problem, runs, length, np.arange(groups) * apart // groups)


def _lengths(runs: Runs, fewest: int) -> list[int]:
    """Numbers of blocks merged at the levels, falling to 1."""
    lengths = [1]
    while fewest <= runs.count(2 * lengths[-1]) < runs.count(lengths[-1]):
        lengths.append(2 * lengths[-1])
    return lengths[::-1]


def _node_steps(level: Level) -> int:
    return min(_NODE_STEPS, _STEPS_A_BLOCK * len(level.tokens))


def _is_sparse(one: Level | State) -> bool:
    return 2 * len(one.comps) < _SPARSE * len(one.nets)


def _answer(level: Level, state: State) -> Assignment:
    return level.raised(state.tokens["home"], state.comps["device"])


def _passed_on(level: Level, state: State, finer: Level, places: Places) -> State:
    home, device = finer.lowered(_answer(level, state))
    return places.state(finer, device, home)
