"""How little any placement within the same limits could send.

A device that computes A pairs of one head group needs at least a query tokens and b key tokens
with a·b ≥ A. What it does not own has to come in, and for foreign queries the output goes out.
Where every mask is causal, n tokens among themselves give at most n·(n + 1) / 2 pairs rather than
n², so the rectangle must be larger by n·(n - 1) / 2 for the n tokens that the device owns.
"""

from __future__ import annotations

import numpy as np

from dcp.arrays import FloatArray
from dcp.blocks import BlockGraph
from dcp.placement import PlacementProblem

_GRID = 512


def lower_bound_bytes(blocks: BlockGraph, problem: PlacementProblem) -> int:
    """A bound on the forward volume of every placement that keeps the problem's limits.

    Each (device, head group) does some share of the work. The bytes it needs for a share are
    bounded from below by their convex envelope up to the largest legal share; shares add up to
    the total, so by Jensen's inequality the sum is at least units × envelope(mean share).
    """
    devices, groups = problem.cluster.num_devices, len(blocks.groups)
    pairs = float(blocks.comp_pairs.sum())
    if devices == 1 or pairs == 0:
        return 0
    largest = min(_largest_share(problem) * pairs, float(blocks.comp_pairs.sum() / groups))
    share = np.linspace(0.0, max(largest, pairs / devices / groups), _GRID + 1)
    need = _cheapest_rectangle(share, problem, blocks)
    # Need never falls with the share: the left end of a cell bounds the whole cell.
    floor = np.concatenate([need[:1], need[:-1]])
    units = devices * groups
    return int(units * _envelope_at(share, floor, pairs / units))


def _largest_share(problem: PlacementProblem) -> float:
    """The part of all work that the limits allow a device, or one whole block more than even."""
    total = float(problem.comp_flops.sum())
    node = problem.node_compute_limit / problem.cluster.devices_per_node
    device = (1 + problem.limits.intra_node) * node + float(problem.comp_flops.max())
    return min(total, device, problem.overall_compute_limit) / total


def _cheapest_rectangle(
    pairs: FloatArray, problem: PlacementProblem, blocks: BlockGraph
) -> FloatArray:
    """Least (a - owned)⁺·q_cost + (b - owned)⁺·kv_cost over a·b ≥ pairs, [n]."""
    owned = float(max(problem.token_allowance, 1))
    if int(blocks.sequence_slices[:, 5].max()) <= 0:
        pairs = pairs + owned * (owned - 1) / 2
    q_tokens = int((blocks.token_length * blocks.has_q).sum())
    kv_tokens = int((blocks.token_length * blocks.has_kv).sum())
    q_cost = problem.q_side_bytes.sum(axis=0).min() / q_tokens
    kv_cost = problem.kv_side_bytes.sum(axis=0).min() / kv_tokens
    # Owned tokens are free, so both sides have at least that many; beyond, the minimum of
    # a·q_cost + pairs/a·kv_cost lies at a = sqrt(pairs·kv_cost/q_cost).
    beyond = np.maximum(pairs, owned**2)
    a = np.clip(np.sqrt(beyond * kv_cost / q_cost), owned, beyond / owned)
    cost: FloatArray = (a - owned) * q_cost + (beyond / a - owned) * kv_cost
    return cost


def _envelope_at(x: FloatArray, y: FloatArray, at: float) -> float:
    """Value of the lower convex hull of the points (x, y) at one place."""
    hull: list[int] = []
    for index in range(len(x)):
        while len(hull) > 1 and _lies_above_chord(x, y, hull[-2], hull[-1], index):
            hull.pop()
        hull.append(index)
    return float(np.interp(at, x[hull], y[hull]))


def _lies_above_chord(x: FloatArray, y: FloatArray, left: int, middle: int, right: int) -> bool:
    rise = (y[right] - y[left]) * (x[middle] - x[left])
    return bool((y[middle] - y[left]) * (x[right] - x[left]) >= rise)
