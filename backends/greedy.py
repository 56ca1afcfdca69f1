"""The `greedy` partitioner: three constructions, repaired, the cheapest one taken.

`deal_in_order` gives every device the next tokens and their queries' computations; it wins where
attention is local. `pack_rows` also keeps computations with their queries, but short sequences
stay whole and long ones go row by row to where most of their keys are; it wins on long-tailed
batches. `bisect` cuts the computations themselves in two again and again, along queries or along
keys, whichever cuts fewer bytes; it wins on long sequences under dense masks, where moving some
queries saves many keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.arrays import BoolArray, FloatArray, IntArray
from dcp.backends.answers import cheapest, trivial_answer
from dcp.backends.pairs import Pairs
from dcp.packing import loads
from dcp.placement import Assignment, Partitioner, PlacementProblem

_TOLERANCES = (0.03, 0.1)
"""How far a bisection's shares may be off to cut fewer bytes: even work, or few bytes."""

_MOST_MOVES = 1500
"""Computations that a repair may move at the default budget: more would take too long."""


@dataclass(frozen=True, kw_only=True)
class Greedy(Partitioner):
    """Dealing, packing and recursive bisection; no search beyond a short repair.

    Deterministic; the seed changes nothing. The answer holds both limits.
    """

    name: ClassVar[str] = "greedy"

    def place(self, problem: PlacementProblem) -> Assignment:
        """Build the candidates, repair each and take the cheapest."""
        answer = trivial_answer(problem)
        if answer is not None:
            return answer
        pairs = Pairs.of(problem)
        candidates = [pack_rows(problem, pairs)]
        candidates += [bisect(problem, pairs, tolerance) for tolerance in _TOLERANCES]
        dealt = deal_in_order(problem)
        if _moves_needed(problem, dealt) <= _MOST_MOVES * problem.budget:
            candidates.append(dealt)
        return cheapest(problem, candidates)


def deal_in_order(problem: PlacementProblem) -> Assignment:
    """Equal runs of tokens to devices in order, every computation at the home of its queries."""
    devices, ends = problem.cluster.num_devices, np.cumsum(problem.token_tokens)
    middle = ends - problem.token_tokens / 2
    home = np.minimum(middle * devices // max(int(ends[-1]), 1), devices - 1).astype(np.int64)
    return Assignment(home, home[problem.comp_q])


def _moves_needed(problem: PlacementProblem, answer: Assignment) -> float:
    """Computations over the devices' mean, about: how many a repair has to move."""
    work = loads(answer.comp_device, problem.comp_flops, problem.cluster.num_devices)
    over = np.maximum(work / work.mean() - 1 - problem.limits.intra_node, 0).mean()
    return float(over * len(problem.comp_flops))


def pack_rows(problem: PlacementProblem, pairs: Pairs) -> Assignment:
    """Every computation at the home of its queries; sequences in falling order of work."""
    rows = _Rows(problem, pairs)
    tokens = problem.token_tokens
    group = _connected(pairs, len(tokens))
    count = int(group.max(initial=-1)) + 1
    work, held = loads(group, rows.flops, count), loads(group, tokens, count)
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    for index in np.lexsort((-held, -work)).tolist():
        blocks = members[index]
        device = rows.best_fit(work[index], held[index])
        if device is not None:
            rows.place_whole(blocks, device, work[index], held[index])
            continue
        for block in blocks[np.argsort(-rows.flops[blocks], kind="stable")].tolist():
            rows.place_row(block)
    return Assignment(rows.home, rows.home[problem.comp_q])


class _Rows:
    """Rows (the computations of one query block) given to devices one after another."""

    def __init__(self, problem: PlacementProblem, pairs: Pairs) -> None:
        cluster, count = problem.cluster, len(problem.token_tokens)
        self.flops = loads(pairs.q, pairs.flops, count)
        self.home = np.full(count, -1, dtype=np.int64)
        self._tokens = problem.token_tokens
        self._node_of = cluster.device_node
        self._kv, self._kv_bytes = pairs.kv, pairs.kv_bytes
        self._row = np.searchsorted(pairs.q, np.arange(count + 1))
        self._flops_limit = (
            (1 + problem.limits.intra_node) * float(self.flops.sum()) / cluster.num_devices
        )
        self._token_limit = max(problem.token_limit, 1)
        self._load = np.zeros(cluster.num_devices)
        self._held = np.zeros(cluster.num_devices, dtype=np.int64)
        # Whether a device or node computes with the keys of a block.
        self._at_device = np.zeros((count, cluster.num_devices), dtype=bool)
        self._at_node = np.zeros((count, cluster.nodes), dtype=bool)

    def best_fit(self, flops: int, tokens: int) -> int | None:
        """The fullest device with room for this much, or None."""
        fill = self._fill(flops, tokens)
        device = int(np.where(fill <= 1, fill, -1).argmax())
        return device if fill[device] <= 1 else None

    def place_whole(self, blocks: IntArray, device: int, flops: int, tokens: int) -> None:
        """Put a whole sequence on a device."""
        self.home[blocks] = device
        self._load[device] += flops
        self._held[device] += tokens

    def place_row(self, block: int) -> None:
        """Put one row where it adds least: bytes between nodes, then between devices."""
        keys = self._kv[self._row[block] : self._row[block + 1]]
        device_bytes = self._added_bytes(block, keys, self._at_device, self.home)
        node_home = np.where(self.home >= 0, self._node_of[self.home], -1)
        node_bytes = self._added_bytes(block, keys, self._at_node, node_home)[self._node_of]
        fill = self._fill(self.flops[block], self._tokens[block])
        # Where no device has room, the emptiest one; where several cost the same, the fullest.
        over = np.where(fill <= 1, 0, fill)
        device = int(np.lexsort((-fill, device_bytes, node_bytes, over))[0])
        self.place_whole(np.array([block]), device, self.flops[block], self._tokens[block])
        self._at_device[keys, device] = True
        self._at_node[keys, self._node_of[device]] = True

    def _fill(self, flops: int, tokens: int) -> FloatArray:
        """How full each device gets, as a fraction of the tighter of its limits, [D]."""
        fill: FloatArray = np.maximum(
            (self._load + flops) / self._flops_limit, (self._held + tokens) / self._token_limit
        )
        return fill

    def _added_bytes(self, block: int, keys: IntArray, at: BoolArray, home: IntArray) -> IntArray:
        """Bytes of the keys that a place still lacks, less what a home there saves, [places]."""
        lacking = ~at[keys]
        key_home = home[keys]
        known = np.flatnonzero(key_home >= 0)
        lacking[known, key_home[known]] = False
        added: IntArray = self._kv_bytes[keys] @ lacking - self._kv_bytes[block] * at[block]
        return added


def _connected(pairs: Pairs, count: int) -> IntArray:
    """Number the sets of token blocks that computations join: in effect the sequences, [T]."""
    label = np.arange(count)
    while True:
        low = np.minimum(label[pairs.q], label[pairs.kv])
        joined = label.copy()
        for end in (pairs.q, pairs.kv):
            np.minimum.at(joined, label[end], low)
        while (joined[joined] != joined).any():
            joined = joined[joined]
        if (joined == label).all():
            return np.asarray(np.unique(label, return_inverse=True)[1].reshape(-1))
        label = joined


def bisect(problem: PlacementProblem, pairs: Pairs, tolerance: float) -> Assignment:
    """Computations cut in two until every device has its share; homes where they save most.

    Args:
        problem: What to place.
        pairs: Its computations with head groups tied.
        tolerance: How far a side may be off its share of the work, as a fraction.
    """
    where = np.zeros(len(pairs.q), dtype=np.int64)
    devices, per_node = problem.cluster.num_devices, problem.cluster.devices_per_node
    open_cuts = [(np.arange(len(pairs.q)), 0, devices)]
    while open_cuts:
        mine, first, last = open_cuts.pop()
        where[mine] = first
        if last - first > 1 and len(mine):
            # Nodes are parted from one another before a node is cut.
            unit = per_node if last - first > per_node else 1
            middle = first + (last - first) // unit // 2 * unit
            share = (middle - first) / (last - first)
            left, right = _cheapest_cut(pairs, mine, share, tolerance)
            open_cuts += [(left, first, middle), (right, middle, last)]
    home = pairs.saving(where, devices).argmax(axis=1)
    return Assignment(home, where[pairs.of_comp])


def _cheapest_cut(
    pairs: Pairs, mine: IntArray, share: float, tolerance: float
) -> tuple[IntArray, IntArray]:
    """Part pairs along queries or along keys, near a share of the work, at fewest bytes."""
    best_bytes, best = None, (mine, mine[:0])
    for along, across in ((pairs.q, pairs.kv), (pairs.kv, pairs.q)):
        ordered = mine[np.lexsort((across[mine], along[mine]))]
        done = np.concatenate([np.zeros(1), np.cumsum(pairs.flops[ordered])])
        target = share * done[-1]
        slack = tolerance * min(target, done[-1] - target)
        near = np.flatnonzero(np.abs(done - target) <= slack)
        nearest = int(np.abs(done - target).argmin())
        cuts = near if len(near) else np.array([nearest])
        cut_bytes = _cut_bytes(pairs.q[ordered], pairs.q_bytes)
        cut_bytes += _cut_bytes(pairs.kv[ordered], pairs.kv_bytes)
        at = int(cuts[cut_bytes[cuts].argmin()])
        if best_bytes is None or cut_bytes[at] < best_bytes:
            best_bytes, best = int(cut_bytes[at]), (ordered[:at], ordered[at:])
    return best


def _cut_bytes(blocks: IntArray, size: IntArray) -> IntArray:
    """Bytes of the blocks that stand on both sides of each cut of a list, [n + 1].

    Args:
        blocks: Token block of every entry, [n].
        size: Bytes of every token block, [T].
    """
    position = np.arange(len(blocks))
    first, last = np.full((2, len(size)), -1)
    first[blocks[::-1]] = position[::-1]  # of equal indices the last one counts
    last[blocks] = position
    used = np.flatnonzero(last >= 0)
    change = np.zeros(len(blocks) + 2, dtype=np.int64)
    np.add.at(change, first[used] + 1, size[used])
    np.add.at(change, last[used] + 1, -size[used])
    return np.asarray(np.cumsum(change)[: len(blocks) + 1])
