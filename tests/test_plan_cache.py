"""The plan cache serves repeats by content."""

import numpy as np
import pytest

import dcp
from dcp.backends.paper_schedule import PaperSchedule
from dcp.errors import SpecError

HEADS = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8)
CLUSTER = dcp.Cluster(devices_per_node=2)
OPTIONS = {"block_size": 16, "partitioner": "greedy", "scheduler": "sequential"}


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


def test_the_least_recently_used_plan_goes_first():
    cache = dcp.PlanCache(max_plans=2)
    for length in (10, 20, 10, 30, 10, 20):
        cache.plan(dcp.Batch([length]), HEADS, CLUSTER, **OPTIONS)
    assert (cache.hits, cache.misses) == (2, 4)


def test_a_cache_holds_at_least_one_plan():
    with pytest.raises(SpecError, match="max_plans"):
        dcp.PlanCache(max_plans=0)
