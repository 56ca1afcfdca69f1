"""Where blocks live: the problem put to a partitioner, its answer, and what the answer costs.

A partitioner only answers. This room validates every answer, computes all metrics and says
whether the limits hold.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.backend import Backend
from dcp.blocks import BlockGraph, Kind
from dcp.checks import check_integer, check_number
from dcp.cluster import Cluster
from dcp.errors import PlacementError, SpecError
from dcp.packing import loads, tightest_load

_MOST_FLOPS = 2**62  # sums of work are int64
_LOOSEST = 1e9  # far beyond what limits anything, and safe to multiply with
_MOST_BUDGET = 1e6


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far from even the computing may be, as fractions of the mean.

    A limit of the number of devices or more limits nothing.

    Args:
        inter_node: A node computes at most (1 + inter_node) × the mean over nodes.
        intra_node: A device computes at most (1 + intra_node) × the mean over its node.
        device: A device computes at most (1 + device) × the mean over all devices; None for no
            limit beyond those two.
        tokens: A device holds at most (1 + tokens) × the mean, or the tightest packing of whole
            blocks where that is larger. Partitioners are held to the tightest packing; schemes
            that deal every sequence out evenly miss it by a few tokens, which is what this is for.

    Raises:
        SpecError: a limit that is negative, or more than 1e9.
    """

    inter_node: float = 0.4
    intra_node: float = 0.1
    device: float | None = None
    tokens: float = 0.01

    def __post_init__(self) -> None:
        for name in ("inter_node", "intra_node", "device", "tokens"):
            value = getattr(self, name)
            if value is not None or name != "device":
                check_number(f"limit {name}", value, most=_LOOSEST)
                object.__setattr__(self, name, float(value))  # of numpy none travels in plans


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementProblem:
    """Everything a partitioner may know, in plain arrays.

    Attributes:
        token_tokens: Tokens of each token block, [T]: what a device's share is measured in.
        data_bytes: Bytes of every data block, [kinds, T, groups], indexed by `Kind`.
        comp_q, comp_kv, comp_group: Token blocks and head group of each computation, [C].
        comp_flops: Work of each computation block, [C].
        cluster: Devices, nodes and links.
        limits: Balance asked for.
        token_limit: Most tokens a device: the tightest packing of whole blocks found.
        comp_whole: Where blocks are pieces of what was placed, the whole that each computation
            block belongs to, [C], as limits are those of whole blocks; None where each is one.
        seed: Equal seeds give equal answers.
        budget: Effort, 1.0 for the default; a backend scales its passes or restarts with it.
    """

    token_tokens: IntArray
    data_bytes: IntArray
    comp_q: IntArray
    comp_kv: IntArray
    comp_group: IntArray
    comp_flops: IntArray
    cluster: Cluster
    limits: Limits
    token_limit: int
    comp_whole: IntArray | None = None
    seed: int = 0
    budget: float = 1.0

    @classmethod
    def of(
        cls,
        blocks: BlockGraph,
        cluster: Cluster,
        *,
        limits: Limits | None = None,
        seed: int = 0,
        budget: float = 1.0,
    ) -> PlacementProblem:
        """The problem of placing these blocks on this cluster.

        Raises:
            SpecError: an illegal seed or budget, or more work than 64 bits count.
        """
        check_number("budget", budget, positive=True, most=_MOST_BUDGET)
        check_integer("seed", seed, least=0)
        _check_countable(blocks)
        whole = loads(blocks.token_whole, blocks.token_length, blocks.num_token_blocks)
        return cls(
            token_tokens=blocks.token_length,
            data_bytes=blocks.data_bytes,
            comp_q=blocks.comp_q,
            comp_kv=blocks.comp_kv,
            comp_group=blocks.comp_group,
            comp_flops=blocks.comp_flops,
            cluster=cluster,
            limits=limits or Limits(),
            token_limit=tightest_load(whole[whole > 0], cluster.num_devices),
            comp_whole=None if (whole > 0).all() else blocks.comp_whole,
            seed=int(seed),
            budget=budget,
        )

    @cached_property
    def q_side_bytes(self) -> IntArray:
        """Forward bytes for each extra device at the queries of a block, [T, groups]: Q and O."""
        together: IntArray = self.data_bytes[Kind.Q] + self.data_bytes[Kind.O]
        return together

    @cached_property
    def kv_side_bytes(self) -> IntArray:
        """Forward bytes for each extra device at the keys of a block, [T, groups]."""
        keys: IntArray = self.data_bytes[Kind.KV]
        return keys

    @cached_property
    def token_allowance(self) -> int:
        """Most tokens a device may hold for an answer to count as feasible."""
        total = int(self.token_tokens.sum())
        mean = float(total) / self.cluster.num_devices
        return min(total, max(self.token_limit, math.ceil((1 + self.limits.tokens) * mean)))

    @cached_property
    def whole_flops(self) -> IntArray:
        """Work of whole computation blocks, which limits are made for."""
        if self.comp_whole is None:
            return self.comp_flops
        return loads(self.comp_whole, self.comp_flops, int(self.comp_whole.max(initial=-1)) + 1)

    @cached_property
    def node_compute_limit(self) -> float:
        """Most FLOPs a node may compute."""
        return compute_limit(self.whole_flops, self.cluster.nodes, self.limits.inter_node)

    def device_compute_limit(self, node_flops: IntArray) -> float:
        """Most FLOPs a device may compute in a node that computes these blocks, [c]."""
        inside = compute_limit(node_flops, self.cluster.devices_per_node, self.limits.intra_node)
        return min(inside, self.overall_compute_limit)

    @cached_property
    def overall_compute_limit(self) -> float:
        """Most FLOPs any device may compute, whatever its node does."""
        if self.limits.device is None:
            return float("inf")
        return compute_limit(self.whole_flops, self.cluster.num_devices, self.limits.device)


def _check_countable(blocks: BlockGraph) -> None:
    flops = float((blocks.comp_pairs * 1.0 * blocks.flops_a_pair[blocks.comp_group]).sum())
    if flops >= _MOST_FLOPS:
        raise SpecError(
            f"attention of the batch takes {flops:.2g} FLOPs, more than can be counted; legal: "
            f"less than {_MOST_FLOPS:.2g}; plan fewer tokens at a time"
        )


def compute_limit(flops: IntArray, bins: int, epsilon: float) -> float:
    """(1 + epsilon) × mean, or the tightest packing of whole blocks where that is larger.

    Args:
        flops: Work of the blocks to share out, [c].
        bins: Devices or nodes.
        epsilon: Fraction over the mean.
    """
    total = float(flops.sum())
    asked = (1 + epsilon) * total / bins
    largest = float(flops.max(initial=0))
    # Packing in falling order never exceeds mean + largest (Graham 1969).
    if total / bins + largest <= asked:
        return asked
    return max(asked, float(tightest_load(flops, bins)))


class Assignment(NamedTuple):
    """A partitioner's answer: device of every token block, [T], and computation block, [C]."""

    token_home: IntArray
    comp_device: IntArray


class Partitioner(Backend):
    """Places blocks on devices."""

    @abstractmethod
    def place(self, problem: PlacementProblem) -> Assignment:
        """Answer a problem. Pure and seeded: equal problems give equal answers.

        Raises:
            BackendError: the solver behind it failed, with what it said.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """A validated answer with its exact metrics.

    Attributes:
        token_home: Device of every token block, [T].
        comp_device: Device of every computation block, [C].
        volume_bytes: Σ over data blocks of bytes × (devices that touch it − 1), forward.
        inter_node_bytes: The same with nodes in place of devices.
        compute_imbalance: FLOPs, max over devices ÷ mean; 1 where there is no work.
        token_imbalance: Tokens, max over devices ÷ mean; 1 where there are none.
        violations: Limits that do not hold, in words; empty for a feasible placement.
    """

    token_home: IntArray
    comp_device: IntArray
    volume_bytes: int
    inter_node_bytes: int
    compute_imbalance: float
    token_imbalance: float
    violations: tuple[str, ...]

    @property
    def assignment(self) -> Assignment:
        """The answer that was measured."""
        return Assignment(self.token_home, self.comp_device)

    @property
    def feasible(self) -> bool:
        """Whether all limits hold."""
        return not self.violations


def evaluate(problem: PlacementProblem, assignment: Assignment) -> Placement:
    """Validate an answer and measure it.

    Raises:
        PlacementError: wrong shape or dtype, or a device that does not exist.
    """
    devices = problem.cluster.num_devices
    home = _checked("token_home", assignment.token_home, len(problem.token_tokens), devices)
    device = _checked("comp_device", assignment.comp_device, len(problem.comp_q), devices)
    node_of = problem.cluster.device_node
    return Placement(
        token_home=home,
        comp_device=device,
        volume_bytes=_volume(problem, home, device),
        inter_node_bytes=_volume(problem, node_of[home], node_of[device]),
        compute_imbalance=imbalance(loads(device, problem.comp_flops, devices)),
        token_imbalance=imbalance(loads(home, problem.token_tokens, devices)),
        violations=tuple(_violations(problem, home, device)),
    )


def imbalance(load: IntArray) -> float:
    """Max ÷ mean of the loads; 1 where all are 0."""
    total = int(load.sum())
    return float(load.max() * len(load) / total) if total else 1.0


def _checked(name: str, values: IntArray, count: int, devices: int) -> IntArray:
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise PlacementError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; "
            f"it must be integers of shape ({count},)"
        )
    array = array.astype(np.int64)
    if count and not (array.min() >= 0 and array.max() < devices):
        raise PlacementError(
            f"{name} names devices {array.min()} … {array.max()}; legal: 0 … {devices - 1}"
        )
    array.setflags(write=False)
    return array


def _volume(problem: PlacementProblem, home: IntArray, comp: IntArray) -> int:
    """Bytes × (distinct places that touch the data block − 1), forward, for one level."""
    places = int(max(home.max(initial=0), comp.max(initial=0))) + 1
    extra = 0
    for bytes_of, block in (
        (problem.q_side_bytes, problem.comp_q),
        (problem.kv_side_bytes, problem.comp_kv),
    ):
        away = comp != home[block]
        data = block[away] * bytes_of.shape[1] + problem.comp_group[away]
        touches = np.zeros((bytes_of.size, places), dtype=bool)
        touches[data, comp[away]] = True
        extra += int(touches.sum(axis=1) @ bytes_of.reshape(-1))
    return extra


def _whole_flops_of(problem: PlacementProblem, chosen: BoolArray) -> IntArray:
    """Work of the whole blocks that some computation blocks make up."""
    flops = problem.comp_flops[chosen]
    if problem.comp_whole is None:
        return flops
    sums = loads(problem.comp_whole[chosen], flops, len(problem.whole_flops))
    return sums[sums > 0]


def _violations(problem: PlacementProblem, home: IntArray, device: IntArray) -> list[str]:
    cluster, found = problem.cluster, []
    tokens = loads(home, problem.token_tokens, cluster.num_devices)
    if tokens.max() > problem.token_allowance:
        found.append(
            f"device {int(tokens.argmax())} holds {int(tokens.max())} tokens, "
            f"limit {problem.token_allowance}"
        )
    node = cluster.device_node[device]
    node_flops = loads(node, problem.comp_flops, cluster.nodes)
    if node_flops.max() > problem.node_compute_limit:
        found.append(
            f"node {int(node_flops.argmax())} computes {int(node_flops.max()):.4g} FLOPs, "
            f"limit {problem.node_compute_limit:.4g}"
        )
    busiest = loads(device, problem.comp_flops, cluster.num_devices).reshape(cluster.nodes, -1)
    for index, load in enumerate(busiest.max(axis=1)):
        limit = problem.device_compute_limit(_whole_flops_of(problem, node == index))
        if load > limit:
            found.append(
                f"a device of node {index} computes {int(load):.4g} FLOPs, limit {limit:.4g}"
            )
    return found
