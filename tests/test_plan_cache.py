"""The plan cache serves repeats by content."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import dcp
from dcp.backends.paper_schedule import PaperSchedule
from dcp.errors import SpecError
from dcp.placement import Assignment, Partitioner, PlacementProblem

HEADS = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8)
CLUSTER = dcp.Cluster(devices_per_node=2)
OPTIONS = {"block_size": 16, "partitioner": "greedy", "scheduler": "sequential"}


@dataclass(frozen=True, kw_only=True)
class OneDevice(Partitioner):
    """All on one device; `table` stands for what a partitioner may be made of."""

    name: ClassVar[str] = "one_device"

    device: int = field(default=0, repr=False)
    table: Any = None

    def place(self, problem: PlacementProblem) -> Assignment:
        counts = len(problem.token_tokens), len(problem.comp_q)
        return Assignment(*(np.full(count, self.device) for count in counts))


class OneDeviceOfAnotherModule(OneDevice):
    """Of the same name elsewhere."""

    def place(self, problem: PlacementProblem) -> Assignment:
        return OneDevice(device=1).place(problem)


OneDeviceOfAnotherModule.__module__ = "another"
OneDeviceOfAnotherModule.__qualname__ = OneDevice.__qualname__


def test_an_equal_batch_is_planned_once():
    cache = dcp.PlanCache()
    first = cache.plan(dcp.Batch([50, 20]), HEADS, CLUSTER, **OPTIONS)
    again = cache.plan(dcp.Batch([50, 20]), HEADS, CLUSTER, **OPTIONS)
    assert again is first
    assert (cache.hits, cache.misses) == (1, 1)


def test_equal_masks_count_however_they_were_made():
    cache = dcp.PlanCache()
    dense = np.tril(np.ones((30, 30), dtype=bool))
    cache.plan(dcp.Batch([30], mask=dcp.masks.from_dense(dense)), HEADS, CLUSTER, **OPTIONS)
    cache.plan(dcp.Batch([30], mask=dcp.masks.causal()), HEADS, CLUSTER, **OPTIONS)
    assert cache.hits == 1


@pytest.mark.parametrize(
    "change",
    [
        {"batch": dcp.Batch([50, 21])},
        {"batch": dcp.Batch([70])},
        {"batch": dcp.Batch([50, 20], [50, 20])},
        {"batch": dcp.Batch([50, 20], mask=dcp.masks.full())},
        {"heads": dcp.AttentionSpec(num_q_heads=2, num_kv_heads=2, head_dim=8)},
        {"cluster": dcp.Cluster(devices_per_node=1)},
        {"block_size": 8},
        {"scheduler": PaperSchedule(divisions=3)},
        {"seed": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_decides_the_plan_is_part_of_the_key(change):
    cache = dcp.PlanCache()
    request = {"batch": dcp.Batch([50, 20]), "heads": HEADS, "cluster": CLUSTER} | OPTIONS
    cache.plan(**request)
    cache.plan(**(request | change))
    assert (cache.hits, cache.misses) == (0, 2)


@pytest.mark.parametrize(
    ("partitioner", "other"),
    [
        (OneDevice(), OneDeviceOfAnotherModule()),
        (OneDevice(), OneDevice(device=1)),
        (
            OneDevice(table=np.arange(2000)),
            OneDevice(table=np.arange(2000) + (np.arange(2000) == 9)),
        ),
        (OneDevice(table={"inner": OneDevice()}), OneDevice(table={"inner": OneDevice(device=1)})),
        (OneDevice(table=[1, "2"]), OneDevice(table=["1", 2])),
        (OneDevice(table=dcp.Limits()), OneDevice(table=dcp.Limits(inter_node=0.3))),
    ],
    ids=["module", "field without repr", "long array", "nested backend", "types", "dataclass"],
)
def test_backends_are_told_apart_by_class_and_all_that_their_fields_hold(partitioner, other):
    cache = dcp.PlanCache()
    for each in (partitioner, other, partitioner, other):
        cache.plan(dcp.Batch([50]), HEADS, CLUSTER, **OPTIONS | {"partitioner": each})
    assert (cache.hits, cache.misses) == (2, 2)


@pytest.mark.parametrize("table", [object(), [lambda: 0], {"inner": {1, 2}}])
def test_what_cannot_be_told_apart_by_content_is_refused(table):
    with pytest.raises(SpecError, match=r"partitioner is or holds a \w+, whose content"):
        dcp.PlanCache().plan(dcp.Batch([5]), HEADS, CLUSTER, partitioner=OneDevice(table=table))


class OneDeviceWithMore(OneDevice):
    """Has a state that is no field."""

    def __init__(self, more: int) -> None:
        super().__init__()
        object.__setattr__(self, "more", more)


@pytest.mark.parametrize("partitioner", [OneDeviceWithMore(1), OneDevice])
def test_backends_with_more_than_fields_and_classes_are_refused(partitioner):
    with pytest.raises(SpecError, match="whose content cannot be read"):
        dcp.PlanCache().plan(dcp.Batch([5]), HEADS, CLUSTER, partitioner=partitioner)


def test_the_least_recently_used_plan_goes_first():
    cache = dcp.PlanCache(max_plans=2)
    for length in (10, 20, 10, 30, 10, 20):
        cache.plan(dcp.Batch([length]), HEADS, CLUSTER, **OPTIONS)
    assert (cache.hits, cache.misses) == (2, 4)


def test_a_cache_holds_at_least_one_plan():
    with pytest.raises(SpecError, match="max_plans"):
        dcp.PlanCache(max_plans=0)
