"""Where a level is placed: devices with their limits, or whole nodes as if they were devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.search_kernels import relieve_tokens, settle_excess
from dcp.backends.search_level import Level
from dcp.backends.search_packing import repacked
from dcp.backends.search_seed_kernels import (
    choose_homes,
    count_users,
    home_regret,
    home_savings,
)
from dcp.backends.search_state import DEVICE, NODE, RULES, Records, State
from dcp.packing import tightest_load
from dcp.placement import PlacementProblem

_LEAST_EXCESS = 0.2
"""Parts of a block that any excess counts at least, or the search would leave small ones."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """Devices in nodes, and what they may hold.

    Attributes:
        nodes, per_node: Nodes, and devices in each.
        farther: What a byte between nodes weighs beyond 1.
        device_limit, inside_factor, node_limit: Work: of a device, of a device against the mean
            of its node, of a node.
        token_limit: Tokens of a device.
    """

    nodes: int
    per_node: int
    farther: float
    device_limit: float
    inside_factor: float
    node_limit: float
    token_limit: int

    @classmethod
    def devices_of(cls, problem: PlacementProblem, inter_weight: float) -> Places:
        """The cluster as it is."""
        return cls(
            nodes=problem.cluster.nodes,
            per_node=problem.cluster.devices_per_node,
            farther=inter_weight - 1.0,
            device_limit=problem.overall_compute_limit,
            inside_factor=1 + problem.limits.intra_node,
            node_limit=problem.node_compute_limit,
            token_limit=problem.token_limit,
        )

    @classmethod
    def nodes_of(cls, problem: PlacementProblem) -> Places:
        """Every node as one device that holds as much as its devices together."""
        per_node = problem.cluster.devices_per_node
        limit = min(problem.node_compute_limit, per_node * problem.overall_compute_limit)
        return cls(
            nodes=problem.cluster.nodes,
            per_node=1,
            farther=0.0,
            device_limit=limit,
            inside_factor=1.0,
            node_limit=limit,
            token_limit=per_node * problem.token_limit,
        )

    def __len__(self) -> int:
        return self.nodes * self.per_node

    def state(self, level: Level, device: IntArray, home: IntArray | None = None) -> State:
        """A placement to search from.

        Args:
            level: What is placed.
            device: Device of every computation, [C].
            home: Home of every token block, [T]; None for homes by regret within the limit.
        """
        state = self._unsettled(level, device)
        _settle(state, homes_by_regret(state) if home is None else home)
        if not relieve_tokens(state):
            saving = np.zeros((len(state.tokens), len(self)), dtype=np.int64)
            home_savings(state, saving)
            tokens = state.tokens["tokens"].copy()
            home = repacked(state.tokens["home"].astype(np.int64), saving, tokens)
            state = self._unsettled(level, device)
            _settle(state, home)
        settle_excess(state)
        return state

    def _unsettled(self, level: Level, device: IntArray) -> State:
        comps = level.comps.copy()
        comps["device"] = device
        devices = np.zeros(len(self), DEVICE)
        devices["node"] = np.arange(len(self)) // self.per_node
        np.add.at(devices["work"], device, comps["work"])
        nodes = np.zeros(self.nodes, NODE)
        nodes["work"] = devices["work"].reshape(self.nodes, -1).sum(axis=1)
        state = State(
            comps=comps,
            nets=level.nets,
            pins=level.pins,
            tokens=level.tokens.copy(),
            devices=devices,
            nodes=nodes,
            count=np.zeros((len(level.nets), len(self)), dtype=np.int16),
            near=np.zeros((len(level.nets), self.nodes), dtype=np.int16),
            rules=self._rules(level),
            journal=np.zeros(2 * len(comps), dtype=np.uint32),
        )
        count_users(comps, devices, state.count, state.near)
        return state

    def _rules(self, level: Level) -> Records:
        tokens, work = level.tokens["tokens"], level.comps["work"]
        limit = self.token_limit
        if int(tokens.max(initial=0)) * len(self) > int(tokens.sum()) // 2:
            limit = max(limit, tightest_load(tokens.astype(np.int64), len(self)))
        rules = np.zeros(1, RULES)
        rules["farther"] = self.farther
        rules["device_limit"] = self.device_limit
        rules["inside_factor"] = self.inside_factor
        rules["node_limit"] = self.node_limit
        rules["least_work_excess"] = _LEAST_EXCESS * float(work.max(initial=0))
        rules["token_limit"] = limit
        rules["least_token_excess"] = int(_LEAST_EXCESS * float(np.median(tokens)))
        rules["per_node"] = self.per_node
        rules["groups"] = level.groups
        return rules


def homes_by_regret(state: State) -> IntArray:
    """Homes within the token limit where room is, those that matter most chosen first, [T]."""
    regret = np.zeros(len(state.tokens))
    home_regret(state, regret)
    # Large blocks first, or they find no room among small ones.
    order = np.lexsort((-regret, -state.tokens["tokens"]))
    room = np.full(len(state.devices), int(state.rules["token_limit"][0]), dtype=np.int64)
    home = np.zeros(len(state.tokens), dtype=np.int64)
    choose_homes(state, order, room, home)
    return home


def _settle(state: State, home: IntArray) -> None:
    """Write homes into the records."""
    tokens, devices = state.tokens, state.devices
    tokens["home"] = home
    np.add.at(devices["tokens"], home, tokens["tokens"])
    devices["blocks"] = np.bincount(home, minlength=len(devices))
    order = np.argsort(home, kind="stable")
    ends = np.cumsum(devices["blocks"])
    begins = ends - devices["blocks"]
    after = np.arange(1, len(home) + 1)
    held = devices["blocks"] > 0
    after[ends[held] - 1] = begins[held]
    tokens["next"][order] = order[after]
    tokens["previous"][order[after]] = order
    devices["a_token"][held] = order[begins[held]]
