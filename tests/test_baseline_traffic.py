"""What each static scheme sends and when: published bytes, hops and order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrangements import EVEN, GQA, arranged, hop_chain, rows_of, sent_bytes, total_bytes

from dcp import masks
from dcp.baselines.usp import USP
from dcp.batch import Batch
from dcp.blocks import Kind
from dcp.cluster import Cluster
from dcp.errors import SpecError
from dcp.plan_request import PlanRequest

RINGS = ("ring", "zigzag")


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
        request = PlanRequest(
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
