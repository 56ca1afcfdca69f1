"""Where a level is placed: devices with their limits, or whole nodes as if they were devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.backends.search_level import Level
from dcp.backends.search_packing import repacked
from dcp.backends.search_seed_kernels import choose_homes, count_users, ease
from dcp.backends.search_state import DEVICE, NODE, RULES, Records, State
from dcp.packing import loads, tightest_load
from dcp.placement import PlacementProblem

_LEAST_EXCESS = 0.2
"""Parts of a block that any excess counts at least, or the search would leave small ones."""


_LONGEST = 8
"""Neighbouring token blocks that move together, between places that are whole nodes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """Devices in nodes, and what they may hold.

    Attributes:
        nodes, per_node: Nodes, and devices in each.
        entry: What a byte weighs, besides 1 a device, for each other node that needs it.
        device_limit, inside_factor, node_limit: Work: of a device, of a device against the mean
            of its node, of a node.
        token_limit: Tokens of a device.
    """

    nodes: int
    per_node: int
    entry: float
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
            entry=inter_weight - 1,
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
            entry=0.0,
            device_limit=limit,
            inside_factor=1.0,
            node_limit=limit,
            token_limit=per_node * problem.token_limit,
        )

    def __len__(self) -> int:
        return self.nodes * self.per_node

    def state(
        self,
        level: Level,
        device: IntArray,
        home: IntArray | None = None,
        node: IntArray | None = None,
    ) -> State:
        """A placement to search from.

        Args:
            level: What is placed.
            device: Device of every computation, [C].
            home: Home of every token block, [T]; None for homes by regret within the limit.
            node: Node where every token block should have its home if `home` is None, [T].
        """
        state = self._unsettled(level, device)
        limit, tokens = int(state.rules["token_limit"][0]), state.tokens["tokens"].astype(np.int64)
        if home is None:
            home = self._chosen_homes(state, tokens, limit, node)
        held = loads(home, tokens, len(self))
        if held.max() > limit:
            saving, home = savings(state), home.copy()
            if not ease(saving, tokens, home, held, limit):
                home = repacked(home, saving, tokens, limit)
        _settle(state, home)
        state.nodes["excess"] = self._excess(state)
        return state

    def _excess(self, state: State) -> FloatArray:
        """Work of every node and of its devices over their limits, [nodes]."""
        node = state.nodes["work"].astype(np.float64)
        limit = np.minimum(self.device_limit, self.inside_factor * node / self.per_node)
        device = state.devices["work"].reshape(self.nodes, -1) - limit[:, None]
        over = np.concatenate([(node - self.node_limit)[:, None], device], axis=1)
        least = state.rules["least_work_excess"][0]
        excess: FloatArray = np.where(over > 0, over + least, 0.0).sum(axis=1)
        return excess

    def _chosen_homes(
        self, state: State, tokens: IntArray, limit: int, node: IntArray | None
    ) -> IntArray:
        """Homes within the token limit where room is, in their nodes if these are given, [T]."""
        saving = savings(state)
        if node is None:
            return _packed(saving, tokens, limit, np.zeros_like(tokens), len(self))
        first = node * self.per_node
        home = _packed(saving, tokens, limit, first, self.per_node)
        held = np.bincount(home, weights=tokens, minlength=len(self)).reshape(self.nodes, -1)
        for one in np.flatnonzero(held.max(axis=1) > limit).tolist():
            mine, low = np.flatnonzero(node == one), one * self.per_node
            inside = saving[mine, low : low + self.per_node]
            home[mine] = low + repacked(home[mine] - low, inside, tokens[mine], limit)
        return home

    def _unsettled(self, level: Level, device: IntArray) -> State:
        comps, count = level.comps.copy(), len(self)
        comps["device"] = device
        devices, nodes = np.zeros(count, DEVICE), np.zeros(self.nodes, NODE)
        devices["node"] = np.arange(count) // self.per_node
        np.add.at(devices["work"], device, comps["work"])
        nodes["work"] = devices["work"].reshape(self.nodes, -1).sum(axis=1)
        used = np.zeros((len(level.nets), count), dtype=np.int16)
        count_users(comps["row"].copy(), comps["column"].copy(), device, used)
        near = (used > 0).reshape(-1, self.nodes, self.per_node).sum(axis=2, dtype=np.int16)
        return State(
            comps=comps,
            nets=level.nets,
            pins=level.pins,
            tokens=level.tokens.copy(),
            devices=devices,
            nodes=nodes,
            used=used,
            near=near,
            rules=self._rules(level),
            journal=np.zeros(2 * len(comps), dtype=np.uint32),
        )

    def token_limit_on(self, level: Level) -> int:
        """Tokens of a device, or more where merged blocks are too large to pack into that."""
        tokens = level.tokens["tokens"].astype(np.int64)
        if int(tokens.max(initial=0)) * len(self) <= int(tokens.sum()) // 2:
            return self.token_limit
        return max(self.token_limit, tightest_load(tokens, len(self)))

    def _rules(self, level: Level) -> Records:
        rules = np.zeros(1, RULES)
        rules["entry"] = self.entry
        rules["device_limit"] = self.device_limit
        rules["inside_factor"] = self.inside_factor
        rules["node_limit"] = self.node_limit
        rules["least_work_excess"] = _LEAST_EXCESS * float(level.comps["work"].max(initial=0))
        rules["token_limit"] = self.token_limit_on(level)
        rules["least_token_excess"] = int(_LEAST_EXCESS * level.usual_tokens)
        rules["usual_tokens"] = level.usual_tokens
        rules["usual_bytes"] = level.usual_bytes
        rules["longest"] = _LONGEST if self.per_node == 1 else 1
        rules["per_node"] = self.per_node
        rules["groups"] = level.groups
        return rules


def savings(state: State) -> IntArray:
    """Weighted bytes that each home of each token block saves, whole, [T, D]."""
    rules, tokens, groups = state.rules[0], len(state.tokens), int(state.rules["groups"][0])
    shape = (2, tokens, groups)
    size, used = state.nets["size"].reshape(shape), state.used.reshape(*shape, -1)
    near = state.near.reshape(*shape, -1)
    saved = np.zeros((tokens, used.shape[3]))
    for side in range(2):
        for group in range(groups):
            at_node = near[side, :, group]
            crossing = rules["entry"] * (at_node > 0)
            links = np.repeat(crossing, used.shape[3] // near.shape[3], axis=1)
            links += used[side, :, group] > 0
            saved += links * size[side, :, group, None]
    return np.asarray(saved.astype(np.int64))


def _packed(
    saving: IntArray, tokens: IntArray, limit: int, first: IntArray, choices: int
) -> IntArray:
    """Homes among some devices in a row, within the limit where room is, [T]."""
    best = np.sort(saving, axis=1)[:, -2:]
    # Large blocks first, or they find no room among small ones; then those that lose most.
    order = np.lexsort((best[:, 0] - best[:, -1], -tokens))
    home = np.zeros(len(tokens), dtype=np.int64)
    room = np.full(saving.shape[1], limit, dtype=np.int64)
    choose_homes(order, tokens, saving, first, first + choices, room, home)
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
