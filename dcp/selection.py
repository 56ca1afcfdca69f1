"""Which strategy wins for which kind of workload: a small table that `auto` can start from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from dcp.batch import Batch
from dcp.cluster import Cluster
from dcp.errors import SpecError

VERSION = 1


class WorkloadKind(msgspec.Struct, frozen=True, order=True):
    """What a workload looks like to a planner.

    Attributes:
        lengths: "long" where one sequence has half of all tokens, "mixed" where some sequence
            has more than a device's share, else "short".
        mask: "sparse" where fewer than half of the causal pairs are allowed, else "dense".
        network: "one node" or "several nodes".
    """

    lengths: Literal["long", "mixed", "short"]
    mask: Literal["dense", "sparse"]
    network: Literal["one node", "several nodes"]

    @classmethod
    def of(cls, batch: Batch, cluster: Cluster) -> WorkloadKind:
        """The kind of a batch on a cluster."""
        lengths = [max(pair) for pair in zip(batch.q_lengths, batch.kv_lengths, strict=True)]
        longest, total = max(lengths, default=0), sum(lengths)
        causal = sum(q * kv for q, kv in zip(batch.q_lengths, batch.kv_lengths, strict=True)) / 2
        if 2 * longest >= total:
            shape: Literal["long", "mixed", "short"] = "long"
        else:
            shape = "mixed" if longest * cluster.num_devices > total else "short"
        return cls(
            shape,
            "sparse" if 2 * batch.allowed_pairs < causal else "dense",
            "one node" if cluster.nodes == 1 else "several nodes",
        )


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest strategy for a kind, as requests for `dcp.plan`.

    Attributes:
        kind: Workloads it was measured on.
        partitioner, scheduler: Requests, or None for a static scheme.
        baseline: A static scheme's request, or None.
        batches: How many batches decided.
        lead: Simulated time of the next best ÷ its own, 1 or more.
    """

    kind: WorkloadKind
    partitioner: str | None = None
    scheduler: str | None = None
    baseline: str | None = None
    batches: int
    lead: float


class SelectionTable(msgspec.Struct, frozen=True, kw_only=True):
    """Winners by kind. `dcp compare --select` writes one, `dcp.plan(selection=...)` takes it."""

    version: int = VERSION
    winners: tuple[Winner, ...]

    def winner_for(self, batch: Batch, cluster: Cluster) -> Winner | None:
        """The winner for a batch's kind, if the table knows one."""
        kind = WorkloadKind.of(batch, cluster)
        return next((winner for winner in self.winners if winner.kind == kind), None)

    def save(self, path: str | Path) -> None:
        """Write the table as JSON."""
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))

    @classmethod
    def load(cls, path: str | Path) -> SelectionTable:
        """Read a table.

        Raises:
            SpecError: not a selection table, or one of another version.
        """
        try:
            table = msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except msgspec.MsgspecError as error:
            raise SpecError(
                f"{path} is not a selection table ({error}); write one with dcp compare --select"
            ) from error
        if table.version != VERSION:
            raise SpecError(
                f"{path} has version {table.version}, this dcp reads {VERSION}; write it again"
            )
        return table
