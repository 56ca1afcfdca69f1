"""Static schemes: shares, heads and balance, and any batch that is asked of them."""

from __future__ import annotations

import numpy as np
import pytest
from arrangements import EVEN, arranged
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.baseline import Arrangement
from dcp.baselines.dealing import Grid, deal_heads
from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.errors import SpecError
from dcp.placement import PlacementProblem, evaluate
from dcp.plan_request import PlanRequest
from dcp.registry import create
from dcp.schedule_validation import validate_schedule
from dcp.verification import check_plan, strategies
from dcp.verification.local_run import check_numbers


def load_by_device(answer: Arrangement, devices: int) -> np.ndarray:
    weights = answer.blocks.comp_pairs
    return np.bincount(answer.assignment.comp_device, weights=weights, minlength=devices)


class TestAnyRequest:
    """No mask, length or head layout is refused, except more Ulysses ranks than query heads."""

    @pytest.mark.property
    @given(data=st.data())
    def test_gives_schedules_that_can_be_executed(self, data: st.DataObject) -> None:
        size, spec = data.draw(strategies.block_sizes()), data.draw(strategies.specs())
        cluster, batch = data.draw(strategies.clusters()), data.draw(strategies.batches(size))
        drawn = data.draw(strategies.baselines(spec, cluster))
        name = data.draw(st.sampled_from([drawn, "allgather"]))
        request = PlanRequest(batch=batch, spec=spec, cluster=cluster, block_size=size)
        answer = create("baselines", name).arrange(request)
        evaluate(PlacementProblem.of(answer.blocks, cluster), answer.assignment)
        for schedule in (answer.forward, answer.backward):
            validate_schedule(answer.blocks, *answer.assignment, cluster.num_devices, schedule)

    @pytest.mark.property
    @given(
        lengths=st.lists(st.integers(0, 30), max_size=3),
        devices=st.integers(1, 4),
        block_size=st.integers(3, 9),
        seed=st.integers(0, 9),
    )
    def test_all_gather_is_proven_and_equals_dense_attention(
        self, lengths: list[int], devices: int, block_size: int, seed: int
    ) -> None:
        spec = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=4, dtype="float64")
        batch, cluster = Batch(lengths), Cluster(devices_per_node=devices)
        plan = dcp.plan(batch, spec, cluster, block_size=block_size, baseline="allgather")
        check_plan(plan)
        check_numbers(batch, plan, seed=seed)

    @pytest.mark.parametrize("name", ["ring", "zigzag", "ulysses", "usp", "allgather"])
    def test_sends_nothing_on_one_rank(self, name: str) -> None:
        answer = arranged(name, [9, 0, 4], 1)
        for schedule in (answer.forward, answer.backward):
            assert len(schedule.transfers) == 0
            assert schedule.num_divisions == 1

    @pytest.mark.parametrize("name", ["ring", "zigzag", "ulysses", "usp", "allgather"])
    @pytest.mark.parametrize("lengths", [[], [0], [1], [3, 0, 2]])
    def test_deals_sequences_shorter_than_the_ranks(self, name: str, lengths: list[int]) -> None:
        answer = arranged(name, lengths, 4)
        assert answer.blocks.token_length.sum() == sum(lengths)
        for schedule in (answer.forward, answer.backward):
            validate_schedule(answer.blocks, *answer.assignment, 4, schedule)


class TestDealing:
    @pytest.mark.property
    @given(
        length=st.integers(0, 70),
        ulysses=st.integers(1, 4),
        ring=st.integers(1, 4),
        zigzag=st.booleans(),
    )
    def test_cuts_shares_at_the_stated_edges(
        self, length: int, ulysses: int, ring: int, zigzag: bool
    ) -> None:
        grid = Grid(ulysses_degree=ulysses, ring_degree=ring, zigzag=zigzag)
        chunks = 2 * ring if zigzag else ring
        edges = [i * length // chunks for i in range(chunks + 1)]
        owner = np.full((length, 2), -1)
        for share in range(ring):
            mine = [share, chunks - 1 - share] if zigzag else [share]
            tokens = [t for chunk in mine for t in range(edges[chunk], edges[chunk + 1])]
            for part in range(ulysses):
                begin = part * len(tokens) // ulysses
                end = (part + 1) * len(tokens) // ulysses
                owner[tokens[begin:end]] = share, part
        start = np.arange(length)
        found = np.stack(grid.place(start, np.full(length, length)), axis=1)
        assert np.array_equal(found, owner)

        cuts = grid.chunk_edges(length)
        changes = np.flatnonzero((np.diff(owner, axis=0) != 0).any(axis=1)) + 1
        assert cuts[0] == 0
        assert cuts[-1] == length
        assert (np.diff(cuts) >= 0).all()
        assert set(changes.tolist()) <= set(cuts.tolist())

    @pytest.mark.parametrize("inner", [True, False])
    def test_every_rank_has_one_place(self, inner: bool) -> None:
        grid = Grid(ulysses_degree=3, ring_degree=4, ulysses_inner=inner)
        ring, ulysses = np.divmod(np.arange(12), 3)
        ranks = grid.rank(ring, ulysses)
        assert sorted(ranks.tolist()) == list(range(12))
        neighbours = ranks[:3] if inner else grid.rank(np.arange(4), np.zeros(4, dtype=np.int64))
        assert (np.diff(neighbours) == 1).all()

    @pytest.mark.parametrize("block_size", [1, 3, 5, 1000])
    def test_zigzag_homes_are_head_and_tail_of_every_sequence(self, block_size: int) -> None:
        answer = arranged("zigzag", [48, 13], 3, block_size=block_size)
        blocks, home = answer.blocks, answer.assignment.token_home
        for sequence, length in enumerate([48, 13]):
            edges = [i * length // 6 for i in range(7)]
            for block in np.flatnonzero(blocks.token_seq == sequence):
                begin = int(blocks.token_start[block])
                end = begin + int(blocks.token_length[block])
                rank = int(home[block])
                assert any(
                    edges[chunk] <= begin and end <= edges[chunk + 1] for chunk in (rank, 5 - rank)
                )

    @pytest.mark.parametrize("name", ["ring", "zigzag", "ulysses", "usp", "allgather"])
    def test_even_inputs_give_even_shares(self, name: str) -> None:
        answer = arranged(name, EVEN, 8)
        tokens = np.bincount(answer.assignment.token_home, weights=answer.blocks.token_length)
        assert set(tokens.tolist()) == {sum(EVEN) / 8}


class TestHeads:
    @pytest.mark.parametrize(
        ("heads", "degree", "query_heads"),
        [
            ((7, 7), 4, [2, 2, 2, 1]),  # DeepSpeed-6392
            ((8, 4), 4, [2, 2, 2, 2]),
            ((8, 2), 4, [2, 2, 2, 2]),
            ((6, 3), 4, [2, 2, 1, 1]),
            ((6, 2), 4, [2, 2, 1, 1]),
            ((5, 1), 3, [2, 2, 1]),
            ((4, 4), 1, [4]),
        ],
    )
    def test_are_dealt_evenly_and_each_query_head_once(
        self, heads: tuple[int, int], degree: int, query_heads: list[int]
    ) -> None:
        spec = AttentionSpec(num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=4)
        groups, owner = deal_heads(spec, degree)
        assert np.bincount(owner, weights=groups.q_count).tolist() == query_heads
        covered = [
            head
            for start, count in zip(groups.q_start, groups.q_count, strict=True)
            for head in range(start, start + count)
        ]
        assert covered == list(range(heads[0]))
        ratio = heads[0] // heads[1]
        assert np.array_equal(groups.kv_head, groups.q_start // ratio)
        assert ((groups.q_start + groups.q_count - 1) // ratio == groups.kv_head).all()

    def test_key_heads_are_replicated_where_there_are_fewer_than_ranks(self) -> None:
        """prime-rl-3042: the key head of rank r is r * key heads // ranks."""
        groups, owner = deal_heads(AttentionSpec(num_q_heads=8, num_kv_heads=2, head_dim=4), 4)
        assert owner.tolist() == [0, 1, 2, 3]
        assert groups.kv_head.tolist() == [rank * 2 // 4 for rank in range(4)]

    @pytest.mark.parametrize(
        ("heads", "length", "devices"),
        [((8, 2), 24, 4), ((7, 7), 23, 4), ((6, 2), 21, 4), ((5, 1), 17, 3)],
    )
    def test_gradients_of_replicas_add_up(
        self, heads: tuple[int, int], length: int, devices: int
    ) -> None:
        """prime-rl-3042 and DeepSpeed-6392: replicated and uneven heads, exact."""
        spec = AttentionSpec(
            num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=8, dtype="float64"
        )
        batch, cluster = Batch([length, 5]), Cluster(devices_per_node=devices)
        plan = dcp.plan(batch, spec, cluster, block_size=4, baseline="ulysses")
        check_plan(plan)
        check_numbers(batch, plan)

    def test_more_ranks_than_query_heads_are_refused(self) -> None:
        with pytest.raises(SpecError, match=r"16 .* query heads.* 8.*ring"):
            arranged("ulysses", [64], 16)
        with pytest.raises(SpecError, match="query heads"):
            arranged("usp:ulysses_degree=16", [64], 16)


class TestBalance:
    @pytest.mark.parametrize("name", ["zigzag", "allgather", "usp"])
    def test_head_and_tail_chunks_share_causal_work_evenly(self, name: str) -> None:
        """ring-flash-attention-52: at most 1.05 on 8 ranks."""
        answer = arranged(name, [8192], 8)
        placement = evaluate(
            PlacementProblem.of(answer.blocks, Cluster(devices_per_node=8)), answer.assignment
        )
        assert placement.compute_imbalance <= 1.001
        assert placement.token_imbalance == 1
        assert placement.feasible

    def test_contiguous_chunks_give_the_last_rank_twice_the_mean(self) -> None:
        """ring-flash-attention-52: 2R / (R + 1) = 1.78 in chunks; exact pairs: (2R - 1) / R."""
        answer = arranged("ring", [8192], 8)
        cluster = Cluster(devices_per_node=8)
        placement = evaluate(PlacementProblem.of(answer.blocks, cluster), answer.assignment)
        chunks = np.bincount(answer.assignment.comp_device)
        assert chunks.max() / chunks.mean() == pytest.approx(16 / 9)
        assert placement.compute_imbalance == pytest.approx(15 / 8, rel=1e-3)
        assert not placement.feasible
        assert placement.violations

    @pytest.mark.parametrize("name", ["zigzag", "allgather"])
    def test_every_document_is_dealt_for_itself(self, name: str) -> None:
        """pytorch-189902: documents of 4 and 12 tokens, 44 of 88 pairs a rank."""
        one_head = AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=8)
        answer = arranged(name, [4, 12], 2, spec=one_head)
        assert load_by_device(answer, 2).tolist() == [44, 44]
