"""The cost model: α–β links, a FLOP rate, divisions that wait for their messages."""

import numpy as np
import pytest

from dcp.cluster import PRESETS, Cluster, Link
from dcp.cost import Messages, simulate
from dcp.errors import SpecError

CLUSTER = Cluster(
    nodes=2,
    devices_per_node=1,
    flops_per_s=100.0,
    intra=Link(bandwidth_bytes_per_s=1000.0, latency_s=0.0),
    inter=Link(bandwidth_bytes_per_s=10.0, latency_s=0.5),
)


def messages(*rows):
    src, dst, step, size = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Messages.joined(src, dst, step, size)


def test_without_messages_the_slowest_device_sets_the_time():
    estimate = simulate(np.array([[100.0, 50.0], [20.0, 0.0]]), messages(), CLUSTER)
    assert estimate.total_s == pytest.approx(1.5)
    assert estimate.exposed_comm_s == 0


def test_a_message_behind_a_division_is_hidden():
    flops = np.array([[200.0, 100.0], [200.0, 100.0]])
    estimate = simulate(flops, messages((0, 1, 1, 10)), CLUSTER)
    assert estimate.total_s == pytest.approx(3.0)
    assert estimate.exposed_comm_s == 0


def test_what_a_division_does_not_cover_is_exposed():
    flops = np.array([[100.0, 100.0], [100.0, 100.0]])
    estimate = simulate(flops, messages((0, 1, 1, 20)), CLUSTER)
    assert estimate.total_s == pytest.approx(0.5 + 2.0 + 1.0)
    assert estimate.exposed_comm_s == pytest.approx(1.5 / 2)


def test_a_sender_sends_one_message_after_another():
    cluster = Cluster(nodes=3, devices_per_node=1, flops_per_s=1.0, inter=CLUSTER.inter)
    flops = np.zeros((3, 2))
    estimate = simulate(flops, messages((0, 1, 1, 10), (0, 2, 1, 10)), cluster)
    assert estimate.total_s == pytest.approx(2 * (0.5 + 1.0))


def test_items_of_one_step_between_two_devices_travel_as_one_message():
    joined = messages((0, 1, 1, 10), (0, 1, 1, 5), (0, 1, 2, 1))
    assert joined.message_bytes.tolist() == [15, 1]


def test_results_after_the_last_division_count():
    estimate = simulate(np.array([[0.0], [100.0]]), messages((1, 0, 2, 10)), CLUSTER)
    assert estimate.total_s == pytest.approx(1.0 + 0.5 + 1.0)


def test_ranks_count_node_by_node():
    cluster = Cluster.preset("p4de", nodes=2)
    assert cluster.num_devices == 16
    assert cluster.device_node.tolist() == [0] * 8 + [1] * 8
    assert cluster.link(0, 7) == cluster.intra
    assert cluster.link(7, 8) == cluster.inter


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_cluster(name):
    assert Cluster.preset(name, nodes=3, devices_per_node=5).num_devices == 15


def test_an_unknown_preset_lists_those_that_exist():
    with pytest.raises(SpecError, match="legal: p4de"):
        Cluster.preset("tpu")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": 0}, "nodes is 0"),
        ({"devices_per_node": 1.5}, "devices_per_node is 1.5"),
        ({"flops_per_s": 0.0}, "flops_per_s"),
        ({"inter": Link(bandwidth_bytes_per_s=float("nan"), latency_s=0)}, "inter.bandwidth"),
    ],
)
def test_impossible_clusters_are_refused_by_name(fields, message):
    with pytest.raises(SpecError, match=message):
        Cluster(**({"devices_per_node": 2} | fields))
