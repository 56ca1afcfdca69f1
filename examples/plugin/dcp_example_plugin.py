"""A partitioner and a scheduler of one's own; `dcp` finds them by the entry points in pyproject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.direct_transfers import Touches, inputs_from_home, results_home
from dcp.placement import Assignment, Partitioner, PlacementProblem
from dcp.scheduling import Schedule, Scheduler, SchedulingProblem, Transfers


@dataclass(frozen=True, kw_only=True)
class Emptiest(Partitioner):
    """Token blocks go to the device with fewest tokens, or of those the one with least work.

    The largest block first, and of equal ones the one with most work. Every computation runs
    where its queries are. It holds the token limit, heeds no compute limit and saves no bytes.
    """

    name: ClassVar[str] = "emptiest"

    def place(self, problem: PlacementProblem) -> Assignment:
        """Answer a problem."""
        tokens, devices = problem.token_tokens, problem.cluster.num_devices
        work = np.bincount(problem.comp_q, weights=problem.comp_flops, minlength=len(tokens))
        home = np.zeros(len(tokens), dtype=np.int64)
        held, busy = np.zeros(devices), np.zeros(devices)
        for block in np.lexsort((-work, -tokens)):
            device = np.lexsort((busy, held))[0]
            home[block] = device
            held[device] += tokens[block]
            busy[device] += work[block]
        return Assignment(token_home=home, comp_device=home[problem.comp_q])


@dataclass(frozen=True, kw_only=True)
class LocalFirst(Scheduler):
    """Two divisions: what needs nothing from elsewhere, while all inputs travel; then the rest."""

    name: ClassVar[str] = "local_first"

    def schedule(self, problem: SchedulingProblem) -> Schedule:
        """Answer a problem."""
        blocks, home, device = problem.blocks, problem.token_home, problem.comp_device
        queries, keys = Touches.of(problem, blocks.comp_q), Touches.of(problem, blocks.comp_kv)
        local = (device == home[blocks.comp_q]) & (device == home[blocks.comp_kv])
        # Step 1 arrives before division 1; step 3 leaves once division 1, the last, is done.
        inputs = inputs_from_home(problem.phase, queries, keys, query_step=1, key_step=1)
        results = results_home(problem.phase, queries, keys, step=3)
        return Schedule(
            phase=problem.phase,
            num_divisions=2,
            comp_division=np.where(local, 0, 1),
            transfers=Transfers.of(np.concatenate([*inputs, *results])),
        )
