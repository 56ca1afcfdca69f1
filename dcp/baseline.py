"""The interface of static schemes: fixed cuts, placement and schedules in one block model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dcp.backend import Backend
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.cost import BACKWARD_FLOPS
from dcp.placement import Assignment
from dcp.scheduling import Phase, Schedule


class Baseline(Backend):
    """A static scheme: its own cuts, a fixed placement and fixed schedules."""

    @abstractmethod
    def arrange(self, request: BaselineRequest) -> Arrangement:
        """Cut, place and schedule.

        Raises:
            SpecError: the scheme cannot serve this request; says why and what can.
        """

    def least_seconds(self, request: BaselineRequest) -> float:
        """Time that forward and backward take at least, without arranging anything; 0 if unknown.

        `auto` spares itself a scheme that cannot win.
        """
        del request
        return 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class BaselineRequest:
    """What `dcp.plan` was asked for.

    Attributes:
        batch, spec, cluster, block_size: What to plan.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrangement:
    """A static scheme's whole answer."""

    blocks: BlockGraph
    assignment: Assignment
    forward: Schedule
    backward: Schedule
