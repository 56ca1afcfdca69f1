"""The plan: blocks, placement and every rank's programs; saved, loaded and identified by digest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from dcp import plan_file
from dcp.batch import AttentionSpec
from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.cost import Estimate
from dcp.instructions import RankPlan
from dcp.placement import Limits, Placement
from dcp.report import PlanReport, report_on


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Which backends made a plan; a static scheme has neither partitioner nor scheduler.

    Attributes:
        partitioner, scheduler, baseline: As they were asked for.
        device_limit: `Limits.device` that `auto` held the partitioner to, tighter than asked.
    """

    partitioner: str | None = None
    scheduler: str | None = None
    baseline: str | None = None
    device_limit: float | None = None

    def __str__(self) -> str:
        if self.baseline:
            return self.baseline
        held = "" if self.device_limit is None else f" (device limit {self.device_limit:g})"
        return f"{self.partitioner}{held} + {self.scheduler}"


class PlanContent(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All that the digest covers: equal batches, backends and seeds give equal content."""

    cluster: Cluster
    limits: Limits
    origin: Origin
    blocks: BlockGraph
    placement: Placement
    ranks: list[RankPlan]


class PlanNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan file says besides, outside the digest."""

    forward_estimate: Estimate
    backward_estimate: Estimate
    planning_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ExecutionPlan:
    """A batch planned for a cluster. Make one with `dcp.plan`, or load one.

    Attributes:
        content: What the digest covers.
        forward_estimate, backward_estimate: Simulated times. Not covered: a float may differ in
            its last bits on another processor, and changes nothing of what is executed.
        planning_s: Seconds that planning took.
    """

    content: PlanContent
    forward_estimate: Estimate
    backward_estimate: Estimate
    planning_s: float

    @property
    def spec(self) -> AttentionSpec:
        """Heads and dtype."""
        return self.content.blocks.spec

    @property
    def cluster(self) -> Cluster:
        """Devices it is made for."""
        return self.content.cluster

    @property
    def origin(self) -> Origin:
        """Which backends made it."""
        return self.content.origin

    @property
    def blocks(self) -> BlockGraph:
        """Token blocks and computation blocks."""
        return self.content.blocks

    @property
    def placement(self) -> Placement:
        """Homes, devices and their exact metrics."""
        return self.content.placement

    @property
    def ranks(self) -> list[RankPlan]:
        """Every rank's programs."""
        return self.content.ranks

    @cached_property
    def _payload(self) -> bytes:
        return plan_file.encode(self.content)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, in hex: ranks compare it before they communicate."""
        return plan_file.digest_of(self._payload)

    def report(self) -> PlanReport:
        """What the plan moves, how even it is and how long it should take."""
        content = self.content
        return report_on(
            blocks=content.blocks,
            cluster=content.cluster,
            placement=content.placement,
            limits=content.limits,
            ranks=content.ranks,
            forward=self.forward_estimate,
            backward=self.backward_estimate,
            planning_s=self.planning_s,
        )

    def to_bytes(self) -> bytes:
        """A plan file's content."""
        notes = PlanNotes(
            forward_estimate=self.forward_estimate,
            backward_estimate=self.backward_estimate,
            planning_s=self.planning_s,
        )
        return plan_file.seal(self._payload, plan_file.encode(notes))

    @classmethod
    def from_bytes(cls, data: bytes) -> ExecutionPlan:
        """The inverse of `to_bytes`.

        Raises:
            PlanFormatError: damaged, not a plan, or of a newer version.
        """
        envelope = plan_file.unseal(data)
        content = plan_file.decode(envelope.payload, PlanContent)
        notes: PlanNotes = plan_file.decode(envelope.notes, PlanNotes)
        plan = cls(
            content=content,
            forward_estimate=notes.forward_estimate,
            backward_estimate=notes.backward_estimate,
            planning_s=notes.planning_s,
        )
        # The bytes that were read, not their encoding anew: a 1 for 1.0 would change the digest.
        plan.__dict__["_payload"] = envelope.payload
        return plan

    def save(self, path: str | Path) -> None:
        """Write a plan file."""
        Path(path).write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> ExecutionPlan:
        """Read a plan file.

        Raises:
            PlanFormatError: damaged, not a plan, or of a newer version.
        """
        return cls.from_bytes(Path(path).read_bytes())
