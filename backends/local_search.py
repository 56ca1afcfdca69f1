"""The `local_search` partitioner: bisection, then annealing on exact costs, coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.backends.answers import trivial_answer
from dcp.errors import SpecError
from dcp.packing import loads
from dcp.placement import Assignment, Limits, Partitioner, PlacementProblem, evaluate

_EVEN_DEVICES, _UNEVEN_NODES = 1.25, 3.0
"""Weights of bytes between nodes, by what the limits ask for."""


@dataclass(frozen=True, kw_only=True)
class LocalSearch(Partitioner):
    """Few bytes within exact limits, in milliseconds; see docs/local_search.md.

    A number of moves bounds the search, never the clock: equal problems, seeds and budgets give
    equal answers on every machine. Time grows in proportion to the budget. The hot loops are
    compiled by numba on first use, which takes some seconds once a machine.

    Args:
        inter_weight: What a byte between nodes costs, where one inside a node costs 1. More lets
            fewer bytes cross, for more bytes in all. None: 1.25 under a limit over all devices,
            which saves the crossings that cost next to no other bytes; 3 without one, where
            nodes may be uneven for the sake of crossings.

    Raises:
        SpecError: a weight below 1 or not finite.
    """

    name: ClassVar[str] = "local_search"

    inter_weight: float | None = None

    def __post_init__(self) -> None:
        weight = self.inter_weight
        if weight is not None and not (np.isfinite(weight) and weight >= 1):
            raise SpecError(
                f"inter_weight is {weight}; it must be finite and 1 or more "
                "(1: all links cost the same)"
            )

    def place(self, problem: PlacementProblem) -> Assignment:
        """Search, and repair the answer in the rare case that it breaks a limit."""
        answer = trivial_answer(problem)
        if answer is not None:
            return answer
        # Importing numba takes 0.2 s, which importing dcp must not cost.
        from dcp.backends.search_plan import Search

        found = Search(problem, self._weight(problem.limits)).run()
        if _holds_what_is_asked(problem, found):
            return found
        return _first_feasible(problem, found)

    def _weight(self, limits: Limits) -> float:
        if self.inter_weight is not None:
            return self.inter_weight
        return _UNEVEN_NODES if limits.device is None else _EVEN_DEVICES


def _first_feasible(problem: PlacementProblem, found: Assignment) -> Assignment:
    """The answer, or else the repaired one, where whole blocks make the limits hard to meet."""
    if _keeps_tokens(problem, found) and evaluate(problem, found).feasible:
        return found
    from dcp.backends.repair import repair  # compiled code

    repaired = repair(problem, found)
    return repaired if evaluate(problem, repaired).feasible else found


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
        and _keeps_tokens(problem, answer)
    )


def _keeps_tokens(problem: PlacementProblem, answer: Assignment) -> bool:
    """Whether no device holds more tokens than the tightest packing does."""
    held = loads(answer.token_home, problem.token_tokens, problem.cluster.num_devices)
    return bool(held.max(initial=0) <= problem.token_limit)
