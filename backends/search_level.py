"""A placement problem at some coarseness: token blocks merged, head groups tied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.backends.search_seed_kernels import fill_pins
from dcp.backends.search_state import COMPUTATION, NET, TOKEN, Records, UIntArray
from dcp.blocks import Kind
from dcp.packing import loads
from dcp.placement import Assignment, PlacementProblem

_FORWARD_AND_BACKWARD = {
    "row": (Kind.Q, Kind.O, Kind.Q, Kind.DO, Kind.DQ),
    "column": (Kind.KV, Kind.KV, Kind.DKV),
}
"""What travels for each extra device at the queries and at the keys of a block."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """Computations and nets to place, in the search's arrays.

    Attributes:
        runs: The runs whose blocks are merged.
        length: Token blocks of a run merged at most.
        groups: Head groups kept apart.
        group_of: Head group of this level for each of the problem's, [problem's groups].
        token_of: Token block of this level for each of the problem's, [problem's T].
        comp_of: Computation of this level for each of the problem's, [problem's C].
        comps, nets, pins, tokens: See `State`; devices and homes are unset.
    """

    runs: Runs
    length: int
    groups: int
    group_of: IntArray
    token_of: IntArray
    comp_of: IntArray
    comps: Records
    nets: Records
    pins: UIntArray
    tokens: Records

    @classmethod
    def of(cls, problem: PlacementProblem, runs: Runs, length: int, group_of: IntArray) -> Level:
        """Merge neighbouring token blocks, and head groups that have the same number.

        Args:
            problem: What to place.
            runs: Its runs.
            length: Token blocks of a run to merge at most.
            group_of: Number of every head group, [groups], 0 … without gaps.
        """
        token_of = runs.merged(length)
        count, groups = int(token_of.max(initial=-1)) + 1, int(group_of.max(initial=-1)) + 1
        row = token_of[problem.comp_q] * groups + group_of[problem.comp_group]
        column = token_of[problem.comp_kv] * groups + group_of[problem.comp_group]
        comp_of, chosen = _merged(row * count + token_of[problem.comp_kv])
        comps = np.zeros(len(chosen), COMPUTATION)
        comps["row"], comps["column"] = row[chosen], column[chosen] + count * groups
        np.add.at(comps["work"], comp_of, problem.comp_flops)
        tokens = np.zeros(count, TOKEN)
        np.add.at(tokens["tokens"], token_of, problem.token_tokens)
        tokens["run"][token_of] = runs.number()
        nets = np.zeros(2 * count * groups, NET)
        nets["token"] = np.tile(np.repeat(np.arange(count), groups), 2)
        nets["size"] = _net_bytes(problem, token_of, group_of, count, groups)
        pins = _pins(comps, nets)
        return cls(
            runs=runs,
            length=length,
            groups=groups,
            group_of=group_of,
            token_of=token_of,
            comp_of=comp_of,
            comps=comps,
            nets=nets,
            pins=pins,
            tokens=tokens,
        )

    @cached_property
    def usual_bytes(self) -> float:
        """Bytes of a usual net of keys, or 1 where there is none."""
        keys = self.nets["size"][len(self.nets) // 2 :]
        return float(np.median(keys[keys > 0])) if keys.any() else 1.0

    @cached_property
    def usual_tokens(self) -> float:
        """Tokens of a usual token block."""
        return float(np.median(self.tokens["tokens"]))

    @cached_property
    def query_token(self) -> IntArray:
        """Token block of every computation's queries, [C]."""
        token: IntArray = self.nets["token"][self.comps["row"]]
        return token

    @cached_property
    def query_work(self) -> IntArray:
        """Work of all computations with the queries of a token block, [T]."""
        return loads(self.query_token, self.comps["work"], len(self.tokens))

    def lowered(self, answer: Assignment) -> Assignment:
        """The problem's answer on this level: each merged block where its first part is."""
        home = np.zeros(len(self.tokens), dtype=np.int64)
        home[self.token_of[::-1]] = answer.token_home[::-1]
        device = np.zeros(len(self.comps), dtype=np.int64)
        device[self.comp_of[::-1]] = answer.comp_device[::-1]
        return Assignment(home, device)

    def raised(self, home: IntArray, device: IntArray) -> Assignment:
        """An answer on this level as one to the problem."""
        return Assignment(
            home.astype(np.int64)[self.token_of], device.astype(np.int64)[self.comp_of]
        )


def _merged(key: IntArray) -> tuple[IntArray, IntArray]:
    """Number equal keys alike, ascending: numbers [n], and where each number first stands."""
    order = np.argsort(key, kind="stable")
    new = np.diff(key[order], prepend=-1) != 0
    number = np.zeros(len(key), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return number, order[new]


def _net_bytes(
    problem: PlacementProblem, token_of: IntArray, group_of: IntArray, count: int, groups: int
) -> IntArray:
    sides = []
    for kinds in _FORWARD_AND_BACKWARD.values():
        merged = np.zeros((count, groups), dtype=np.int64)
        size = problem.data_bytes[list(kinds)].sum(axis=0)
        np.add.at(merged, (token_of[:, None], group_of[None, :]), size)
        sides.append(merged.ravel())
    return np.concatenate(sides)


def _pins(comps: Records, nets: Records) -> UIntArray:
    users = np.bincount(comps["row"], minlength=len(nets))
    users += np.bincount(comps["column"], minlength=len(nets))
    nets["users"] = users
    nets["first"] = np.cumsum(users) - users
    pins = np.zeros(2 * len(comps), dtype=np.uint32)
    fill_pins(comps["row"].copy(), comps["column"].copy(), np.cumsum(users) - users, pins)
    return pins


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """Token blocks in runs of neighbours, as those of one sequence are.

    Neighbours are blocks whose queries (or keys, where neither has queries) are used together
    with overlapping ranges of blocks.

    Attributes:
        position: Place of every token block in its run, [T].
    """

    position: IntArray

    @classmethod
    def of(cls, problem: PlacementProblem) -> Runs:
        """The runs of a problem."""
        count = len(problem.token_tokens)
        row_low, row_high = _ranges(problem.comp_q, problem.comp_kv, count)
        column_low, column_high = _ranges(problem.comp_kv, problem.comp_q, count)
        no_rows = row_high < 0
        joined = np.zeros(count, dtype=bool)
        joined[1:] = _overlaps(column_low, column_high) & no_rows[1:] & no_rows[:-1]
        joined[1:] |= _overlaps(row_low, row_high)
        return cls(position=_since(~joined))

    def apart(self, place: IntArray) -> Runs:
        """Runs that also end where neighbours are in different places, [T]."""
        return Runs(position=_since((self.position == 0) | (np.diff(place, prepend=-1) != 0)))

    def merged(self, length: int) -> IntArray:
        """Number token blocks so that up to so many neighbours of a run share one, [T]."""
        return np.asarray(np.cumsum(self.position % length == 0) - 1)

    def number(self) -> IntArray:
        """Number of every token block's run, [T]."""
        return np.asarray(np.cumsum(self.position == 0) - 1)

    def count(self, length: int) -> int:
        """Token blocks after merging."""
        return int(np.count_nonzero(self.position % length == 0))


def _since(begins: BoolArray) -> IntArray:
    """How far back the last beginning is, [n]; the first item is one in any case."""
    each = np.arange(len(begins))
    return np.asarray(each - np.maximum.accumulate(np.where(begins, each, 0)))


def _ranges(of: IntArray, used: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Lowest and highest block used with each block; count and -1 where there is none."""
    low, high = np.full(count, count), np.full(count, -1)
    np.minimum.at(low, of, used)
    np.maximum.at(high, of, used)
    return low, high


def _overlaps(low: IntArray, high: IntArray) -> BoolArray:
    """Whether each range meets the next one, [n - 1]."""
    meets: BoolArray = np.maximum(low[:-1], low[1:]) <= np.minimum(high[:-1], high[1:])
    return meets
