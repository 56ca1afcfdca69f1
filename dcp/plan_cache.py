"""Plans kept by what they were asked for, so that a batch seen again is not planned again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from dcp.batch import AttentionSpec, Batch
from dcp.checks import check_integer, check_kind
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
        check_integer("max_plans", max_plans)
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
        SpecError: an option whose content cannot be read.
    """
    check_kind("batch", batch, Batch)
    content = hashlib.sha256()
    sides = (batch.is_cross, batch.q_lengths, batch.kv_lengths)
    read = {name: _content(name, value) for name, value in sorted(options.items())}
    for part in (sides, _content("heads", heads), _content("cluster", cluster), read):
        content.update(repr(part).encode())
    for index in range(len(batch)):
        slices = batch.sequence_slices(index)
        content.update(len(slices).to_bytes(8, "little"))
        content.update(slices.tobytes())
    return content.hexdigest()


def _content(name: str, value: Any) -> object:
    """A value in lists and tuples of plain ones, whose repr leaves nothing of it out."""
    kind = type(value)
    parts: object
    if kind is int:
        parts = hex(value)  # of decimals, Python writes out so many only
    elif value is None or isinstance(value, str | bytes | bool | float):
        parts = repr(value)
    elif isinstance(value, np.ndarray | np.generic):
        raw = _content(name, value.tolist()) if value.dtype.hasobject else value.tobytes()
        parts = [value.dtype.descr, value.shape, raw]
    elif isinstance(value, Mapping):
        parts = [(_content(name, key), _content(name, each)) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        parts = [_content(name, each) for each in value]
    elif _holds_fields_only(value):
        told = dataclasses if dataclasses.is_dataclass(value) else msgspec.structs
        fields = [field.name for field in told.fields(value)]
        parts = [(field, _content(name, getattr(value, field))) for field in fields]
    else:
        raise SpecError(
            f"{name} is or holds a {kind.__qualname__}, whose content cannot be read; make it a "
            "dataclass of plain values, or name a backend by a request string"
        )
    return kind.__module__, kind.__qualname__, parts


def _holds_fields_only(value: Any) -> bool:
    """Whether a value is a dataclass's or a struct's, and has no state besides its fields."""
    if isinstance(value, msgspec.Struct):
        return True
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return False
    return {field.name for field in dataclasses.fields(value)} >= set(
        getattr(value, "__dict__", ())
    )
