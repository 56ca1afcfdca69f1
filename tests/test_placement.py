"""The framework, not the backend, validates answers, measures them and says whether limits hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp import masks
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import Kind
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.errors import PlacementError, SpecError
from dcp.packing import pack_longest_first, tightest_load
from dcp.placement import Assignment, Limits, PlacementProblem, evaluate

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, dtype="bfloat16")
CLUSTER = Cluster(nodes=2, devices_per_node=2)


def problem_of(batch, block_size=4, cluster=CLUSTER, **options):
    blocks = cut(batch, SPEC, block_size)
    return blocks, PlacementProblem.of(blocks, cluster, **options)


def volume_block_by_block(blocks, home, comp, place_of):
    """The formula of the definition, one data block after another."""
    total = 0
    for kind, side in ((Kind.Q, blocks.comp_q), (Kind.O, blocks.comp_q), (Kind.KV, blocks.comp_kv)):
        for block in range(blocks.num_token_blocks):
            for group in range(len(blocks.groups)):
                users = comp[(side == block) & (blocks.comp_group == group)]
                places = {place_of[device] for device in [home[block], *users]}
                total += int(blocks.data_bytes[kind, block, group]) * (len(places) - 1)
    return total


@pytest.mark.property
@given(
    lengths=st.lists(st.integers(0, 20), max_size=3),
    cross=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_volumes_follow_the_definition_on_devices_and_on_nodes(lengths, cross, seed):
    batch = Batch(lengths, lengths[::-1] if cross else None, mask=masks.sliding_window(6))
    blocks, problem = problem_of(batch)
    random = np.random.default_rng(seed)
    home = random.integers(0, 4, blocks.num_token_blocks)
    comp = random.integers(0, 4, len(blocks.comp_q))
    placement = evaluate(problem, Assignment(home, comp))
    devices, nodes = np.arange(4), CLUSTER.device_node
    assert placement.volume_bytes == volume_block_by_block(blocks, home, comp, devices)
    assert placement.inter_node_bytes == volume_block_by_block(blocks, home, comp, nodes)


def test_everything_at_home_sends_nothing():
    blocks, problem = problem_of(Batch([4, 4, 4, 4]))
    home = np.arange(4)
    placement = evaluate(problem, Assignment(home, home[blocks.comp_q]))
    assert placement.volume_bytes == placement.inter_node_bytes == 0
    assert placement.compute_imbalance == placement.token_imbalance == 1.0
    assert placement.feasible


def test_imbalance_counts_allowed_pairs():
    _, problem = problem_of(Batch([4, 4], mask=[masks.causal(), masks.full()]))
    placement = evaluate(problem, Assignment(np.array([0, 1]), np.array([0, 0, 1, 1])))
    assert placement.compute_imbalance == pytest.approx(16 / ((10 + 16) / 4))


def test_an_infeasible_answer_is_marked_with_the_limit_that_fails():
    blocks, problem = problem_of(Batch([16, 16]))
    nowhere_else = Assignment(np.zeros(8, dtype=int), np.zeros(len(blocks.comp_q), dtype=int))
    placement = evaluate(problem, nowhere_else)
    assert not placement.feasible
    assert any("device 0 holds 32 tokens, limit 9" in line for line in placement.violations)
    assert any("node 0 computes" in line for line in placement.violations)


def test_tokens_may_miss_the_tightest_packing_by_the_limit_and_no_more():
    blocks, problem = problem_of(Batch([400, 398, 2]), block_size=400,
                                 cluster=Cluster(devices_per_node=2))  # fmt: skip
    assert problem.token_limit == 400
    uneven = Assignment(np.array([0, 1, 0]), np.zeros(len(blocks.comp_q), dtype=int))
    assert not any("tokens" in line for line in evaluate(problem, uneven).violations)
    alone = Assignment(np.array([0, 0, 1]), np.zeros(len(blocks.comp_q), dtype=int))
    assert any("798 tokens, limit 404" in line for line in evaluate(problem, alone).violations)


def test_a_limit_that_blocks_cannot_meet_gives_way_to_the_tightest_packing():
    """Two whole blocks on four devices: one each on two of them, and a node each."""
    _, problem = problem_of(Batch([4]), limits=Limits(inter_node=0, intra_node=0))
    assert evaluate(problem, Assignment(np.array([0]), np.array([0, 2]))).feasible
    assert not evaluate(problem, Assignment(np.array([0]), np.array([0, 1]))).feasible


@pytest.mark.parametrize(
    ("home", "comp", "message"),
    [
        ([0, 1, 2], [0, 0], "token_home has shape \\(3,\\).*shape \\(1,\\)"),
        ([0.5], [0, 0], "dtype float64"),
        ([0], [0, 4], "comp_device names devices 0 … 4; legal: 0 … 3"),
        ([-1], [0, 0], "token_home names devices -1"),
    ],
)
def test_an_answer_outside_the_contract_is_refused_by_name(home, comp, message):
    _, problem = problem_of(Batch([4]))
    with pytest.raises(PlacementError, match=message):
        evaluate(problem, Assignment(np.array(home), np.array(comp)))


def test_a_limit_over_all_devices_holds_beside_the_two_levels():
    blocks, problem = problem_of(Batch([4] * 8), limits=Limits(device=0.0))
    home = np.array([0, 0, 0, 1, 2, 2, 3, 3])
    loose = evaluate(problem_of(Batch([4] * 8), limits=Limits(intra_node=0.5))[1],
                     Assignment(home, home[blocks.comp_q]))  # fmt: skip
    tight = evaluate(problem, Assignment(home, home[blocks.comp_q]))
    assert not any("computes" in line for line in loose.violations)
    assert any("computes" in line for line in tight.violations)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.1])
def test_limits_must_be_finite_and_not_negative(bad):
    with pytest.raises(SpecError, match="inter_node"):
        Limits(inter_node=bad)
    with pytest.raises(SpecError, match="intra_node"):
        Limits(intra_node=bad)
    with pytest.raises(SpecError, match="device"):
        Limits(device=bad)
    with pytest.raises(SpecError, match="tokens"):
        Limits(tokens=bad)


@pytest.mark.parametrize("bad", [1e308, 2e9, 10**300])
@pytest.mark.parametrize("name", ["inter_node", "intra_node", "device", "tokens"])
def test_limits_that_overflow_sums_are_refused(name, bad):
    with pytest.raises(SpecError, match=rf"limit {name} is .*; .* 0 or more, at most 1e\+09$"):
        Limits(**{name: bad})


def test_a_limit_of_the_number_of_devices_limits_nothing():
    blocks, problem = problem_of(
        Batch([4] * 8), limits=Limits(inter_node=4, intra_node=4, tokens=4)
    )
    nothing = np.zeros_like(blocks.token_seq), np.zeros_like(blocks.comp_q)
    assert evaluate(problem, Assignment(*nothing)).feasible


@pytest.mark.parametrize("bad", [float("nan"), 0.0, -1.0, 1e308])
def test_the_budget_must_be_positive_and_not_endless(bad):
    with pytest.raises(SpecError, match="budget"):
        problem_of(Batch([4]), budget=bad)


@pytest.mark.property
def test_more_work_than_64_bits_count_is_refused():
    spec = AttentionSpec(num_q_heads=32, num_kv_heads=8, head_dim=128)
    blocks = cut(Batch([2**25]), spec, 2**22)
    with pytest.raises(SpecError, match=r"takes 9.2e\+18 FLOPs.*legal: less than 4.6e\+18"):
        PlacementProblem.of(blocks, Cluster(nodes=1, devices_per_node=2))


@given(weights=st.lists(st.integers(0, 50), max_size=20), bins=st.integers(1, 5))
def test_the_tightest_load_is_reached_by_its_own_packing(weights, bins):
    weights = np.array(weights, dtype=np.int64)
    where = pack_longest_first(weights, bins)
    loads = np.bincount(where, weights=weights, minlength=bins)
    assert tightest_load(weights, bins) == loads.max(initial=0)
    mean, largest = weights.sum() / bins, weights.max(initial=0)
    assert max(mean, largest) <= max(loads.max(), 0) + 1e-9
    assert loads.max() <= mean + largest


def test_limits_of_numpy_are_taken_as_plain_numbers() -> None:
    assert type(Limits(device=np.float32(0.5)).device) is float
