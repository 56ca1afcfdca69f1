"""The plug-ins pass dcp's conformance suites and are found by their names."""

from __future__ import annotations

import pytest
from dcp_example_plugin import Emptiest, LocalFirst

import dcp
from dcp.verification import check_plan
from dcp.verification.conformance import PartitionerConformance, SchedulerConformance


class TestEmptiest(PartitionerConformance):
    """Answers outside the compute limits are reported as xfailed, since it heeds none."""

    @pytest.fixture
    def partitioner(self) -> Emptiest:
        """The partitioner to prove."""
        return Emptiest()


class TestLocalFirst(SchedulerConformance):
    """All of the suite, on placements of every kind."""

    @pytest.fixture
    def scheduler(self) -> LocalFirst:
        """The scheduler to prove."""
        return LocalFirst()


def test_both_are_found_by_name() -> None:
    """The entry points of pyproject.toml name them."""
    plan = dcp.plan(
        dcp.Batch([300, 120, 40, 7]),
        dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16),
        dcp.Cluster(nodes=2, devices_per_node=2),
        block_size=32,
        partitioner="emptiest",
        scheduler="local_first",
    )
    assert (plan.origin.partitioner, plan.origin.scheduler) == ("emptiest", "local_first")
    check_plan(plan)
