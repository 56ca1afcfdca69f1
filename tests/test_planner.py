"""Planning a batch: backends by name, `auto`, limits, and what is refused."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import dcp
from dcp import registry
from dcp.auto import BASELINES as AUTO_BASELINES
from dcp.backends.sequential_schedule import SequentialSchedule
from dcp.baselines.zigzag import Zigzag
from dcp.cost import Estimate
from dcp.errors import PlacementError, SpecError, UnknownBackendError
from dcp.placement import Assignment, Partitioner
from dcp.plan_request import PlanRequest
from dcp.scheduling import CostModel, Schedule, SchedulingProblem

HEADS = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16)
CLUSTER = dcp.Cluster(nodes=2, devices_per_node=2)
BATCH = dcp.Batch([300, 120, 40, 7])


def plan(batch=BATCH, cluster=CLUSTER, **options):
    return dcp.plan(batch, HEADS, cluster, **({"block_size": 32} | options))


class Everywhere(Partitioner):
    """A partitioner that breaks its contract."""

    name = "everywhere"

    def place(self, problem):
        return Assignment(np.zeros(len(problem.token_tokens)), problem.comp_q)


def simulated(plan):
    report = plan.report()
    return report.forward_s + report.backward_s


@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        dcp.Batch([480], mask=dcp.masks.sliding_window(64)),
        dcp.Batch([10] * 30),
        dcp.Batch([64, 64], [200, 0], mask=dcp.masks.full()),
        dcp.Batch([]),
    ],
    ids=["long-tailed", "window", "short", "cross", "empty"],
)
def test_auto_is_never_slower_than_the_best_static_scheme_under_the_cost_model(batch):
    static = []
    for name in AUTO_BASELINES:
        try:
            static.append(simulated(plan(batch, baseline=name)))
        except SpecError:
            continue  # a scheme that cannot serve the head layout is no rival
    assert static
    assert simulated(plan(batch)) <= min(static)


@dataclass(frozen=True, kw_only=True)
class ByTransfers(CostModel):
    """A cost model that knows totals only."""

    name: ClassVar[str] = "by_transfers"

    def estimate(self, problem: SchedulingProblem, schedule: Schedule) -> Estimate:
        count = float(len(schedule.transfers))
        return Estimate(total_s=1 + count, exposed_comm_s=count, overlapped_comm_s=0, idle_s=0)


def test_a_cost_model_need_say_no_more_than_an_estimate():
    made = plan(cost_model=ByTransfers())
    report = made.report()
    assert report.forward_s == 1 + made.forward_estimate.exposed_comm_s
    assert report.exposed_comm_s == report.forward_s + report.backward_s - 2
    dcp.verification.check_plan(made)


@pytest.mark.parametrize("name", AUTO_BASELINES)
@pytest.mark.parametrize("cluster", [CLUSTER, dcp.Cluster(devices_per_node=4)], ids=["2x2", "1x4"])
@pytest.mark.parametrize("lengths", [[4096], [700, 1300, 90, 11, 11]])
@pytest.mark.parametrize(
    "mask",
    [dcp.masks.causal(), dcp.masks.sliding_window(64), dcp.masks.full() - dcp.masks.causal()],
    ids=["causal", "window", "later-keys"],
)
@pytest.mark.parametrize("keep_bytes", [0, None])
def test_the_time_that_a_static_scheme_takes_at_least_is_true(
    name, cluster, lengths, mask, keep_bytes
):
    """What `auto` leaves a scheme out for."""
    batch = dcp.Batch(lengths, mask=mask)
    request = PlanRequest(
        batch=batch, spec=HEADS, cluster=cluster, block_size=1024, keep_bytes=keep_bytes
    )
    least = registry.create("baselines", name).least_seconds(request)
    assert least <= simulated(plan(batch, cluster, baseline=name, keep_bytes=keep_bytes))


def test_auto_spares_itself_schemes_that_cannot_win(caplog):
    """Dealing 300 short sequences out to 32 ranks would make a million blocks."""
    cluster = dcp.Cluster(nodes=4, devices_per_node=8)
    with caplog.at_level(logging.INFO, logger="dcp"):
        chosen = plan(dcp.Batch([200] * 300), cluster, block_size=256)
    assert chosen.origin.baseline is None
    assert "zigzag: its messages and work alone take" in caplog.text


def test_limits_that_were_asked_for_bind_auto():
    """One long dense sequence: an uneven static scheme is fastest, and over the limit."""
    batch = dcp.Batch([2048], mask=dcp.masks.full())
    limits = dcp.Limits(inter_node=0.0, intra_node=0.0, tokens=0.0)
    assert plan(batch, limits=limits).report().feasible


@pytest.mark.parametrize("option", ["partitioner", "scheduler", "baseline", "cost_model"])
def test_what_is_no_backend_is_refused_by_name(option):
    with pytest.raises(SpecError, match="5 is no"):
        plan(**{option: 5})


def test_auto_logs_its_choice_once_with_the_times_it_compared(caplog):
    with caplog.at_level(logging.INFO, logger="dcp"):
        chosen = plan()
    messages = [record.getMessage() for record in caplog.records]
    lines = [message for message in messages if "auto chose" in message]
    assert len(lines) == 1
    assert str(chosen.origin) in lines[0]
    assert "ms" in lines[0]


def test_a_named_backend_is_the_one_that_is_used():
    chosen = plan(partitioner="greedy", scheduler="paper:divisions=2")
    assert chosen.origin.partitioner == "greedy"
    assert chosen.origin.scheduler == "paper:divisions=2"
    assert chosen.origin.baseline is None


def test_instances_serve_as_well_as_names():
    by_name = plan(partitioner="greedy", scheduler="sequential")
    by_instance = plan(partitioner="greedy", scheduler=SequentialSchedule())
    assert by_instance.digest == by_name.digest
    assert plan(baseline=Zigzag()).digest == plan(baseline="zigzag").digest


def test_a_baseline_brings_its_own_placement_and_schedule():
    with pytest.raises(SpecError, match="give either baseline="):
        plan(baseline="ring", partitioner="greedy")
    with pytest.raises(SpecError, match="give either baseline="):
        plan(baseline="ring", scheduler="paper")


@pytest.mark.parametrize("option", ["partitioner", "scheduler", "baseline"])
def test_unknown_names_list_those_that_exist(option):
    with pytest.raises(UnknownBackendError, match=r"no-such.*there are:"):
        plan(**{option: "no-such"})


def test_an_answer_outside_the_contract_is_refused_whoever_gave_it():
    with pytest.raises(PlacementError, match="token_home"):
        plan(partitioner=Everywhere())


def test_limits_are_reported_where_they_do_not_hold():
    report = plan(baseline="ring", limits=dcp.Limits(inter_node=0.0, intra_node=0.0)).report()
    assert not report.feasible
    assert any("FLOPs" in line for line in report.violations)
    assert report.compute_imbalance > 1.2


def test_equal_requests_give_equal_plans():
    assert plan().digest == plan().digest
    assert plan(seed=1).digest == plan(seed=1).digest


def test_the_report_measures_what_the_programs_move():
    report = plan(dcp.Batch([400, 64, 4]), baseline="ring").report()
    key_bytes = 468 * 2 * 2 * 16 * 2  # tokens × key heads × (K, V) × head_dim × bfloat16
    assert report.comm_bytes == 3 * key_bytes
    assert report.inter_node_bytes == report.comm_bytes // 2
    assert report.volume_bytes < report.comm_bytes
    assert report.lower_bound_bytes <= report.volume_bytes
    assert report.forward_s > 0
    assert report.backward_s > report.forward_s
    assert report.buffer_bytes > 0


def test_the_report_sums_up_the_simulated_time_of_both_phases():
    made = plan(dcp.Batch([400, 64, 4]), baseline="ring")
    for name in ("exposed_comm_s", "overlapped_comm_s", "idle_s"):
        phases = getattr(made.forward_estimate, name), getattr(made.backward_estimate, name)
        assert getattr(made.report(), name) == sum(phases) > 0


def test_one_device_sends_nothing():
    report = plan(cluster=dcp.Cluster(devices_per_node=1)).report()
    assert report.comm_bytes == report.volume_bytes == report.lower_bound_bytes == 0
    assert report.feasible


def test_more_devices_than_blocks_leave_some_idle():
    many = plan(dcp.Batch([5, 3]), dcp.Cluster(nodes=3, devices_per_node=4))
    assert len(many.ranks) == 12
    dcp.verification.check_plan(many)


@pytest.mark.parametrize("bad", [0, -5, 1.5, "big"])
def test_block_sizes_must_be_positive_integers(bad):
    with pytest.raises(SpecError, match="block_size"):
        plan(block_size=bad)


def test_a_selection_must_be_a_table():
    with pytest.raises(
        SpecError, match=r"selection is 'zigzag'; give a dcp\.selection\.SelectionTable"
    ):
        plan(selection="zigzag")


def test_a_seed_may_be_any_integer():
    asked = {"partitioner": "local_search", "scheduler": "sequential"}
    assert plan(seed=np.int64(3), **asked).digest == plan(seed=3, **asked).digest
