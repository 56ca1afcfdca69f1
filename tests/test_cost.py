"""The cost model: compute rates, links whose ports are shared, ranks that wait for messages."""

from dataclasses import replace

import numpy as np
import pytest

from dcp.cluster import PRESETS, Cluster, Device, Link
from dcp.cost import Messages, Work, attention_seconds, simulate
from dcp.errors import SpecError

DEVICE = Device(
    flops_per_s=100.0,
    backward_flops_per_s=50.0,
    tile_tokens=4,
    launch_s=0.0,
    memory_bytes_per_s=1e30,
)


def cluster_of(nodes=2, devices_per_node=1, nics_per_node=None):
    return Cluster(
        nodes=nodes,
        devices_per_node=devices_per_node,
        device=DEVICE,
        intra=Link(bandwidth_bytes_per_s=1000.0, latency_s=0.0),
        inter=Link(bandwidth_bytes_per_s=10.0, latency_s=0.5),
        nics_per_node=nics_per_node,
    )


def play(attention, *rows, cluster=None, reduce=None):
    """Seconds of attention [ranks, steps] and messages (src, dst, step, bytes)."""
    attention = np.array(attention, dtype=float)
    nothing = np.zeros_like(attention)
    src, dst, step, size = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    work = Work(
        reduce_s=nothing if reduce is None else np.array(reduce, dtype=float),
        attention_s=attention,
        copy_s=nothing,
    )
    return simulate(work, Messages.joined(src, dst, step, size), cluster or cluster_of())


def test_without_messages_the_slowest_rank_sets_the_time_and_others_are_idle():
    estimate = play([[1.0, 0.5], [0.25, 0.0]]).estimate()
    assert estimate.total_s == pytest.approx(1.5)
    assert estimate.exposed_comm_s == 0
    assert estimate.idle_s == pytest.approx(1.25 / 2)


def test_a_message_behind_a_division_is_hidden():
    estimate = play([[2, 1], [2, 1]], (0, 1, 1, 10)).estimate()
    assert estimate.total_s == pytest.approx(3.0)
    assert estimate.exposed_comm_s == 0
    assert estimate.overlapped_comm_s == pytest.approx(1.5 / 2)


def test_what_a_division_does_not_cover_is_exposed():
    estimate = play([[1, 1], [1, 1]], (0, 1, 1, 20)).estimate()
    assert estimate.total_s == pytest.approx(0.5 + 2.0 + 1.0)
    assert estimate.exposed_comm_s == pytest.approx(1.5 / 2)
    assert estimate.overlapped_comm_s == pytest.approx(1.0 / 2)


def test_messages_of_one_port_queue():
    nothing = np.zeros((3, 2))
    two_sends = play(nothing, (0, 1, 1, 10), (0, 2, 1, 10), cluster=cluster_of(3))
    assert two_sends.arrived_s.tolist() == [1.5, 2.5]
    two_receives = play(nothing, (0, 2, 1, 10), (1, 2, 1, 10), cluster=cluster_of(3))
    assert two_receives.arrived_s.tolist() == [1.5, 2.5]


def test_an_all_to_all_takes_as_long_as_one_rank_needs_to_send():
    """Ranks begin with different destinations, so that none of them waits for a busy port."""
    rows = [(src, dst, 1, 10) for src in range(4) for dst in range(4) if src != dst]
    timeline = play(np.zeros((4, 2)), *rows, cluster=cluster_of(4))
    assert timeline.estimate().total_s == pytest.approx(3 * 1.0 + 0.5)


def test_devices_that_share_a_nic_share_its_bandwidth():
    nothing = np.zeros((4, 2))
    rows = (0, 2, 1, 10), (1, 3, 1, 10)
    own = play(nothing, *rows, cluster=cluster_of(2, 2))
    shared = play(nothing, *rows, cluster=cluster_of(2, 2, nics_per_node=1))
    assert own.arrived_s.tolist() == [1.5, 1.5]
    assert shared.arrived_s.tolist() == [1.5, 2.5]


def test_a_message_inside_a_node_takes_the_fast_link():
    timeline = play(np.zeros((2, 2)), (0, 1, 1, 1000), cluster=cluster_of(1, 2))
    assert timeline.arrived_s.tolist() == [1.0]


def test_a_relay_cannot_send_before_it_has_received():
    timeline = play(np.zeros((3, 3)), (0, 1, 1, 10), (1, 2, 2, 10), cluster=cluster_of(3))
    assert timeline.arrived_s.tolist() == [1.5, 3.0]


def test_merging_comes_before_the_next_launch():
    timeline = play(np.zeros((2, 2)), (0, 1, 1, 10), reduce=[[0.25, 0], [0, 0]])
    assert timeline.arrived_s.tolist() == [1.75]
    assert timeline.launch_s[0, 0] == 0.25


def test_packing_and_unpacking_read_and_write_every_byte():
    slow = replace(DEVICE, memory_bytes_per_s=80.0)
    cluster = replace(cluster_of(), device=slow)
    timeline = play(np.zeros((2, 2)), (0, 1, 1, 10), cluster=cluster)
    assert timeline.launch_s[0, 0] == 0.25
    assert timeline.arrived_s.tolist() == [1.75]
    assert timeline.end_s.tolist() == [[0.25, 0.25], [0.0, 2.0]]


def test_all_messages_of_a_step_are_packed_by_one_kernel():
    cluster = replace(cluster_of(3), device=replace(DEVICE, launch_s=0.5))
    timeline = play(np.zeros((3, 2)), (0, 1, 1, 10), (0, 2, 1, 10), cluster=cluster)
    assert timeline.pack_s[:, 0].tolist() == [0.5, 0.0, 0.0]
    assert timeline.unpack_s[:, 1].tolist() == [0.0, 0.5, 0.5]


def test_items_of_one_step_between_two_ranks_travel_as_one_message():
    timeline = play(np.zeros((2, 3)), (0, 1, 1, 10), (0, 1, 1, 5), (0, 1, 2, 1))
    assert timeline.messages.message_bytes.tolist() == [15, 1]


def test_a_partial_block_costs_its_pairs_and_half_a_tile_along_the_border():
    def seconds(pairs, backward=False):
        return attention_seconds(
            DEVICE,
            backward=backward,
            flops_a_pair=np.array([2]),
            pairs=np.array([pairs]),
            q_tokens=np.array([10]),
            kv_tokens=np.array([10]),
        )[0]

    assert seconds(100) == pytest.approx(2 * 100 / 100.0)
    assert seconds(55) == pytest.approx(2 * (55 + 2 * 10) / 100.0)
    assert seconds(95) == pytest.approx(2 * 100 / 100.0)
    assert seconds(100, backward=True) == pytest.approx(2 * 100 * 2.5 / 50.0)


def test_ranks_count_node_by_node():
    cluster = Cluster.preset("p4de", nodes=2)
    assert cluster.num_devices == 16
    assert cluster.device_node.tolist() == [0] * 8 + [1] * 8
    assert cluster.link(0, 7) == cluster.intra
    assert cluster.link(7, 8) == cluster.inter


def test_nics_are_shared_evenly_by_the_devices_of_a_node():
    assert Cluster.preset("p4de", nodes=2).device_nic.tolist() == [
        0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7,
    ]  # fmt: skip
    assert Cluster(nodes=2, devices_per_node=2).device_nic.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_cluster(name):
    assert Cluster.preset(name, nodes=3, devices_per_node=5).num_devices == 15


def test_an_unknown_preset_lists_those_that_exist():
    with pytest.raises(SpecError, match="legal: p4de"):
        Cluster.preset("tpu")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster(nodes=0, devices_per_node=2), "nodes is 0"),
        (lambda: Cluster(devices_per_node=1.5), "devices_per_node is 1.5"),
        (lambda: Cluster(devices_per_node=2, nics_per_node=0), "nics_per_node is 0"),
        (lambda: replace(DEVICE, flops_per_s=0.0), "flops_per_s is 0.0"),
        (lambda: replace(DEVICE, launch_s=-1.0), "launch_s is -1.0"),
        (lambda: Link(bandwidth_bytes_per_s=float("nan"), latency_s=0), "bandwidth_bytes_per_s"),
    ],
)
def test_impossible_clusters_are_refused_by_name(make, message):
    with pytest.raises(SpecError, match=message):
        make()


def test_times_that_are_not_finite_are_refused() -> None:
    with pytest.raises(SpecError, match="infinitely long"):
        play([[np.inf], [1.0]])
