"""The best of a search and of constructions, where a search alone may not do."""

from __future__ import annotations

import numpy as np

from dcp.backends.answers import keeps_tokens
from dcp.backends.greedy import Greedy
from dcp.backends.repair import repair
from dcp.backends.search_anneal import improved, weighted_bytes
from dcp.backends.search_level import Level, Runs
from dcp.backends.search_places import Places
from dcp.backends.search_state import State
from dcp.placement import Assignment, PlacementProblem, evaluate

_HEATS, _STEPS = [0.2], 20_000


class Choice:
    """Answers to one problem by what they weigh.

    Args:
        problem: What to place.
        inter_weight: Weight of a byte between nodes; inside a node it weighs 1.
    """

    def __init__(self, problem: PlacementProblem, inter_weight: float) -> None:
        self._problem = problem
        self._places = Places.devices_of(problem, inter_weight)
        groups = np.arange(problem.data_bytes.shape[2])
        self._level = Level.of(problem, Runs.of(problem), 1, groups)

    def best(self, found: list[Assignment], *, also_built: bool) -> Assignment:
        """The cheapest within the limits of some answers.

        Args:
            found: By searches.
            also_built: Whether that of `greedy`, and this one annealed, are candidates even if
                one of those found keeps the limits.
        """
        answers = [self._within(one) for one in found]
        prices = [self._price(one) for one in answers]
        if also_built or all(breaks for breaks, _ in prices):
            built = Greedy().place(self._problem)
            more = [built, self._annealed(built)]
            answers += more
            prices += map(self._price, more)
        return answers[prices.index(min(prices))]

    def _within(self, answer: Assignment) -> Assignment:
        """The answer, repaired where it breaks a limit."""
        return answer if self._fits(answer) else repair(self._problem, answer)

    def _fits(self, answer: Assignment) -> bool:
        return keeps_tokens(self._problem, answer) and evaluate(self._problem, answer).feasible

    def _price(self, answer: Assignment) -> tuple[bool, float]:
        """Whether it breaks a limit, and its weighted bytes."""
        return not self._fits(answer), weighted_bytes(self._state(answer))

    def _annealed(self, answer: Assignment) -> Assignment:
        steps = round(_STEPS * self._problem.budget)
        state = improved(self._state(answer), _HEATS, steps, self._problem.seed)
        return self._level.raised(state.tokens["home"], state.comps["device"])

    def _state(self, answer: Assignment) -> State:
        home, device = self._level.lowered(answer)
        return self._places.state(self._level, device, home)
