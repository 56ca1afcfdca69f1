"""All inputs, then all work, then all results: no overlap, the simplest schedule to trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.direct_transfers import Touches, inputs_from_home, results_home
from dcp.scheduling import Schedule, Scheduler, SchedulingProblem, Transfers


@dataclass(frozen=True, kw_only=True)
class SequentialSchedule(Scheduler):
    """One division of work between two rounds of transfers.

    Inputs come straight from their homes at step 1, all work (local work too) runs in
    division 1, results go home at step 3; division 0 is empty. Where nothing is sent, all work
    runs in division 0, the only one.
    """

    name: ClassVar[str] = "sequential"

    def schedule(self, problem: SchedulingProblem) -> Schedule:
        """Answer a problem."""
        blocks = problem.blocks
        queries = Touches.of(problem, blocks.comp_q)
        keys = Touches.of(problem, blocks.comp_kv)
        division = 1 if len(queries) or len(keys) else 0
        rows = [
            *inputs_from_home(problem.phase, queries, keys, 1, 1),
            *results_home(problem.phase, queries, keys, division + 2),
        ]
        return Schedule(
            phase=problem.phase,
            num_divisions=division + 1,
            comp_division=np.full(len(blocks.comp_q), division),
            transfers=Transfers.of(np.concatenate(rows)),
        )
