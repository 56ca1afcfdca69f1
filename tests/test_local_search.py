"""The search keeps its books exactly, whatever moves it makes, and finds few bytes."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from partitioner_problems import (
    BATCHES,
    EIGHT_BY_TWO,
    FOUR_BY_EIGHT,
    PROBLEMS,
    problem_of,
    random_problem,
    workload,
)

from dcp import masks
from dcp.arrays import IntArray
from dcp.backends.greedy import Greedy
from dcp.backends.kahypar import KaHyPar
from dcp.backends.local_search import LocalSearch
from dcp.backends.search_anneal import improved, score, weighted_bytes
from dcp.backends.search_level import Level, Runs
from dcp.backends.search_packing import repacked
from dcp.backends.search_places import Places, savings
from dcp.backends.search_regroup import regrouped
from dcp.backends.search_seeds import bisected
from dcp.backends.search_state import State
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import Kind
from dcp.cluster import Cluster
from dcp.errors import SpecError
from dcp.packing import tightest_load
from dcp.placement import Assignment, Limits, PlacementProblem, evaluate

TIGHT = Limits(inter_node=0.4, intra_node=0.4, device=0.1)


def level_of(problem: PlacementProblem, length: int = 1, *, tied: bool = False) -> Level:
    groups = problem.data_bytes.shape[2]
    group_of = np.zeros(groups, dtype=np.int64) if tied else np.arange(groups)
    return Level.of(problem, Runs.of(problem), length, group_of)


def random_state(level: Level, places: Places, draw: np.random.Generator) -> State:
    device = draw.integers(0, len(places), len(level.comps))
    return places.state(level, device, draw.integers(0, len(places), len(level.tokens)))


def bytes_by_definition(problem: PlacementProblem, answer: Assignment, weight: float) -> float:
    """Forward and backward bytes, one data block after another."""
    node_of, total = problem.cluster.device_node, 0.0
    for kinds, side in (
        ([Kind.Q, Kind.O, Kind.Q, Kind.DO, Kind.DQ], problem.comp_q),
        ([Kind.KV, Kind.KV, Kind.DKV], problem.comp_kv),
    ):
        for block, group in np.ndindex(*problem.data_bytes.shape[1:]):
            here = (side == block) & (problem.comp_group == group)
            home = answer.token_home[block]
            away = np.array(sorted({*answer.comp_device[here].tolist()} - {int(home)}), dtype=int)
            entered = len({*node_of[away].tolist()} - {int(node_of[home])})
            links = len(away) + (weight - 1) * entered
            total += float(problem.data_bytes[kinds, block, group].sum()) * links
    return total


@pytest.mark.property
@given(seed=st.integers(0, 10**6), weight=st.sampled_from([1.0, 1.25, 8.0]))
def test_bytes_of_a_state_follow_the_definition(seed: int, weight: float) -> None:
    problem = random_problem(seed)
    level = level_of(problem)
    state = random_state(level, Places.devices_of(problem, weight), np.random.default_rng(seed))
    answer = level.raised(state.tokens["home"], state.comps["device"])
    expected = bytes_by_definition(problem, answer, weight)
    assert weighted_bytes(state) == pytest.approx(expected, rel=1e-12)


@pytest.mark.property
@given(
    seed=st.integers(0, 10**6),
    weight=st.sampled_from([1.0, 8.0]),
    heat=st.sampled_from([0.1, 10.0]),
    in_nodes=st.booleans(),
)
def test_books_stay_exact_under_all_moves(
    seed: int, weight: float, heat: float, in_nodes: bool
) -> None:
    """Whatever the moves kept up to date equals what is counted afresh."""
    problem = random_problem(seed)
    level = level_of(problem, tied=in_nodes)
    places = Places.nodes_of(problem) if in_nodes else Places.devices_of(problem, weight)
    state = random_state(level, places, np.random.default_rng(seed))
    found = improved(state, [heat, heat], 2000, seed)
    fresh = places.state(level, found.comps["device"], found.tokens["home"].astype(np.int64))
    for name in ("used", "near"):
        np.testing.assert_array_equal(getattr(found, name), getattr(fresh, name))
    for name in ("work", "tokens", "blocks"):
        np.testing.assert_array_equal(found.devices[name], fresh.devices[name])
    np.testing.assert_array_equal(found.nodes["work"], fresh.nodes["work"])
    np.testing.assert_allclose(found.nodes["excess"], fresh.nodes["excess"])
    for device in np.flatnonzero(found.devices["blocks"]).tolist():
        assert ring_of(found, device) == set(np.flatnonzero(found.tokens["home"] == device))


def ring_of(state: State, device: int) -> set[int]:
    """The token blocks that the ring of a device runs through."""
    first = token = int(state.devices["a_token"][device])
    seen = set()
    while token not in seen:
        seen.add(token)
        assert state.tokens["previous"][state.tokens["next"][token]] == token
        token = int(state.tokens["next"][token])
    assert token == first
    return seen


@pytest.mark.property
@given(seed=st.integers(0, 10**6))
def test_annealing_never_makes_a_placement_worse(seed: int) -> None:
    problem = random_problem(seed)
    level, places = level_of(problem), Places.devices_of(problem, 2.0)
    state = random_state(level, places, np.random.default_rng(seed))
    before = score(state)
    assert score(improved(state, [0.5], 500, seed)) <= before


@pytest.mark.property
@given(seed=st.integers(0, 10**6))
def test_every_start_holds_the_token_limit(seed: int) -> None:
    problem = random_problem(seed)
    places = Places.devices_of(problem, 1.0)
    state = places.state(level_of(problem), bisected(level_of(problem), places))
    assert state.devices["tokens"].max() <= state.rules["token_limit"][0]


@pytest.mark.property
@given(seed=st.integers(0, 10**6))
def test_savings_are_what_another_home_changes(seed: int) -> None:
    problem = random_problem(seed)
    draw = np.random.default_rng(seed)
    level, places = level_of(problem), Places.devices_of(problem, 3.0)
    state = random_state(level, places, draw)
    token, device = int(draw.integers(len(level.tokens))), int(draw.integers(len(places)))
    home = state.tokens["home"].astype(np.int64)
    saving, moved = savings(state), home.copy()
    moved[token] = device
    # `state` may settle homes anew under the token limit, so the limit is lifted.
    lifted = Places(**{**vars(places), "token_limit": 2**62})
    before = weighted_bytes(lifted.state(level, state.comps["device"], home))
    after = weighted_bytes(lifted.state(level, state.comps["device"], moved))
    gained = float(saving[token, device] - saving[token, home[token]])
    assert before - after == pytest.approx(gained, rel=1e-9, abs=2.0)


@pytest.mark.parametrize("name", ["causal", "lambda", "cross-attention", "many head groups"])
def test_the_finest_level_is_the_problem_itself(name: str) -> None:
    problem, draw = PROBLEMS[name](), np.random.default_rng(0)
    level = level_of(problem)
    home = draw.integers(0, 4, len(problem.token_tokens))
    device = draw.integers(0, 4, len(problem.comp_q))
    home_again, device_again = level.raised(*level.lowered(Assignment(home, device)))
    np.testing.assert_array_equal(home_again, home)
    np.testing.assert_array_equal(device_again, device)


def test_only_neighbours_in_a_sequence_merge() -> None:
    problem = problem_of(Batch([64 * 5, 64, 64 * 2]), EIGHT_BY_TWO)
    assert Runs.of(problem).merged(2).tolist() == [0, 0, 1, 1, 2, 3, 4, 4]
    assert Runs.of(problem).merged(8).tolist() == [0, 0, 0, 0, 0, 1, 2, 2]
    parted = Runs.of(problem).apart(np.array([0, 1, 1, 1, 0, 0, 0, 0]))
    assert parted.merged(2).tolist() == [0, 1, 1, 2, 3, 4, 5, 5]


def test_queries_and_keys_of_cross_attention_merge_apart() -> None:
    problem = problem_of(Batch([64 * 2], [64 * 2], mask=masks.full()), EIGHT_BY_TWO)
    assert Runs.of(problem).merged(2).tolist() == [0, 0, 1, 1]


def test_merged_levels_keep_work_tokens_and_bytes() -> None:
    problem = problem_of(Batch([900, 130, 700]), EIGHT_BY_TWO)
    fine, coarse = level_of(problem), level_of(problem, 4, tied=True)
    assert coarse.comps["work"].sum() == fine.comps["work"].sum() == problem.comp_flops.sum()
    assert coarse.tokens["tokens"].sum() == problem.token_tokens.sum()
    assert coarse.nets["size"].sum() == fine.nets["size"].sum()
    assert len(coarse.comps) < len(fine.comps) / 8


@pytest.mark.property
@given(
    tokens=st.lists(st.one_of(st.just(64), st.integers(0, 64)), min_size=1, max_size=40),
    devices=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_repacking_reaches_the_tightest_load(tokens: list[int], devices: int, seed: int) -> None:
    draw, sizes = np.random.default_rng(seed), np.array(tokens)
    home = draw.integers(0, devices, len(sizes))
    saving = draw.integers(0, 100, (len(sizes), devices))
    limit = tightest_load(sizes, devices)
    new = repacked(home, saving, sizes, limit)
    assert np.bincount(new, weights=sizes, minlength=devices).max() <= limit


@pytest.mark.parametrize(("limit", "most"), [(10, 10), (9, 11)])
def test_repacking_fits_where_longest_first_does_not_and_else_follows_it(
    limit: int, most: int
) -> None:
    sizes = np.array([5, 5, 4, 3, 3])
    new = repacked(np.zeros(5, dtype=int), np.zeros((5, 2), dtype=int), sizes, limit)
    assert np.bincount(new, weights=sizes).max() == most


def test_repacking_moves_no_block_of_a_packing_that_fits() -> None:
    sizes = np.full(12, 64)
    home = np.tile([2, 0, 1], 4)
    new = repacked(home, np.zeros((12, 3), dtype=int), sizes, 4 * 64)
    np.testing.assert_array_equal(new, home)


def crossing_bytes(problem: PlacementProblem, level: Level, state: State) -> tuple[int, int]:
    answer = level.raised(state.tokens["home"], state.comps["device"])
    placement = evaluate(problem, answer)
    return placement.volume_bytes, placement.inter_node_bytes


def test_regrouping_brings_devices_that_share_much_into_one_node() -> None:
    """Two sequences, each on one device of either node: after regrouping nothing crosses."""
    cluster = Cluster(nodes=2, devices_per_node=2)
    problem = problem_of(Batch([128, 128]), cluster, limits=Limits(intra_node=1.0))
    level, places = level_of(problem), Places.devices_of(problem, 2.0)
    home = np.array([0, 2, 1, 3])
    state = places.state(level, home[problem.comp_q], home)
    number = regrouped(state, places)
    after = places.state(level, number[home][problem.comp_q], number[home])
    volume, crossing = crossing_bytes(problem, level, state)
    assert crossing > 0
    assert crossing_bytes(problem, level, after) == (volume, 0)


def volume_of(answer: Assignment, problem: PlacementProblem) -> IntArray:
    placement = evaluate(problem, answer)
    assert placement.feasible
    assert np.bincount(answer.token_home, problem.token_tokens).max() <= problem.token_limit
    return np.array([placement.volume_bytes, placement.inter_node_bytes]) // 10**6


# MB at most, for a device limit of 0.1: what a search of 30 ms was known to reach before.
REACHED = {
    ("ldc_like_x1", "causal"): (319, 620),
    ("ldc_like_x1", "lambda"): (101, 265),
    ("longalign_like", "causal"): (326, 589),
    ("longalign_like", "lambda"): (102, 280),
    ("single_long", "causal"): (1083, 1753),
    ("single_long", "lambda"): (94, 193),
}
MASKS = {"causal": masks.causal(), "lambda": masks.lambda_mask(64, 4096)}


@pytest.mark.parametrize(("name", "mask"), REACHED)
def test_volumes_are_below_what_was_known(name: str, mask: str) -> None:
    for cluster, limit in zip((EIGHT_BY_TWO, FOUR_BY_EIGHT), REACHED[name, mask], strict=True):
        problem = workload(name, MASKS[mask], cluster, limits=TIGHT)
        assert volume_of(LocalSearch().place(problem), problem)[0] <= limit


@pytest.mark.skipif(find_spec("kahypar") is None, reason="kahypar is not installed")
@pytest.mark.parametrize(
    ("name", "mask", "cluster"),
    [
        ("ldc_like_x1", "causal", FOUR_BY_EIGHT),
        ("longalign_like", "causal", EIGHT_BY_TWO),
        ("longalign_like", "lambda", EIGHT_BY_TWO),
    ],
)
def test_three_workloads_send_no_more_than_by_kahypar(
    name: str, mask: str, cluster: Cluster
) -> None:
    """Neither in all nor between nodes, under the default limits."""
    problem = workload(name, MASKS[mask], cluster)
    theirs = evaluate(problem, KaHyPar().place(problem))
    ours = evaluate(problem, LocalSearch().place(problem))
    assert ours.feasible
    assert ours.volume_bytes <= theirs.volume_bytes
    assert ours.inter_node_bytes <= theirs.inter_node_bytes


@pytest.mark.parametrize("name", ["ldc_like_x1", "single_long"])
def test_weighing_crossings_more_lets_fewer_bytes_cross(name: str) -> None:
    problem = workload(name, masks.causal(), FOUR_BY_EIGHT, limits=TIGHT)
    light, heavy = (
        volume_of(LocalSearch(inter_weight=weight).place(problem), problem)
        for weight in (1.0, 16.0)
    )
    assert heavy[1] < light[1] / 1.5


ONE_OF_EIGHT, TWO_BY_TWO = Cluster(devices_per_node=8), Cluster(nodes=2, devices_per_node=2)
THREE_BY_FIVE = Cluster(nodes=3, devices_per_node=5)
EXACT = Limits(inter_node=0, intra_node=0, device=0)
CAUSAL_OR_NEAR = ~masks.causal() | masks.sliding_window(300)

HARD = {
    "blocks beyond the limit inside a node": lambda: problem_of(
        Batch([64] * 7), ONE_OF_EIGHT, block_size=512
    ),
    "blocks beyond the limit in several nodes": lambda: problem_of(
        Batch([9361], mask=masks.sliding_window(1)), THREE_BY_FIVE, block_size=1000
    ),
    "homes and head groups that pack otherwise": lambda: problem_of(
        Batch([706, 5774, 6852, 963, 7756, 4619], mask=masks.sliding_window(1)),
        ONE_OF_EIGHT,
        block_size=2048,
    ),
    "exact limits": lambda: problem_of(
        Batch([1491], mask=CAUSAL_OR_NEAR),
        THREE_BY_FIVE,
        block_size=256,
        spec=AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=128),
        limits=EXACT,
    ),
    "few large blocks in two nodes": lambda: problem_of(
        Batch([2013, 7354, 5482], mask=masks.full()),
        TWO_BY_TWO,
        block_size=4096,
        limits=Limits(device=0.1),
    ),
    "few large blocks": lambda: problem_of(
        Batch([8521, 8880, 1912, 2895, 6219, 3690, 4745], mask=masks.full()),
        ONE_OF_EIGHT,
        block_size=4096,
    ),
    "sequences that should stay whole": lambda: problem_of(
        Batch([3198, 5543, 493, 3063, 6309, 4008, 3109, 4111], mask=masks.sliding_window(1500)),
        TWO_BY_TWO,
        block_size=512,
    ),
    "many short sequences in eight head groups": lambda: problem_of(
        Batch([1600] * 80),
        FOUR_BY_EIGHT,
        block_size=2048,
        spec=AttentionSpec(num_q_heads=32, num_kv_heads=8, head_dim=64),
    ),
    "many blocks under tight limits": lambda: problem_of(
        Batch([60_000] * 8),
        THREE_BY_FIVE,
        block_size=2048,
        limits=Limits(inter_node=0.005, intra_node=0.005, device=0.005),
    ),
}


def assert_no_worse_than_greedy(problem: PlacementProblem) -> None:
    weight = 8.0 if problem.limits.device is None else 1.25
    ours, theirs = LocalSearch().place(problem), Greedy().place(problem)
    if evaluate(problem, theirs).feasible:
        assert evaluate(problem, ours).violations == ()
        ours_bytes, theirs_bytes = (
            bytes_by_definition(problem, answer, weight) for answer in (ours, theirs)
        )
        assert ours_bytes <= theirs_bytes


@pytest.mark.parametrize("name", HARD)
def test_what_is_hard_to_pack_sends_no_more_than_by_greedy(name: str) -> None:
    assert_no_worse_than_greedy(HARD[name]())


@pytest.mark.property
@given(
    lengths=st.lists(st.integers(50, 10_000), min_size=1, max_size=10),
    mask=st.sampled_from(
        [
            masks.full(),
            masks.causal(),
            masks.sliding_window(1),
            masks.sliding_window(1000),
            masks.lambda_mask(64, 2000),
            masks.causal_blockwise(256, 2),
        ]
    ),
    cluster=st.sampled_from([ONE_OF_EIGHT, TWO_BY_TWO, THREE_BY_FIVE]),
    block_size=st.sampled_from([1000, 1024, 2048, 4096]),
    limits=st.sampled_from([Limits(), Limits(device=0.1), EXACT]),
)
def test_few_blocks_or_devices_send_no_more_than_by_greedy(
    lengths: list[int], mask: masks.Mask, cluster: Cluster, block_size: int, limits: Limits
) -> None:
    problem = problem_of(Batch(lengths, mask=mask), cluster, block_size=block_size, limits=limits)
    assume(cluster.num_devices <= 8 or len(problem.comp_q) <= 300)
    assert_no_worse_than_greedy(problem)


@pytest.mark.property
@given(seed=st.integers(0, 10**6))
def test_any_arrays_are_answered_within_the_limits_if_greedy_manages(seed: int) -> None:
    assert_no_worse_than_greedy(random_problem(seed))


def test_head_groups_are_placed_apart_where_that_pays() -> None:
    problem = workload("single_long", masks.causal(), FOUR_BY_EIGHT, limits=TIGHT)
    answer = LocalSearch().place(problem)
    device = answer.comp_device.reshape(-1, 2)
    assert (problem.comp_q[::2] == problem.comp_q[1::2]).all()
    assert np.mean(device[:, 0] != device[:, 1]) > 0.5


@pytest.mark.parametrize("block_size", [1024, 512])
def test_finer_blocks_cost_few_bytes_more_or_less(block_size: int) -> None:
    # Over some seeds: one answer may be lucky at one size.
    coarse, fine = (
        sum(volume_of(LocalSearch().place(replace(one, seed=seed)), one)[0] for seed in range(3))
        for one in (
            workload("ldc_like_x1", masks.causal(), EIGHT_BY_TWO, block_size=size, limits=TIGHT)
            for size in (2048, block_size)
        )
    )
    assert fine <= 1.1 * coarse


def test_ten_thousand_short_sequences_stay_whole() -> None:
    lengths = np.random.default_rng(0).integers(10, 800, 10_000).tolist()
    problem = problem_of(Batch(lengths), EIGHT_BY_TWO, block_size=2048, limits=TIGHT)
    volume, _ = volume_of(LocalSearch().place(problem), problem)
    one_copy = int(problem.kv_side_bytes.sum()) // 10**6
    assert volume < one_copy / 100


def test_many_key_heads_are_served() -> None:
    spec = AttentionSpec(num_q_heads=32, num_kv_heads=8, head_dim=64)
    problem = problem_of(
        Batch(BATCHES["ldc_like_x1"]), EIGHT_BY_TWO, block_size=4096, spec=spec, limits=TIGHT
    )
    assert volume_of(LocalSearch().place(problem), problem)[0] > 0


def test_larger_budgets_find_fewer_bytes() -> None:
    problem = workload("longalign_like", masks.causal(), FOUR_BY_EIGHT, limits=TIGHT)
    volumes = [
        np.mean(
            [
                volume_of(LocalSearch(inter_weight=1.0).place(one), one)[0]
                for one in (
                    PlacementProblem(**{**fields(problem), "budget": budget, "seed": seed})
                    for seed in range(3)
                )
            ]
        )
        for budget in (0.1, 8.0)
    ]
    assert volumes[1] < 0.95 * volumes[0]


def fields(problem: PlacementProblem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in problem.__dataclass_fields__}


@pytest.mark.parametrize("weight", [0.5, -1.0, float("nan"), float("inf"), 1e300])
def test_illegal_weights_are_refused(weight: float) -> None:
    with pytest.raises(SpecError, match=r"inter_weight is .* 1 or more"):
        LocalSearch(inter_weight=weight)
