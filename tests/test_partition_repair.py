"""What partitioners share: moves, homes under a tight limit, repair, hypergraphs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioner_problems import EIGHT_BY_TWO, PROBLEMS, problem_of, random_problem, workload

from dcp import masks
from dcp.arrays import IntArray
from dcp.backends.answers import trivial_answer
from dcp.backends.greedy import Greedy
from dcp.backends.homes import improve, relieve, settle_homes
from dcp.backends.hypergraph import Hypergraph, place_with, solve_by_levels
from dcp.backends.pairs import Pairs
from dcp.backends.repair import repair
from dcp.backends.settle_kernels import exchange, fill_savings, refill
from dcp.backends.touching import Touching
from dcp.batch import Batch
from dcp.cluster import Cluster
from dcp.packing import loads, pack_longest_first, tightest_load
from dcp.placement import Assignment, Limits, PlacementProblem, evaluate

seeds = st.integers(0, 2**32 - 1)


def random_answer(problem: PlacementProblem, seed: int = 0) -> Assignment:
    draw, devices = np.random.default_rng(seed), problem.cluster.num_devices
    return Assignment(
        draw.integers(0, devices, len(problem.token_tokens)),
        draw.integers(0, devices, len(problem.comp_q)),
    )


def bytes_saved(touching: Touching, comp: int, place: int) -> int:
    """What a move adds to the volume: 0 or less, for it counts as 0 where it saves nothing."""
    saved = np.zeros(1, dtype=np.int64)
    fill_savings(touching.tables, np.array([comp]), np.array([place]), saved)
    return int(saved[0])


@pytest.mark.property
@given(seed=seeds)
def test_the_saving_of_a_move_is_the_change_in_volume(seed: int) -> None:
    problem = random_problem(seed)
    home, device = random_answer(problem, seed)
    touching = Touching(problem, home, device, problem.cluster.num_devices)
    comp, place = seed % len(device), seed % problem.cluster.num_devices
    before = evaluate(problem, Assignment(home, device)).volume_bytes
    there = bytes_saved(touching, comp, place)
    touching.put(np.array([comp]), np.array([place]))
    back = bytes_saved(touching, comp, int(device[comp]))
    change = evaluate(problem, Assignment(home, touching.where)).volume_bytes - before
    assert (there, back) == (min(0, change), min(0, -change))
    np.testing.assert_array_equal(
        touching.loads, loads(touching.where, problem.comp_flops, problem.cluster.num_devices)
    )


@pytest.mark.property
@given(seed=seeds)
def test_the_saving_of_a_home_is_the_change_in_volume(seed: int) -> None:
    problem = random_problem(seed)
    home, device = random_answer(problem, seed)
    saving = Touching(problem, home, device, problem.cluster.num_devices).saving()
    other = random_answer(problem, seed + 1).token_home
    each = np.arange(len(home))
    change = (
        evaluate(problem, Assignment(other, device)).volume_bytes
        - evaluate(problem, Assignment(home, device)).volume_bytes
    )
    assert change == int(saving[each, home].sum() - saving[each, other].sum())


@pytest.mark.property
@given(seed=seeds)
def test_any_answer_is_repaired_to_within_the_limits(seed: int) -> None:
    problem = random_problem(seed)
    if trivial_answer(problem) is None:
        repaired = repair(problem, random_answer(problem, seed))
        assert evaluate(problem, repaired).violations == ()


def test_repairing_again_and_again_settles() -> None:
    problem = workload("ldc_like_x1", masks.causal(), EIGHT_BY_TWO)
    answer = repair(problem, random_answer(problem))
    for _ in range(10):
        before, answer = answer, repair(problem, answer)
    assert evaluate(problem, answer).volume_bytes <= evaluate(problem, before).volume_bytes


EVEN = Limits(device=0.1)
EXACT = Limits(inter_node=0, intra_node=0, device=0, tokens=0)


@pytest.mark.parametrize("name", ["ldc_like_x1", "longalign_like"])
@pytest.mark.parametrize("mask", [masks.causal(), masks.lambda_mask(64, 4096)])
def test_exact_limits_are_reached_at_half_the_bytes_of_a_blind_packing(
    name: str, mask: masks.Mask
) -> None:
    problem = workload(name, mask, EIGHT_BY_TWO, limits=EXACT)
    placement = evaluate(problem, repair(problem, Greedy().place(replace(problem, limits=EVEN))))
    assert placement.violations == ()
    packed = [pack_longest_first(each, 16) for each in (problem.token_tokens, problem.comp_flops)]
    assert placement.volume_bytes < evaluate(problem, Assignment(*packed)).volume_bytes / 2


def filled(
    problem: PlacementProblem, device: IntArray, kept: float = 0.0, cap: float = 0.0
) -> Touching:
    """Devices filled anew."""
    devices = problem.cluster.num_devices
    touching = Touching(problem, random_answer(problem).token_home, device, devices)
    falling, room = np.argsort(-problem.comp_flops), np.zeros((3, devices), dtype=np.int64)
    places = np.arange(devices)
    refill(touching.tables, falling, places, kept, cap, touching.scratch, room)
    return touching


@pytest.mark.property
@given(seed=seeds, share=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_devices_are_filled_with_everything_once(seed: int, share: float) -> None:
    problem = random_problem(seed)
    devices, even = problem.cluster.num_devices, float(problem.comp_flops.mean())
    even *= len(problem.comp_flops) / devices
    device = random_answer(problem, seed).comp_device
    touching = filled(problem, device, share * even, even)
    np.testing.assert_array_equal(
        touching.loads, loads(touching.where, problem.comp_flops, devices)
    )
    assert touching.loads.sum() == problem.comp_flops.sum()


@pytest.mark.property
@given(seed=seeds)
def test_devices_filled_from_nothing_reach_the_tightest_load(seed: int) -> None:
    problem = random_problem(seed)
    touching = filled(problem, random_answer(problem, seed).comp_device)
    assert touching.loads.max() == tightest_load(problem.comp_flops, problem.cluster.num_devices)


def test_nothing_moves_where_all_computations_are_equal_and_evenly_spread() -> None:
    problem = PROBLEMS["causal"]()
    count = len(problem.comp_flops) // 4 * 4
    equal = replace(
        problem,
        comp_q=problem.comp_q[:count],
        comp_kv=problem.comp_kv[:count],
        comp_group=problem.comp_group[:count],
        comp_flops=np.full(count, 7),
    )
    device = np.random.default_rng(0).permutation(np.arange(count) % 4)
    np.testing.assert_array_equal(filled(equal, device).where, device)


@pytest.mark.property
@given(seed=seeds)
def test_exchanges_save_bytes_and_keep_a_limit_that_holds(seed: int) -> None:
    problem = random_problem(seed)
    home, device = random_answer(problem, seed)
    places = np.arange(problem.cluster.num_devices)
    touching = Touching(problem, home, device, len(places))
    before, limit = touching.volume(), float(touching.loads.max()) + 0.5
    falling = np.argsort(-problem.comp_flops, kind="stable")
    exchanged = exchange(touching.tables, falling, falling, places, limit)
    assert touching.loads.max() <= limit
    assert (touching.volume() < before) == (exchanged > 0)
    assert touching.volume() == evaluate(problem, Assignment(home, touching.where)).volume_bytes


def test_two_computations_change_places_where_neither_can_move() -> None:
    problem = problem_of(Batch([64, 64]), Cluster(nodes=1, devices_per_node=2))
    home = np.array([0, 1])
    touching = Touching(problem, home, 1 - home[problem.comp_q], 2)
    each, even = np.arange(len(problem.comp_q)), float(touching.loads.max())
    assert exchange(touching.tables, each, each, np.arange(2), even) == len(each) // 2
    np.testing.assert_array_equal(touching.where, home[problem.comp_q])


@pytest.mark.property
@given(seed=seeds)
def test_the_volume_of_what_touches_is_that_of_the_placement(seed: int) -> None:
    problem = random_problem(seed)
    answer = random_answer(problem, seed)
    touching = Touching(problem, *answer, problem.cluster.num_devices)
    assert touching.volume() == evaluate(problem, answer).volume_bytes


# --- Homes ---------------------------------------------------------------------------------------


@pytest.mark.property
@given(seed=seeds, devices=st.integers(1, 6))
def test_homes_hold_the_tightest_limit(seed: int, devices: int) -> None:
    draw = np.random.default_rng(seed)
    tokens = draw.integers(1, 2049, int(draw.integers(1, 40)))
    saving = draw.integers(0, 10**6, (len(tokens), devices))
    limit = tightest_load(tokens, devices)
    home = settle_homes(saving, tokens, limit, saving.argmax(axis=1))
    assert loads(home, tokens, devices).max() <= limit


def test_homes_within_the_limit_that_save_most_are_kept() -> None:
    saving = np.array([[9, 0], [0, 9], [5, 0], [0, 5]])
    home = settle_homes(saving, np.full(4, 10), 20, np.array([0, 1, 0, 1]))
    assert home.tolist() == [0, 1, 0, 1]


def test_an_overfull_device_gives_up_what_saves_least() -> None:
    saving = np.array([[9, 0], [1, 0], [5, 0]])
    home = relieve(saving, np.full(3, 10), 20, np.zeros(3, dtype=np.int64))
    assert home is not None
    assert home.tolist() == [0, 1, 0]


def test_an_overfull_device_exchanges_where_no_block_fits_alone() -> None:
    tokens = np.array([7, 6, 5, 6])  # 13 and 11 on devices that hold 12
    home = relieve(np.zeros((4, 2), dtype=np.int64), tokens, 12, np.array([0, 0, 1, 1]))
    assert home is not None
    assert loads(home, tokens, 2).tolist() == [12, 12]


def test_homes_start_from_the_packing_where_exchanges_get_stuck() -> None:
    tokens, wanted = np.array([3, 5, 3, 3, 7, 6]), np.array([0, 2, 0, 0, 2, 2])
    saving = np.zeros((6, 3), dtype=np.int64)
    assert relieve(saving, tokens, 10, wanted) is None
    assert loads(settle_homes(saving, tokens, 10, wanted), tokens, 3).max() == 10


def test_two_blocks_change_places_where_neither_can_move() -> None:
    saving = np.array([[0, 9], [9, 0]])
    home = improve(saving, np.array([10, 10]), 10, np.array([0, 1]))
    assert home.tolist() == [1, 0]


# --- Hypergraphs ---------------------------------------------------------------------------------


class Recorder:
    """A solver that answers at random, heeds fixed vertices and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Hypergraph, IntArray]] = []

    def __call__(self, graph: Hypergraph) -> IntArray:
        draw = np.random.default_rng(len(self.asked))
        part = draw.integers(0, graph.parts, len(graph.vertex_weight))
        part = np.where(graph.fixed >= 0, graph.fixed, part)
        self.asked.append((graph, part))
        return part


def connectivity(graph: Hypergraph, part: IntArray) -> int:
    """Sum over nets of weight × (parts that its pins are in − 1)."""
    spread = [len(set(part[graph.pins[a:b]].tolist())) for a, b in pairwise(graph.net_ptr)]
    return int((graph.net_weight * (np.array(spread) - 1)).sum())


@pytest.mark.property
@given(seed=seeds)
def test_solvers_get_nothing_that_makes_them_crash(seed: int) -> None:
    problem, recorder = random_problem(seed), Recorder()
    answer = place_with(problem, lambda one: solve_by_levels(one, recorder))
    assert evaluate(problem, answer).feasible
    for graph, _ in recorder.asked:
        assert 2 <= graph.parts <= len(graph.vertex_weight)
        assert graph.vertex_weight.min() >= 1
        assert graph.vertex_weight.sum() < 2**31
        assert graph.net_weight.min(initial=1) >= 1
        assert graph.net_weight.sum() * (graph.parts - 1) < 2**31
        assert np.diff(graph.net_ptr).min(initial=2) >= 2
        assert graph.net_ptr[-1] == len(graph.pins)
        assert graph.epsilon >= 0
        assert 0 <= graph.seed < 2**31


def test_connectivity_is_the_volume_in_other_units() -> None:
    problem, recorder = PROBLEMS["one device a node"](), Recorder()
    solve_by_levels(problem, recorder, fixed_vertices=False)
    ((graph, _),) = recorder.asked
    pairs, tokens = Pairs.of(problem), len(problem.token_tokens)
    draw, ratios = np.random.default_rng(0), []
    for _ in range(5):
        part = draw.integers(0, graph.parts, len(graph.vertex_weight))
        answer = Assignment(part[:tokens], part[tokens:][pairs.of_comp])
        ratios.append(connectivity(graph, part) / evaluate(problem, answer).volume_bytes)
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)


def test_the_second_call_fixes_homes_and_only_homes() -> None:
    problem, recorder = PROBLEMS["causal"](), Recorder()
    solve_by_levels(problem, recorder)
    fixed = [graph.fixed >= 0 for graph, _ in recorder.asked]
    assert any(one.any() for one in fixed)
    tokens = len(problem.token_tokens)
    assert fixed[1].nonzero()[0].tolist() == list(range(tokens))


def test_a_solver_without_fixed_vertices_is_called_once_a_split() -> None:
    problem, recorder = PROBLEMS["causal"](), Recorder()
    solve_by_levels(problem, recorder, fixed_vertices=False)
    assert len(recorder.asked) == 1 + problem.cluster.nodes
    assert all((graph.fixed == -1).all() for graph, _ in recorder.asked)


def test_a_budget_of_three_solves_three_times_with_other_seeds() -> None:
    problem, recorder = replace(PROBLEMS["causal"](), budget=3.0), Recorder()
    place_with(problem, lambda one: solve_by_levels(one, recorder))
    assert {graph.seed for graph, _ in recorder.asked} == {0, 1, 2}
