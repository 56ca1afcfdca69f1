"""The `local_search` partitioner: bisection, then annealing on exact costs, coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dcp.backends.answers import keeps_tokens, trivial_answer
from dcp.checks import check_number
from dcp.placement import Assignment, Limits, Partitioner, PlacementProblem

_EVEN_DEVICES, _UNEVEN_NODES = 1.25, 8.0
"""Weights of bytes between nodes, by what the limits ask for."""

_MOST_WEIGHT = 1e6

_FEW_COMPUTATIONS, _FEW_DEVICES, _MORE_COMPUTATIONS = 300, 8, 20_000
"""Up to so many computations the answer of `greedy` is a start, too: on few devices, or under
tight limits, up to the larger number.

There it takes little time, and it is mostly a matter of which sequences to cut, where annealing
may miss the best ones.
"""

_FEW_A_BLOCK, _MOST_ITEMS = 2, 4_000_000
"""So is it where blocks have about one computation a head group, up to so many by devices.

Sequences are short there, and mostly best left whole, which annealing hardly comes back to from
a cut. Beyond that number `greedy` takes seconds.
"""

_TIGHT, _ROOM = 0.03, 0.04
"""Limits below the first are searched with the second, too, and repaired: moves need some room."""


@dataclass(frozen=True, kw_only=True)
class LocalSearch(Partitioner):
    """Few bytes within exact limits, in milliseconds; see docs/local_search.md.

    A number of moves bounds the search, never the clock: equal problems, seeds and budgets give
    equal answers on every machine. Time grows in proportion to the budget. The hot loops are
    compiled by numba on first use, which takes some seconds once a machine.

    Args:
        inter_weight: What a byte between nodes costs, where one inside a node costs 1. More lets
            fewer bytes cross, for more bytes in all. None: 1.25 under a limit over all devices,
            which saves the crossings that cost next to no other bytes; 8 without one, where
            nodes may be uneven for the sake of crossings.

    Raises:
        SpecError: a weight below 1 or above a million.
    """

    name: ClassVar[str] = "local_search"

    inter_weight: float | None = None

    def __post_init__(self) -> None:
        if self.inter_weight is not None:
            check_number("inter_weight", self.inter_weight, least=1.0, most=_MOST_WEIGHT)

    def place(self, problem: PlacementProblem) -> Assignment:
        """Search; where limits are hard to meet or blocks are few, a construction may do better."""
        answer = trivial_answer(problem)
        if answer is not None:
            return answer
        # Importing numba takes 0.2 s, which importing dcp must not cost.
        from dcp.backends.search_plan import Search

        weight = self._weight(problem.limits)
        found, small = [Search(problem, weight).run()], _is_small(problem)
        kept = _holds_what_is_asked(problem, found[0])
        if kept and _sends_nothing(problem, found[0]):
            return found[0]
        if _is_tight(problem.limits):
            roomy = replace(problem, limits=_with_room(problem.limits))
            found.append(Search(roomy, weight).run())
        elif kept and not small:
            return found[0]
        from dcp.backends.search_choice import Choice

        return Choice(problem, weight).best(found, also_built=small)

    def _weight(self, limits: Limits) -> float:
        if self.inter_weight is not None:
            return self.inter_weight
        return _UNEVEN_NODES if limits.device is None else _EVEN_DEVICES


def _is_small(problem: PlacementProblem) -> bool:
    computations, devices = len(problem.comp_q), problem.cluster.num_devices
    hard = devices <= _FEW_DEVICES or _is_tight(problem.limits)
    few = computations <= (_MORE_COMPUTATIONS if hard else _FEW_COMPUTATIONS)
    short = computations <= _FEW_A_BLOCK * problem.data_bytes[0].size
    return few or (short and computations * devices <= _MOST_ITEMS)


def _sends_nothing(problem: PlacementProblem, answer: Assignment) -> bool:
    home, device = answer.token_home, answer.comp_device
    used = (problem.comp_q, problem.comp_kv)
    return all(np.array_equal(home[tokens], device) for tokens in used)


def _is_tight(limits: Limits) -> bool:
    device = _TIGHT if limits.device is None else limits.device
    return min(limits.inter_node, limits.intra_node, device) < _TIGHT


def _with_room(limits: Limits) -> Limits:
    device = None if limits.device is None else max(limits.device, _ROOM)
    inter_node, intra_node = max(limits.inter_node, _ROOM), max(limits.intra_node, _ROOM)
    return replace(limits, inter_node=inter_node, intra_node=intra_node, device=device)


def _holds_what_is_asked(problem: PlacementProblem, answer: Assignment) -> bool:
    """Whether limits hold without regard to what whole blocks excuse: quick, and sufficient."""
    cluster, limits = problem.cluster, problem.limits
    load = np.bincount(
        answer.comp_device, weights=problem.comp_flops, minlength=cluster.num_devices
    ).reshape(cluster.nodes, -1)
    node = load.sum(axis=1)
    inside = (1 + limits.intra_node) * node / cluster.devices_per_node
    overall = np.inf if limits.device is None else (1 + limits.device) * load.mean()
    return bool(
        (load <= np.minimum(inside, overall)[:, None]).all()
        and (node <= (1 + limits.inter_node) * node.mean()).all()
        and keeps_tokens(problem, answer)
    )
