"""A schedule put to the cost model."""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.cost import BACKWARD_FLOPS_RATIO, Estimate, Messages, simulate
from dcp.scheduling import Schedule


def estimate(
    blocks: BlockGraph, comp_device: IntArray, schedule: Schedule, cluster: Cluster
) -> Estimate:
    """Simulated time of one phase of a placed and scheduled batch."""
    ratio = 1.0 if schedule.phase == "forward" else BACKWARD_FLOPS_RATIO
    flops = np.zeros((cluster.num_devices, schedule.num_divisions))
    np.add.at(flops, (comp_device, schedule.comp_division), blocks.comp_flops * ratio)
    moved = schedule.transfers
    messages = Messages.joined(moved.src, moved.dst, moved.step, moved.bytes_of(blocks))
    return simulate(flops, messages, cluster)
