"""Plans kept by what they were asked for, so that a batch seen again is not planned again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import is_dataclass
from typing import Any

from dcp.backend import Backend
from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.errors import SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.planner import plan


class PlanCache:
    """The most recently used plans, by content of the request.

    Args:
        max_plans: Plans kept, 1 or more.

    Attributes:
        hits, misses: Requests served from the cache, and planned.

    Raises:
        SpecError: max_plans below 1.
    """

    def __init__(self, *, max_plans: int = 64) -> None:
        if max_plans < 1:
            raise SpecError(f"max_plans is {max_plans}; it must be 1 or more")
        self.hits = 0
        self.misses = 0
        self._max_plans = max_plans
        self._plans: OrderedDict[str, ExecutionPlan] = OrderedDict()

    def plan(
        self, batch: Batch, heads: AttentionSpec, cluster: Cluster, **options: Any
    ) -> ExecutionPlan:
        """As `dcp.plan`, from the cache where the same was asked for before."""
        key = request_digest(batch, heads, cluster, options)
        if key in self._plans:
            self.hits += 1
            self._plans.move_to_end(key)
            return self._plans[key]
        self.misses += 1
        self._plans[key] = made = plan(batch, heads, cluster, **options)
        if len(self._plans) > self._max_plans:
            self._plans.popitem(last=False)
        return made


def request_digest(
    batch: Batch, heads: AttentionSpec, cluster: Cluster, options: dict[str, Any]
) -> str:
    """SHA-256 of everything that decides a plan, in hex: values, not identities.

    Raises:
        SpecError: a backend whose settings are not the fields of a dataclass.
    """
    content = hashlib.sha256()
    for name, value in options.items():
        if isinstance(value, Backend) and not is_dataclass(value):
            raise SpecError(
                f"{name} is a {type(value).__name__}, whose settings cannot be read; make it a "
                "dataclass, or name it by a request string"
            )
    sides = (batch.is_cross, batch.q_lengths, batch.kv_lengths)
    for part in (sides, heads, cluster, sorted(options.items(), key=lambda item: item[0])):
        content.update(repr(part).encode())
    for index in range(len(batch)):
        slices = batch.sequence_slices(index)
        content.update(len(slices).to_bytes(8, "little"))
        content.update(slices.tobytes())
    return content.hexdigest()
