"""Sequences packed whole into devices, as the search starts from under sparse masks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp import masks
from dcp.arrays import IntArray
from dcp.backends.search_level import Level, Runs
from dcp.backends.search_places import Places
from dcp.backends.search_whole import packed_whole
from dcp.cutting import cut
from dcp.packing import loads
from dcp.placement import PlacementProblem, evaluate

HEADS = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=64)
CLUSTER = dcp.Cluster(nodes=2, devices_per_node=2)


def packing(lengths: list[int], cluster: dcp.Cluster = CLUSTER) -> tuple[Level, Places]:
    """Blocks of 100 tokens under a window of one block."""
    batch = dcp.Batch(lengths, mask=masks.sliding_window(100))
    problem = PlacementProblem.of(cut(batch, HEADS, 100), cluster)
    level = Level.of(problem, Runs.of(problem), 1, np.zeros(1, dtype=np.int64))
    return level, Places.devices_of(problem, 1.0)


def homes(level: Level, places: Places, node: IntArray | None = None) -> list[set[int]]:
    """Devices that hold each sequence."""
    deal = packed_whole(level, places, node)
    assert deal is not None
    assert np.array_equal(deal.device, deal.home[level.query_token])
    run = level.tokens["run"]
    return [set(deal.home[run == one].tolist()) for one in range(run.max() + 1)]


def test_sequences_stay_whole_where_they_pack() -> None:
    held = homes(*packing([500, 500, 400, 300, 300, 700, 100, 1000, 200]))
    assert all(len(devices) == 1 for devices in held)


def test_a_sequence_longer_than_a_device_takes_devices_of_one_node() -> None:
    held = homes(*packing([600, 400, 1700, 300, 1000]))
    assert held[2] in ({0, 1}, {2, 3})
    assert all(len(devices) == 1 for one, devices in enumerate(held) if one != 2)


def test_long_sequences_fill_nodes_before_they_share_them() -> None:
    cluster = dcp.Cluster(nodes=3, devices_per_node=2)
    held = homes(*packing([1600, 900, 3200, 300], cluster))
    assert len({device // 2 for device in held[2]}) == 2
    assert len({device // 2 for device in held[0]}) == 1


def test_what_finds_no_room_is_cut_where_room_ends() -> None:
    level, places = packing([800, 800, 800, 800, 800])
    deal = packed_whole(level, places)
    assert deal is not None
    held = homes(level, places)
    assert sorted(len(devices) for devices in held) == [1, 1, 1, 1, 4]
    assert loads(deal.home, level.tokens["tokens"], 4).tolist() == [1000] * 4


def test_blocks_stay_in_nodes_that_are_settled() -> None:
    level, places = packing([500, 500, 500, 500, 700, 300, 1000])
    node = np.isin(level.tokens["run"], [0, 2, 6]).astype(np.int64)
    held = homes(level, places, node)
    assert all(devices <= {2, 3} for devices in (held[0], held[2], held[6]))
    assert all(devices <= {0, 1} for devices in (held[1], held[3], held[4], held[5]))
    assert all(len(devices) == 1 for devices in held)


def test_devices_of_like_work_share_a_node() -> None:
    level, places = packing([1000, *[100] * 10, 1000, *[100] * 10])
    held = homes(level, places)
    assert {next(iter(held[0])) // 2, next(iter(held[11])) // 2} in ({0}, {1})


def test_there_is_no_packing_for_more_long_portions_than_devices() -> None:
    level, places = packing([250, 250], dcp.Cluster(nodes=1, devices_per_node=5))
    assert places.token_limit == 100
    assert packed_whole(level, places) is None


@pytest.mark.property
@given(
    lengths=st.lists(st.integers(1, 900), min_size=1, max_size=12),
    nodes=st.integers(1, 3),
    per_node=st.integers(1, 3),
)
def test_no_device_is_over_its_tokens_by_a_block(
    lengths: list[int], nodes: int, per_node: int
) -> None:
    level, places = packing(lengths, dcp.Cluster(nodes=nodes, devices_per_node=per_node))
    deal = packed_whole(level, places)
    if deal is None:
        assert max(lengths) > places.token_limit
    else:
        held = loads(deal.home, level.tokens["tokens"], len(places))
        assert held.max() < places.token_limit + 100
        assert held.sum() == sum(lengths)


@pytest.mark.parametrize("seed", range(3))
def test_short_sequences_that_pack_are_not_sent(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(300, 2000, 200).tolist()
    blocks = cut(dcp.Batch(lengths, mask=masks.causal()), HEADS, 2048)
    problem = PlacementProblem.of(blocks, dcp.Cluster(nodes=8, devices_per_node=8))
    placed = dcp.registry.create("partitioners", "local_search").place(problem)
    found = evaluate(problem, placed)
    assert found.volume_bytes == 0
    assert found.feasible


@pytest.mark.parametrize("seed", range(3))
def test_ragged_short_sequences_are_sent_no_more_than_by_greedy(seed: int) -> None:
    drawn = np.exp(np.random.default_rng(seed).normal(6, 1, 24 * 12)).clip(16, 8192)
    blocks = cut(dcp.Batch(drawn.astype(int).tolist(), mask=masks.causal()), HEADS, 2048)
    problem = PlacementProblem.of(blocks, dcp.Cluster(nodes=3, devices_per_node=4))
    ours, built = (
        evaluate(problem, dcp.registry.create("partitioners", name).place(problem))
        for name in ("local_search:inter_weight=1", "greedy")
    )
    assert ours.volume_bytes <= 1.02 * built.volume_bytes
    assert ours.feasible
