"""Static schemes: published bytes, balance and order, and any batch that is asked of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp import masks
from dcp.baseline import Arrangement, BaselineRequest
from dcp.baselines.dealing import Grid, deal_heads
from dcp.baselines.usp import USP
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import Kind
from dcp.cluster import Cluster
from dcp.errors import SpecError
from dcp.placement import PlacementProblem, evaluate
from dcp.registry import create
from dcp.schedule_validation import validate_schedule
from dcp.scheduling import Schedule
from dcp.verification import check_plan, strategies
from dcp.verification.local_run import check_numbers

GQA = AttentionSpec(num_q_heads=8, num_kv_heads=4, head_dim=16)
RINGS = ("ring", "zigzag")
EVEN = [64, 128]  # lengths that 2 * 8 ranks divide


def arranged(
    name: str,
    lengths: list[int],
    devices: int,
    *,
    mask: Any = None,
    spec: AttentionSpec = GQA,
    block_size: int = 1 << 20,
    kv_lengths: list[int] | None = None,
) -> Arrangement:
    request = BaselineRequest(
        batch=Batch(lengths, kv_lengths, mask=mask),
        spec=spec,
        cluster=Cluster(devices_per_node=devices),
        block_size=block_size,
    )
    return create("baselines", name).arrange(request)


def sent_bytes(answer: Arrangement, schedule: Schedule, kind: Kind, devices: int) -> np.ndarray:
    """Bytes of a kind that each device sends, [devices]."""
    moves = schedule.transfers
    size = moves.bytes_of(answer.blocks) * (moves.kind == kind)
    return np.bincount(moves.src, weights=size, minlength=devices)


def total_bytes(answer: Arrangement, kind: Kind) -> int:
    return int(answer.blocks.data_bytes[kind].sum())


def hop_chain(schedule: Schedule, kind: Kind, block: int) -> list[tuple[int, int, int]]:
    """(step, src, dst) of one block's first head group, in order."""
    moves = schedule.transfers
    chosen = (moves.kind == kind) & (moves.block == block) & (moves.group == 0)
    columns = (moves.step[chosen], moves.src[chosen], moves.dst[chosen])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def rows_of(schedule: Schedule) -> list[tuple[int, ...]]:
    moves = schedule.transfers
    columns = (moves.kind, moves.block, moves.group, moves.src, moves.dst, moves.step)
    return list(zip(*(column.tolist() for column in columns), strict=True))


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
        request = BaselineRequest(batch=batch, spec=spec, cluster=cluster, block_size=size)
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


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", RINGS)
class TestRings:
    """Liu et al. 2023, arXiv 2310.01889, section 3: blocks of KV go once round the ring."""

    @pytest.mark.parametrize("block_size", [5, 1 << 20])
    def test_forward_bytes(self, name: str, devices: int, block_size: int) -> None:
        """Each device sends P - 1 chunks of KV: (P - 1) / P of all KV."""
        answer = arranged(name, EVEN, devices, block_size=block_size)
        sent = sent_bytes(answer, answer.forward, Kind.KV, devices)
        expected = total_bytes(answer, Kind.KV) * (devices - 1) / devices
        assert sent.tolist() == [expected] * devices
        assert set(answer.forward.transfers.kind.tolist()) == {Kind.KV}

    @pytest.mark.parametrize("mask", [masks.causal(), masks.full()])
    def test_backward_bytes(self, name: str, devices: int, mask: masks.Mask) -> None:
        """KV again; dKV makes P hops, so each device sends P chunks of it."""
        answer = arranged(name, EVEN, devices, mask=mask)
        kv = sent_bytes(answer, answer.backward, Kind.KV, devices)
        dkv = sent_bytes(answer, answer.backward, Kind.DKV, devices)
        assert kv.tolist() == [total_bytes(answer, Kind.KV) * (devices - 1) / devices] * devices
        assert dkv.tolist() == [total_bytes(answer, Kind.DKV)] * devices
        assert set(answer.backward.transfers.kind.tolist()) == {Kind.KV, Kind.DKV}

    def test_keys_go_round_where_the_mask_needs_nothing_of_them(
        self, name: str, devices: int
    ) -> None:
        dense = arranged(name, EVEN, devices, mask=masks.full())
        nothing = [masks.from_dense(np.zeros((length, length), dtype=bool)) for length in EVEN]
        for mask in (masks.sliding_window(2), nothing):
            sparse = arranged(name, EVEN, devices, mask=mask)
            assert rows_of(sparse.forward) == rows_of(dense.forward)

    def test_hops_lead_from_neighbour_to_neighbour(self, name: str, devices: int) -> None:
        """Hop j of KV at step j; of dKV at step j + 1, the last one home."""
        answer = arranged(name, EVEN, devices)
        for block, home in enumerate(answer.assignment.token_home.tolist()):
            hops = [((home + j - 1) % devices, (home + j) % devices) for j in range(1, devices + 1)]
            keys = [(j + 1, *hop) for j, hop in enumerate(hops[:-1])]
            gradients = [(j + 2, *hop) for j, hop in enumerate(hops)]
            assert hop_chain(answer.forward, Kind.KV, block) == keys
            assert hop_chain(answer.backward, Kind.KV, block) == keys
            assert hop_chain(answer.backward, Kind.DKV, block) == gradients

    def test_work_runs_at_the_query_when_the_keys_come_by(self, name: str, devices: int) -> None:
        answer = arranged(name, EVEN, devices)
        blocks, (home, device) = answer.blocks, answer.assignment
        assert np.array_equal(device, home[blocks.comp_q])
        distance = (home[blocks.comp_q] - home[blocks.comp_kv]) % devices
        for schedule in (answer.forward, answer.backward):
            assert schedule.num_divisions == devices
            assert np.array_equal(schedule.comp_division, distance)

    def test_a_gradient_starts_at_the_first_rank_that_adds_to_it(
        self, name: str, devices: int
    ) -> None:
        """Keys that only the last query sees: nothing to send before its home is reached."""
        dense = np.zeros((64, 64), dtype=bool)
        dense[-1, 0] = True
        answer = arranged(name, [64], devices, mask=masks.from_dense(dense))
        chain = hop_chain(answer.backward, Kind.DKV, 0)
        last_home = devices - 1 if name == "ring" else 0
        assert chain[0][1] == last_home
        assert chain[-1][2] == 0
        assert len(chain) == (1 if name == "ring" else devices)


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


@pytest.mark.parametrize("devices", [2, 4])
class TestUlysses:
    """Jacobs et al. 2023, arXiv 2309.14509, section 3.2: all-to-alls of Q, K, V and of O."""

    def test_forward_bytes(self, devices: int) -> None:
        """In each all-to-all a device sends (P - 1) / P of its share of the tensor."""
        answer = arranged("ulysses", EVEN, devices)
        for kind in (Kind.Q, Kind.KV, Kind.O):
            share = total_bytes(answer, kind) / devices
            sent = sent_bytes(answer, answer.forward, kind, devices)
            assert sent.tolist() == [share * (devices - 1) / devices] * devices

    def test_backward_bytes(self, devices: int) -> None:
        """dO and the inputs one way, dQ and dKV the other."""
        answer = arranged("ulysses", EVEN, devices)
        for kind in (Kind.Q, Kind.KV, Kind.DO, Kind.DQ, Kind.DKV):
            share = total_bytes(answer, kind) / devices
            sent = sent_bytes(answer, answer.backward, kind, devices)
            assert sent.tolist() == [share * (devices - 1) / devices] * devices

    def test_work_lies_between_the_exchanges(self, devices: int) -> None:
        answer = arranged("ulysses", EVEN, devices)
        for schedule, results in (
            (answer.forward, [Kind.O]),
            (answer.backward, [Kind.DQ, Kind.DKV]),
        ):
            moves = schedule.transfers
            is_result = np.isin(moves.kind, results)
            assert set(schedule.comp_division.tolist()) == {1}
            assert set(moves.step[~is_result].tolist()) == {1}
            assert set(moves.step[is_result].tolist()) == {3}

    def test_heads_are_computed_whole(self, devices: int) -> None:
        answer = arranged("ulysses", EVEN, devices, block_size=7)
        owner = answer.blocks.comp_group * devices // GQA.num_kv_heads
        assert np.array_equal(answer.assignment.comp_device, owner)


class TestUSP:
    """Fang & Zhao 2024, arXiv 2405.07719: Ulysses inside, rings between the groups."""

    @pytest.mark.parametrize("layout", ["ulysses_inner", "ring_inner"])
    @pytest.mark.parametrize("ring", ["zigzag", "contiguous"])
    @pytest.mark.parametrize("ulysses", [1, 2, 4])
    def test_bytes(self, ulysses: int, ring: str, layout: str) -> None:
        """All-to-alls: (U - 1) / U of the own Q, KV and O. Ring: (R - 1) / P of all KV."""
        devices, rounds = 8, 8 // ulysses
        name = f"usp:ulysses_degree={ulysses},ring={ring},layout={layout}"
        answer = arranged(name, EVEN, devices)
        exchanged = (ulysses - 1) / ulysses / devices
        passed = total_bytes(answer, Kind.KV) * (rounds - 1) / devices
        for kind in (Kind.Q, Kind.O):
            sent = sent_bytes(answer, answer.forward, kind, devices)
            assert sent.tolist() == [total_bytes(answer, kind) * exchanged] * devices
        for schedule in (answer.forward, answer.backward):
            sent = sent_bytes(answer, schedule, Kind.KV, devices)
            assert sent.tolist() == [total_bytes(answer, Kind.KV) * exchanged + passed] * devices

    @pytest.mark.parametrize("ulysses", [1, 2, 4])
    def test_gradient_bytes(self, ulysses: int) -> None:
        """dKV: R hops of the share for the own heads, then (U - 1) / U of it sent home."""
        devices, rounds = 8, 8 // ulysses
        answer = arranged(f"usp:ulysses_degree={ulysses}", EVEN, devices, mask=masks.full())
        total = total_bytes(answer, Kind.DKV) / devices
        sent = sent_bytes(answer, answer.backward, Kind.DKV, devices)
        assert sent.tolist() == [total * (rounds + (ulysses - 1) / ulysses)] * devices

    def test_forwards_keys_from_the_rank_that_received_them(self) -> None:
        answer = arranged("usp:ulysses_degree=2", EVEN, 4, block_size=8)
        home, moves = answer.assignment.token_home, answer.forward.transfers
        passed = (moves.kind == Kind.KV) & (moves.step == 2)
        assert passed.any()
        first = (moves.kind == Kind.KV) & (moves.step == 1)
        received = set(zip(moves.block[first], moves.group[first], moves.dst[first], strict=True))
        for index in np.flatnonzero(passed):
            block, group, src = moves.block[index], moves.group[index], moves.src[index]
            assert src == home[block] or (block, group, src) in received
        assert (moves.src[passed] != home[moves.block[passed]]).any()

    @pytest.mark.parametrize("layout", ["ulysses_inner", "ring_inner"])
    @pytest.mark.parametrize("lengths", [EVEN, [50, 3, 0, 7]])
    @pytest.mark.parametrize(
        ("options", "same"),
        [
            ("ulysses_degree=1,ring=zigzag", "zigzag"),
            ("ulysses_degree=1,ring=contiguous", "ring"),
            ("ulysses_degree=4,ring=contiguous", "ulysses"),
            ("ulysses_degree=4,ring=zigzag", "ulysses"),
        ],
    )
    def test_at_its_ends_is_the_ring_and_ulysses(
        self, options: str, same: str, lengths: list[int], layout: str
    ) -> None:
        answer = arranged(f"usp:{options},layout={layout}", lengths, 4, block_size=6)
        other = arranged(same, lengths, 4, block_size=6)
        if options != "ulysses_degree=4,ring=zigzag":
            # With one zigzag ring the middle edge is a cut too, so blocks may be shorter.
            assert np.array_equal(answer.assignment.token_home, other.assignment.token_home)
            assert rows_of(answer.forward) == rows_of(other.forward)
            assert rows_of(answer.backward) == rows_of(other.backward)
        for kind in (Kind.Q, Kind.KV, Kind.O):
            sent = sent_bytes(answer, answer.forward, kind, 4)
            assert np.array_equal(sent, sent_bytes(other, other.forward, kind, 4))

    @pytest.mark.parametrize(
        ("options", "devices", "degrees"),
        [
            ({}, 8, (4, 2)),  # 4 key heads
            ({}, 6, (2, 3)),
            ({}, 7, (1, 7)),
            ({"ulysses_degree": 8}, 8, (8, 1)),
            ({"ring_degree": 8}, 8, (1, 8)),
            ({"ulysses_degree": 2, "ring_degree": 3}, 6, (2, 3)),
        ],
    )
    def test_degrees_left_open_are_derived(
        self, options: dict[str, int], devices: int, degrees: tuple[int, int]
    ) -> None:
        request = BaselineRequest(
            batch=Batch(EVEN), spec=GQA, cluster=Cluster(devices_per_node=devices), block_size=64
        )
        explicit = USP(ulysses_degree=degrees[0], ring_degree=degrees[1]).arrange(request)
        derived = USP(**options).arrange(request)
        assert rows_of(derived.forward) == rows_of(explicit.forward)
        assert derived.forward.num_divisions == degrees[1] + (degrees[0] > 1)

    @pytest.mark.parametrize(
        "options", ["ulysses_degree=3", "ring_degree=5", "ulysses_degree=2,ring_degree=2"]
    )
    def test_degrees_that_do_not_fit_the_ranks_are_refused(self, options: str) -> None:
        with pytest.raises(SpecError, match="8 ranks"):
            arranged(f"usp:{options}", EVEN, 8)

    @pytest.mark.parametrize(
        "options",
        [
            {"layout": "inside"},
            {"ring": "striped"},
            {"ulysses_degree": 0},
            {"ring_degree": -1},
            {"ulysses_degree": 2.0},
        ],
    )
    def test_illegal_options_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(SpecError, match=next(iter(options))):
            USP(**options)


@pytest.mark.parametrize("devices", [2, 4])
class TestAllGather:
    """Dubey et al. 2024, arXiv 2407.21783, section 3.3.2: KV is all-gathered."""

    def test_forward_bytes(self, devices: int) -> None:
        """A device sends its KV to P - 1 others and receives (P - 1) / P of all KV."""
        answer = arranged("allgather", EVEN, devices)
        moves = answer.forward.transfers
        size = moves.bytes_of(answer.blocks)
        expected = total_bytes(answer, Kind.KV) * (devices - 1) / devices
        assert np.bincount(moves.src, weights=size).tolist() == [expected] * devices
        assert np.bincount(moves.dst, weights=size).tolist() == [expected] * devices
        assert set(moves.step.tolist()) == {1}

    def test_backward_bytes(self, devices: int) -> None:
        """KV again; the reduce-scatter of dKV sends as much."""
        answer = arranged("allgather", EVEN, devices, mask=masks.full())
        for kind in (Kind.KV, Kind.DKV):
            expected = total_bytes(answer, kind) * (devices - 1) / devices
            sent = sent_bytes(answer, answer.backward, kind, devices)
            assert sent.tolist() == [expected] * devices
