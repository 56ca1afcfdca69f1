"""What is to be planned, whoever places and schedules it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.cost import BACKWARD_FLOPS
from dcp.scheduling import Phase


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanRequest:
    """A batch to plan for a cluster, by a static scheme or by a partitioner and a scheduler.

    Attributes:
        batch, spec: What to attend, and with which heads.
        cluster: Devices and links.
        block_size: Most tokens a block.
        keep_bytes: Most bytes of received inputs that a rank keeps for backward; None for any
            number.
    """

    batch: Batch
    spec: AttentionSpec
    cluster: Cluster
    block_size: int
    keep_bytes: int | None = 0

    @cached_property
    def work_s(self) -> dict[Phase, float]:
        """Seconds of a phase's FLOPs shared out evenly: what some device computes at least."""
        spec, device = self.spec, self.cluster.device
        flops = self.batch.allowed_pairs * spec.head_flops_a_pair * spec.num_q_heads
        share = flops / self.cluster.num_devices
        return {
            "forward": share / device.flops_per_s,
            "backward": BACKWARD_FLOPS * share / device.backward_flops_per_s,
        }

    @cached_property
    def sees_itself(self) -> bool:
        """Whether every token may attend to itself, in self-attention."""
        if self.batch.is_cross:
            return False
        seen = 0
        for index in range(len(self.batch)):
            q0, q1, k0, k1, low, high = self.batch.sequence_slices(index).T
            diagonal = np.minimum(q1, k1) - np.maximum(q0, k0)
            seen += int(diagonal[(low <= 0) & (high >= 0) & (diagonal > 0)].sum())
        return seen == self.batch.num_q_tokens
