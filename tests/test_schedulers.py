"""Schedulers answer with schedules that can be executed, and validation refuses all others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp import masks
from dcp.backends.paper_schedule import PaperSchedule
from dcp.backends.sequential_schedule import SequentialSchedule
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import BlockGraph, Kind
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.errors import ScheduleError, SpecError
from dcp.plan_request import PlanRequest
from dcp.registry import create
from dcp.schedule_validation import validate_schedule
from dcp.scheduling import (
    KEY_INPUT,
    KEY_RESULT,
    PHASES,
    QUERY_INPUTS,
    QUERY_RESULT,
    RESULTS,
    Phase,
    Schedule,
    SchedulingProblem,
    Transfers,
)
from dcp.verification import strategies

SPEC = AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8)
COLUMNS = ("kind", "block", "group", "src", "dst", "step")


def problem_of(
    blocks: BlockGraph, devices: int, phase: Phase, seed: int = 0, at_home: bool = False
) -> SchedulingProblem:
    """Blocks placed at random; with `at_home` all work stays where its queries are."""
    random = np.random.default_rng(seed)
    home = random.integers(0, devices, blocks.num_token_blocks)
    device = random.integers(0, devices, len(blocks.comp_q))
    return SchedulingProblem(
        blocks=blocks,
        token_home=home,
        comp_device=home[blocks.comp_q] if at_home else device,
        cluster=Cluster(devices_per_node=devices),
        phase=phase,
    )


def validate(problem: SchedulingProblem, schedule: Schedule) -> None:
    validate_schedule(
        problem.blocks,
        problem.token_home,
        problem.comp_device,
        problem.cluster.num_devices,
        schedule,
    )


def rows_of(transfers: Transfers) -> np.ndarray:
    return np.stack([getattr(transfers, name) for name in COLUMNS], axis=1)


def with_rows(schedule: Schedule, rows: np.ndarray) -> Schedule:
    return replace(schedule, transfers=Transfers.of(rows))


def executes(problem: SchedulingProblem, schedule: Schedule) -> bool:
    """Play a schedule through, one item at a time: the rule of time taken at its word."""
    blocks, home = problem.blocks, problem.token_home
    held, sums, moving = set(), {}, []
    rows = rows_of(schedule.transfers).tolist()
    comps = list(
        zip(
            blocks.comp_q.tolist(),
            blocks.comp_kv.tolist(),
            blocks.comp_group.tolist(),
            problem.comp_device.tolist(),
            schedule.comp_division.tolist(),
            strict=True,
        )
    )

    def has(kind: int, block: int, group: int, rank: int) -> bool:
        return home[block] == rank or (kind, block, group, rank) in held

    for now in range(max([schedule.num_divisions, *(row[5] for row in rows)]) + 1):
        for kind, block, group, rank, content in moving:
            if kind in RESULTS:
                sums.setdefault((kind, block, group, rank), Counter()).update(content)
            elif has(kind, block, group, rank):
                return False
            else:
                held.add((kind, block, group, rank))
        moving = []
        for kind, block, group, src, dst, step in rows:
            if step == now + 1:
                content = sums.pop((kind, block, group, src), None)
                if src == dst or not (content if kind in RESULTS else has(kind, block, group, src)):
                    return False
                moving.append((kind, block, group, dst, content))
        for number, (q, kv, group, rank, division) in enumerate(comps):
            if division == now:
                needs = [(kind, q) for kind in QUERY_INPUTS[schedule.phase]] + [(KEY_INPUT, kv)]
                if not all(has(kind, block, group, rank) for kind, block in needs):
                    return False
                results = [(QUERY_RESULT[schedule.phase], q)]
                results += [(KEY_RESULT, kv)] if schedule.phase == "backward" else []
                for kind, block in results:
                    sums.setdefault((kind, block, group, rank), Counter()).update([number])
    return all(home[block] == rank for _, block, _, rank in sums)


PROBLEM_BLOCKS = cut(Batch([40, 9]), SPEC, 8)


@pytest.fixture(params=PHASES)
def problem(request: pytest.FixtureRequest) -> SchedulingProblem:
    return problem_of(PROBLEM_BLOCKS, 3, request.param)


class TestAnySchedule:
    """What holds for every scheduler."""

    @pytest.mark.property
    @given(data=st.data())
    def test_can_be_executed_whatever_the_placement(self, data: st.DataObject) -> None:
        size = data.draw(strategies.block_sizes())
        blocks = cut(data.draw(strategies.batches(size)), data.draw(strategies.specs()), size)
        scheduler = create("schedulers", data.draw(strategies.schedulers()))
        devices, seed = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 99))
        at_home = data.draw(st.booleans())
        for phase in PHASES:
            problem = problem_of(blocks, devices, phase, seed, at_home)
            schedule = scheduler.schedule(problem)
            validate(problem, schedule)
            assert executes(problem, schedule)

    @pytest.mark.parametrize("request_", ["sequential", "paper", "paper:divisions=1"])
    def test_brings_each_input_once_and_each_result_home_once(
        self, problem: SchedulingProblem, request_: str
    ) -> None:
        transfers = create("schedulers", request_).schedule(problem).transfers
        blocks, home, device = problem.blocks, problem.token_home, problem.comp_device
        query_away, key_away = device != home[blocks.comp_q], device != home[blocks.comp_kv]
        queries = len(set(zip(*_touches(problem, blocks.comp_q, query_away), strict=True)))
        keys = len(set(zip(*_touches(problem, blocks.comp_kv, key_away), strict=True)))
        backward = problem.phase == "backward"
        expected = {Kind.KV: keys} | dict.fromkeys(QUERY_INPUTS[problem.phase], queries)
        expected[QUERY_RESULT[problem.phase]] = queries
        if backward:
            expected[KEY_RESULT] = keys
        assert Counter(transfers.kind.tolist()) == expected

    @pytest.mark.parametrize("request_", ["sequential", "paper", "paper:divisions=1"])
    def test_on_one_device_is_one_division_without_transfers(self, request_: str) -> None:
        for phase in PHASES:
            schedule = create("schedulers", request_).schedule(problem_of(PROBLEM_BLOCKS, 1, phase))
            assert schedule.num_divisions == 1
            assert len(schedule.transfers) == 0
            assert not schedule.comp_division.any()

    @pytest.mark.parametrize("request_", ["sequential", "paper", "paper:divisions=1"])
    @pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
    def test_of_nothing_is_empty(self, request_: str, lengths: list[int]) -> None:
        for phase in PHASES:
            problem = problem_of(cut(Batch(lengths), SPEC, 8), 4, phase)
            schedule = create("schedulers", request_).schedule(problem)
            validate(problem, schedule)
            assert len(schedule.transfers) == len(schedule.comp_division) == 0


def _touches(
    problem: SchedulingProblem, block: np.ndarray, away: np.ndarray
) -> tuple[list[int], list[int], list[int]]:
    columns = (block, problem.blocks.comp_group, problem.comp_device)
    first, second, third = (column[away].tolist() for column in columns)
    return first, second, third


class TestSequential:
    def test_has_all_work_between_all_inputs_and_all_results(
        self, problem: SchedulingProblem
    ) -> None:
        schedule = SequentialSchedule().schedule(problem)
        result = np.isin(schedule.transfers.kind, RESULTS)
        assert schedule.num_divisions == 2
        assert set(schedule.comp_division.tolist()) == {1}
        assert set(schedule.transfers.step[~result].tolist()) == {1}
        assert set(schedule.transfers.step[result].tolist()) == {3}

    def test_is_what_the_paper_s_is_with_one_division(self, problem: SchedulingProblem) -> None:
        one = PaperSchedule(divisions=1).schedule(problem)
        sequential = SequentialSchedule().schedule(problem)
        assert np.array_equal(one.comp_division, sequential.comp_division)
        assert np.array_equal(rows_of(one.transfers), rows_of(sequential.transfers))


class TestPaper:
    def test_computes_first_what_needs_nothing_from_elsewhere(
        self, problem: SchedulingProblem
    ) -> None:
        schedule = PaperSchedule().schedule(problem)
        blocks, home = problem.blocks, problem.token_home
        local = (problem.comp_device == home[blocks.comp_q]) & (
            problem.comp_device == home[blocks.comp_kv]
        )
        assert np.array_equal(schedule.comp_division == 0, local)

    def test_runs_work_in_the_division_in_which_its_last_input_arrives(
        self, problem: SchedulingProblem
    ) -> None:
        schedule = PaperSchedule().schedule(problem)
        moves, blocks = schedule.transfers, problem.blocks
        arrival = {
            (kind, block, group, dst): step
            for kind, block, group, _, dst, step in rows_of(moves).tolist()
        }
        for comp, division in enumerate(schedule.comp_division.tolist()):
            group, device = int(blocks.comp_group[comp]), int(problem.comp_device[comp])
            arrivals = (
                arrival.get((Kind.Q, int(blocks.comp_q[comp]), group, device), 0),
                arrival.get((Kind.KV, int(blocks.comp_kv[comp]), group, device), 0),
            )
            assert division == max(arrivals)

    def test_sends_results_home_after_the_last_division(self, problem: SchedulingProblem) -> None:
        schedule = PaperSchedule().schedule(problem)
        result = np.isin(schedule.transfers.kind, RESULTS)
        assert set(schedule.transfers.step[result].tolist()) == {schedule.num_divisions + 1}

    @pytest.mark.parametrize("divisions", [2, 3, 4, 7])
    @pytest.mark.parametrize("phase", PHASES)
    def test_spreads_what_a_link_and_a_device_bring_over_the_divisions(
        self, divisions: int, phase: Phase
    ) -> None:
        problem = problem_of(cut(Batch([3000, 700]), SPEC, 16), 4, phase)
        schedule = PaperSchedule(divisions=divisions).schedule(problem)
        moves, rounds = schedule.transfers, divisions - 1
        size = moves.bytes_of(problem.blocks) * ~np.isin(moves.kind, RESULTS)
        most = problem.blocks.data_bytes[[*QUERY_INPUTS[phase], Kind.KV]].max(axis=(1, 2)).sum()
        assert schedule.num_divisions == divisions
        for limit in (moves.src * 4 + moves.dst, moves.dst):
            for value in np.unique(limit):
                sizes, steps = size[limit == value], moves.step[limit == value]
                for step in range(1, rounds):  # the last one takes the rest
                    brought = sizes[steps <= step].sum()
                    assert brought < sizes.sum() * step / rounds + most

    def test_moves_a_block_larger_than_its_share_before_the_last_division(self) -> None:
        blocks = cut(Batch([16]), SPEC, 8)  # two token blocks: one KV block for the other device
        problem = SchedulingProblem(
            blocks=blocks,
            token_home=np.array([0, 1]),
            comp_device=np.array([0, 1])[blocks.comp_q],
            cluster=Cluster(devices_per_node=2),
            phase="forward",
        )
        schedule = PaperSchedule(divisions=4).schedule(problem)
        assert 1 in schedule.transfers.step

    def test_has_no_divisions_that_nothing_fills(self) -> None:
        problem = problem_of(cut(Batch([16]), SPEC, 8), 2, "forward", seed=1)
        schedule = PaperSchedule(divisions=50).schedule(problem)
        assert set(schedule.comp_division.tolist()) == set(range(schedule.num_divisions))

    @pytest.mark.parametrize("divisions", [0, -3, 1.5])
    def test_refuses_less_than_one_division(self, divisions: int) -> None:
        with pytest.raises(SpecError, match="divisions"):
            PaperSchedule(divisions=divisions)

    def test_takes_divisions_in_a_request(self) -> None:
        assert create("schedulers", "paper:divisions=7") == PaperSchedule(divisions=7)
        with pytest.raises(SpecError, match="divisions"):
            create("schedulers", "paper:divisions=0")


def _first(schedule: Schedule, *kinds: Kind) -> int:
    return int(np.isin(schedule.transfers.kind, kinds).argmax())


class TestValidation:
    """Damaged schedules are refused, and the fault is named."""

    def refused(self, problem: SchedulingProblem, schedule: Schedule, *words: str) -> None:
        with pytest.raises(ScheduleError) as caught:
            validate(problem, schedule)
        assert all(word in str(caught.value) for word in words), str(caught.value)

    def test_any_transfer_dropped(self, problem: SchedulingProblem) -> None:
        schedule = PaperSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        for index, (kind, block, group, src, dst, _) in enumerate(rows.tolist()):
            rank = src if kind in RESULTS else dst
            words = (Kind(kind).name, f"block {block}, group {group}", f"rank {rank}")
            self.refused(problem, with_rows(schedule, np.delete(rows, index, axis=0)), *words)

    def test_an_input_that_arrives_too_late(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        rows[_first(schedule, Kind.Q), 5] = 2
        self.refused(problem, with_rows(schedule, rows), "division 1", "has not received Q")

    def test_a_result_sent_before_it_is_computed(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        rows[_first(schedule, *RESULTS), 5] = 2
        self.refused(problem, with_rows(schedule, rows), "step 2", "nothing to send")

    def test_a_duplicate_receive(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        again = rows[_first(schedule, Kind.KV)].copy()
        again[5] = 2
        rows = np.concatenate([rows, again[None]])
        self.refused(problem, with_rows(schedule, rows), "sends KV", "received it before")

    def test_a_home_that_receives_its_own_input(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        back = rows[_first(schedule, Kind.Q)][[0, 1, 2, 4, 3, 5]]
        back[5] = 2
        rows = np.concatenate([rows, back[None]])
        self.refused(problem, with_rows(schedule, rows), "sends Q", "is its home")

    def test_a_source_that_does_not_hold_what_it_sends(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        index = _first(schedule, Kind.KV)
        rows[index, 3] = 3 - rows[index, 3] - rows[index, 4]  # the third of three ranks
        rank = f"rank {rows[index, 3]} sends KV"
        self.refused(problem, with_rows(schedule, rows), rank, "is not its home")

    def test_a_relay_in_the_step_of_its_own_arrival(self) -> None:
        problem, relayed = _relayed(relay_step=2)
        validate(problem, relayed)
        problem, relayed = _relayed(relay_step=1)
        self.refused(problem, relayed, "step 1", "rank 1 sends KV", "in an earlier step")

    def test_a_result_that_ends_away_from_home(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        index = _first(schedule, *RESULTS)
        rows[index, 4] = 3 - rows[index, 3] - rows[index, 4]
        rank = f"rank {rows[index, 4]} holds a partial"
        self.refused(problem, with_rows(schedule, rows), rank, "must end at the home")

    def test_a_result_sent_to_two_ranks_at_once(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        other = rows[_first(schedule, *RESULTS)].copy()
        other[4] = 3 - other[3] - other[4]
        rows = np.concatenate([rows, other[None]])
        self.refused(problem, with_rows(schedule, rows), "also sends elsewhere")

    @pytest.mark.parametrize(
        ("column", "value", "word"),
        [
            ("kind", 9, "kind 9"),
            ("block", 99, "block must be 0"),
            ("group", -1, "group must be 0"),
            ("src", 3, "src must be 0"),
            ("dst", 7, "dst must be 0"),
            ("step", 0, "steps start at 1"),
        ],
    )
    def test_values_out_of_range(
        self, problem: SchedulingProblem, column: str, value: int, word: str
    ) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        rows[0, COLUMNS.index(column)] = value
        self.refused(problem, with_rows(schedule, rows), word)

    def test_a_rank_that_sends_to_itself(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        rows[0, 3] = rows[0, 4]
        self.refused(problem, with_rows(schedule, rows), "itself")

    def test_a_kind_that_does_not_move_in_this_phase(self) -> None:
        problem = problem_of(PROBLEM_BLOCKS, 3, "forward")
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        rows[0, 0] = Kind.DO
        self.refused(problem, with_rows(schedule, rows), "DO", "does not move forward")

    def test_a_kind_that_the_block_does_not_carry(self) -> None:
        problem = problem_of(cut(Batch([8], [8]), SPEC, 8), 3, "forward")
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)
        rows[0, :2] = Kind.Q, 1
        self.refused(problem, with_rows(schedule, rows), "does not carry")

    def test_transfers_out_of_order(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        rows = rows_of(schedule.transfers)[::-1]
        turned = Transfers(**dict(zip(COLUMNS, rows.T, strict=True)))
        self.refused(problem, replace(schedule, transfers=turned), "Transfers.of")

    def test_wrong_shapes_divisions_and_phases(self, problem: SchedulingProblem) -> None:
        schedule = SequentialSchedule().schedule(problem)
        short = replace(schedule, comp_division=schedule.comp_division[1:])
        self.refused(problem, short, "comp_division", "shape")
        real = replace(schedule, comp_division=schedule.comp_division * 1.0)
        self.refused(problem, real, "comp_division", "float64")
        self.refused(problem, replace(schedule, num_divisions=1), "division 1", "0 … 0")
        self.refused(problem, replace(schedule, num_divisions=0), "num_divisions")
        self.refused(problem, replace(schedule, phase="sideways"), "sideways")

    @pytest.mark.property
    @given(data=st.data())
    def test_refuses_exactly_what_cannot_be_played_through(self, data: st.DataObject) -> None:
        phase = data.draw(st.sampled_from(PHASES))
        blocks, problem, schedule = _some_schedule(data, phase)
        rows = rows_of(schedule.transfers)
        for _ in range(data.draw(st.integers(0, 2))):
            rows = _damaged(data, rows, blocks, problem.cluster.num_devices)
        damaged = with_rows(schedule, rows)
        if executes(problem, damaged):
            validate(problem, damaged)
        else:
            with pytest.raises(ScheduleError):
                validate(problem, damaged)


def _relayed(relay_step: int) -> tuple[SchedulingProblem, Schedule]:
    """KV of block 0 goes from rank 0 over rank 1 to rank 2, where block 1 is computed."""
    blocks = cut(Batch([8], [8]), AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=8), 8)
    problem = SchedulingProblem(
        blocks=blocks,
        token_home=np.array([2, 0]),
        comp_device=np.array([2]),
        cluster=Cluster(devices_per_node=3),
        phase="forward",
    )
    rows = np.array([(Kind.KV, 1, 0, 0, 1, 1), (Kind.KV, 1, 0, 1, 2, relay_step)])
    schedule = Schedule(
        phase="forward",
        num_divisions=3,
        comp_division=np.array([2]),
        transfers=Transfers.of(rows),
    )
    return problem, schedule


def _some_schedule(
    data: st.DataObject, phase: Phase
) -> tuple[BlockGraph, SchedulingProblem, Schedule]:
    """A scheduler's or a ring's schedule of a small batch."""
    batch = Batch([17], mask=data.draw(st.sampled_from([masks.causal(), masks.full()])))
    devices = data.draw(st.integers(2, 4))
    name = data.draw(st.sampled_from(["sequential", "paper", "ring", "usp"]))
    if name in ("sequential", "paper"):
        problem = problem_of(cut(batch, SPEC, 6), devices, phase, data.draw(st.integers(0, 9)))
        return problem.blocks, problem, create("schedulers", name).schedule(problem)
    cluster = Cluster(devices_per_node=devices)
    request = PlanRequest(batch=batch, spec=SPEC, cluster=cluster, block_size=6)
    answer = create("baselines", name).arrange(request)
    problem = SchedulingProblem(
        blocks=answer.blocks, **answer.assignment._asdict(), cluster=cluster, phase=phase
    )
    return answer.blocks, problem, answer.forward if phase == "forward" else answer.backward


def _damaged(data: st.DataObject, rows: np.ndarray, blocks: BlockGraph, devices: int) -> np.ndarray:
    """One transfer dropped, doubled at another step, or sent elsewhere, from elsewhere, later."""
    index = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(["dropped", "doubled", "group", "src", "dst", "step"]))
    if column == "dropped":
        return np.delete(rows, index, axis=0)
    changed = rows[index].copy()
    name = "step" if column == "doubled" else column
    most = {"group": len(blocks.groups) - 1, "step": int(rows[:, 5].max()) + 1}
    low = 1 if name == "step" else 0
    value = data.draw(st.integers(low, most.get(name, devices - 1)))
    changed[COLUMNS.index(name)] = value
    kept = rows if column == "doubled" else np.delete(rows, index, axis=0)
    return np.concatenate([kept, changed[None]])
