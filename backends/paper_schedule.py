"""The paper's greedy scheduler: local work first, then work as its inputs fit the volume limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.arrays import IntArray
from dcp.checks import check_integer
from dcp.direct_transfers import Touches, inputs_from_home, results_home
from dcp.scheduling import (
    KEY_INPUT,
    QUERY_INPUTS,
    Schedule,
    Scheduler,
    SchedulingProblem,
    Transfers,
)


@dataclass(frozen=True, kw_only=True)
class PaperSchedule(Scheduler):
    """Divisions of work whose inputs arrive while the division before is computed.

    Division 0 is the work that needs nothing from elsewhere. Each later division takes, greedily
    and in order, work whose missing inputs still fit; the last one takes the rest. What a device
    receives from another, and what it receives in all, is limited in each division to an even
    share of its total over the divisions that receive. While a share is not used up one more
    block may come, and what it takes too much is missing from the next share: so blocks larger
    than a share need not all wait for the last division. Inputs come straight from their homes,
    once a device; results go home after the last division.

    Args:
        divisions: Divisions of work, 1 or more. With 1 nothing overlaps: all work runs after
            all inputs.
    Raises:
        SpecError: divisions below 1.
    Source: "DCP: Addressing Input Dynamism In Long-Context Training via Dynamic Context
        Parallelism", arXiv 2510.10620, section 4.3. The carrying over of shares and the limit on
        all that a device receives are ours.
    """

    name: ClassVar[str] = "paper"
    divisions: int = 4

    def __post_init__(self) -> None:
        check_integer("divisions", self.divisions)

    def schedule(self, problem: SchedulingProblem) -> Schedule:
        """Answer a problem."""
        blocks = problem.blocks
        queries = Touches.of(problem, blocks.comp_q)
        keys = Touches.of(problem, blocks.comp_kv)
        rounds = max(self.divisions - 1, 1)
        query_step, key_step = _arrivals(problem, queries, keys, rounds)
        # A touch's index is beyond the end where the data is at home: there at step 0.
        division = np.maximum(
            np.append(query_step, 0)[queries.index], np.append(key_step, 0)[keys.index]
        )
        if self.divisions == 1:
            division[:] = division.max(initial=0)
        count = int(division.max(initial=0)) + 1
        rows = [
            *inputs_from_home(problem.phase, queries, keys, query_step, key_step),
            *results_home(problem.phase, queries, keys, count + 1),
        ]
        return Schedule(
            phase=problem.phase,
            num_divisions=count,
            comp_division=division,
            transfers=Transfers.of(np.concatenate(rows)),
        )


def _arrivals(
    problem: SchedulingProblem, queries: Touches, keys: Touches, rounds: int
) -> tuple[IntArray, IntArray]:
    """Step, 1 ... rounds, at which the inputs of each touch arrive: of queries and of keys."""
    data_bytes = problem.blocks.data_bytes
    query_bytes = data_bytes[list(QUERY_INPUTS[problem.phase])].sum(axis=0)
    inputs = _Inputs(
        size=np.concatenate(
            [
                query_bytes[queries.block, queries.group],
                data_bytes[KEY_INPUT, keys.block, keys.group],
            ]
        ),
        src=np.concatenate([queries.home, keys.home]),
        dst=np.concatenate([queries.device, keys.device]),
        num_devices=problem.cluster.num_devices,
    )
    steps = inputs.steps(_needs(queries, keys), rounds)
    return steps[: len(queries)], steps[len(queries) :]


def _needs(queries: Touches, keys: Touches) -> IntArray:
    """Distinct pairs of inputs that work waits for, in the order of the work, [m, 2].

    Inputs are numbered queries first; the number after the last stands for one that is at home.
    """
    total = len(queries) + len(keys)
    query = np.where(queries.index < len(queries), queries.index, total)
    pair = query * (total + 1) + keys.index + len(queries)
    distinct, first = np.unique(pair, return_index=True)
    distinct = distinct[np.argsort(first)]
    waits = distinct < total * (total + 2)  # at (total, total) both are at home
    return np.stack(np.divmod(distinct[waits], total + 1), axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Inputs:
    """Inputs to bring, [n]: bytes, home and the device that needs them."""

    size: IntArray
    src: IntArray
    dst: IntArray
    num_devices: int

    def steps(self, needs: IntArray, rounds: int) -> IntArray:
        """Step of each input, [n]: greedy within the shares, the last step takes the rest."""
        link = self.src * self.num_devices + self.dst
        receiver = self.num_devices**2 + self.dst
        # Counted in 1 / rounds bytes, an even share of a total is a whole number.
        share = np.zeros(self.num_devices * (self.num_devices + 1), dtype=np.int64)
        np.add.at(share, link, self.size)
        np.add.at(share, receiver, self.size)
        shares = _Shares(
            size=(self.size * rounds).tolist(),
            limits=list(zip(link.tolist(), receiver.tolist(), strict=True)),
            left=[0] * len(share),
        )
        step = [rounds] * len(self.size) + [0]
        waiting = needs.tolist()
        for current in range(1, rounds):
            shares.left = [old + new for old, new in zip(shares.left, share.tolist(), strict=True)]
            waiting = [pair for pair in waiting if not shares.take(pair, step, current)]
        # With few blocks and many divisions, steps may pass in which no limit has anything left.
        _, used = np.unique(np.array(step[:-1], dtype=np.int64), return_inverse=True)
        return used + 1


@dataclass(kw_only=True, eq=False)
class _Shares:
    """What each limit (of a link, of a receiver) still has left in the current division."""

    size: list[int]
    limits: list[tuple[int, int]]
    left: list[int]

    def take(self, pair: list[int], step: list[int], current: int) -> bool:
        """Bring what is missing of a pair of inputs, if all limits have something left."""
        left, limits = self.left, self.limits
        missing = [item for item in pair if step[item] > current]
        for item in missing:
            link, receiver = limits[item]
            if left[link] <= 0 or left[receiver] <= 0:
                return False
        for item in missing:
            link, receiver = limits[item]
            step[item] = current
            left[link] -= self.size[item]
            left[receiver] -= self.size[item]
        return True
