"""Sequences dealt to places in order, as the search starts from under sparse masks."""

from __future__ import annotations

import numpy as np
import pytest

import dcp
from dcp import masks
from dcp.backends.search_deals import best_dealt, dealt
from dcp.backends.search_level import Level, Runs
from dcp.backends.search_places import Places
from dcp.cutting import cut
from dcp.placement import PlacementProblem

HEADS = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=64)
NODES = dcp.Cluster(nodes=4, devices_per_node=2)
WINDOW = masks.sliding_window(100)


def dealing(lengths: list[int], mask: masks.Mask = WINDOW) -> tuple[Level, Places]:
    """Blocks of 100 tokens, by default under a window of one block, and four nodes."""
    batch = dcp.Batch(lengths, mask=mask)
    problem = PlacementProblem.of(cut(batch, HEADS, 100), NODES)
    level = Level.of(problem, Runs.of(problem), 1, np.zeros(1, dtype=np.int64))
    return level, Places.nodes_of(problem)


def test_a_deal_gives_equal_runs_of_tokens_in_the_order_of_the_batch() -> None:
    deal = dealt(*dealing([400, 1200]))
    assert deal.home.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_a_deal_computes_at_the_home_of_the_queries() -> None:
    level, nodes = dealing([700, 300, 600])
    deal = dealt(level, nodes)
    queries = level.nets["token"][level.comps["row"]]
    assert np.array_equal(deal.device, deal.home[queries])


def test_a_deal_computes_where_many_keys_of_one_query_block_are() -> None:
    mask = masks.causal_blockwise(100, 1)  # all blocks attend to themselves, the last one to all
    level, nodes = dealing([1600], mask)
    deal = dealt(level, nodes)
    keys = level.nets["token"][level.comps["column"]]
    last = level.query_token == 15
    assert np.array_equal(deal.device[last], deal.home[keys[last]])
    assert set(deal.device[last].tolist()) == {0, 1, 2, 3}


def test_the_best_order_cuts_no_sequence_where_none_has_to_be() -> None:
    level, nodes = dealing([300, 400, 100, 300, 200, 100, 200])
    cut_apart = [len(set(dealt(level, nodes).home[level.tokens["run"] == run])) for run in range(7)]
    assert max(cut_apart) > 1
    best = best_dealt(level, nodes, seed=0, most=1)[0]
    assert all(len(set(best.home[level.tokens["run"] == run])) == 1 for run in range(7))


def test_deals_come_cheapest_first_and_no_two_alike() -> None:
    level, nodes = dealing([900, 500, 400, 350, 150])
    deals = best_dealt(level, nodes, seed=3, most=4)
    assert len({deal.home.tobytes() for deal in deals}) == len(deals) == 4
    moved = [
        sum(len(set(deal.home[level.tokens["run"] == run])) - 1 for run in range(5))
        for deal in deals
    ]
    assert moved[0] == min(moved)


def test_one_sequence_can_be_dealt_in_one_way_only() -> None:
    assert len(best_dealt(*dealing([1600]), seed=0, most=5)) == 1


@pytest.mark.parametrize("lengths", [[100], [0, 100, 0], [5]])
def test_fewer_blocks_than_places_are_dealt(lengths: list[int]) -> None:
    level, nodes = dealing(lengths)
    assert 0 <= best_dealt(level, nodes, seed=0, most=1)[0].home.max(initial=0) < len(nodes)


def test_equal_seeds_deal_alike() -> None:
    level, nodes = dealing([730, 520, 310, 270, 110, 80])
    once, again = (best_dealt(level, nodes, seed=9, most=3) for _ in range(2))
    assert [deal.home.tolist() for deal in once] == [deal.home.tolist() for deal in again]
