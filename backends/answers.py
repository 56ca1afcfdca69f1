"""What every partitioner does with answers: settle degenerate problems, repair, choose the best."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dcp.packing import loads, pack_longest_first
from dcp.placement import Assignment, Limits, PlacementProblem, evaluate


def trivial_answer(problem: PlacementProblem) -> Assignment | None:
    """The answer where there is nothing to decide: one device, or no work; None otherwise."""
    if problem.cluster.num_devices == 1:
        return Assignment(np.zeros_like(problem.token_tokens), np.zeros_like(problem.comp_q))
    if not problem.comp_flops.any():
        home = pack_longest_first(problem.token_tokens, problem.cluster.num_devices)
        return Assignment(home, home[problem.comp_q])
    return None


def node_epsilon(limits: Limits) -> float:
    """How far over the mean to let a node go, as a fraction.

    Where devices are limited over all nodes, half of that slack is left for what whole blocks
    miss inside a node.
    """
    return limits.inter_node if limits.device is None else min(limits.inter_node, limits.device / 2)


def cheapest(problem: PlacementProblem, found: Iterable[Assignment]) -> Assignment:
    """The best of several answers, each repaired: within the limits, few bytes, even work.

    Bytes between nodes count twice, and all bytes are multiplied by the compute imbalance, so
    that an answer cannot buy a few bytes with much waiting.
    """
    from dcp.backends.repair import repair  # compiled code

    answers = [repair(problem, answer) for answer in found]
    placements = [evaluate(problem, answer) for answer in answers]
    prices = [
        (
            not one.feasible,
            (one.volume_bytes + one.inter_node_bytes) * one.compute_imbalance,
            one.compute_imbalance,
        )
        for one in placements
    ]
    return answers[prices.index(min(prices))]


def keeps_tokens(problem: PlacementProblem, answer: Assignment) -> bool:
    """Whether no device holds more tokens than the tightest packing does."""
    held = loads(answer.token_home, problem.token_tokens, problem.cluster.num_devices)
    return bool(held.max(initial=0) <= problem.token_limit)
