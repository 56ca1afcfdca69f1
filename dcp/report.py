"""What a plan moves, how even it is and how long it should take."""

from __future__ import annotations

from dataclasses import dataclass

from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.cost import Estimate
from dcp.instructions import RankPlan
from dcp.lower_bound import lower_bound_bytes
from dcp.memory import kept_bytes, program_bytes
from dcp.placement import Limits, Placement, PlacementProblem
from dcp.traffic import moved_bytes


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """Bytes, balance and time of a plan.

    Attributes:
        comm_bytes: Bytes that the forward transfers move, all devices together.
        inter_node_bytes: Those of them that cross nodes.
        backward_comm_bytes, backward_inter_node_bytes: The same for backward.
        volume_bytes: Σ bytes of a data block × (devices that touch it − 1), forward.
        volume_inter_node_bytes: The same with nodes in place of devices.
        lower_bound_bytes: No placement within the limits has a smaller volume_bytes.
        compute_imbalance, token_imbalance: Max ÷ mean over devices.
        feasible: Whether all limits hold.
        violations: Those that do not, in words.
        planning_s: Seconds that planning took.
        forward_s, backward_s: Simulated time.
        exposed_comm_s: Simulated wait for messages, forward and backward, mean over ranks.
        overlapped_comm_s: In the same way, messages on their way while a rank does not wait.
        idle_s: In the same way, from a rank's end to the last rank's.
        buffer_bytes: Memory of arenas and messages in flight, most over ranks and phases.
        kept_bytes: Part of it that is kept from forward until backward, most over ranks.
    """

    comm_bytes: int
    inter_node_bytes: int
    backward_comm_bytes: int
    backward_inter_node_bytes: int
    volume_bytes: int
    volume_inter_node_bytes: int
    lower_bound_bytes: int
    compute_imbalance: float
    token_imbalance: float
    feasible: bool
    violations: tuple[str, ...]
    planning_s: float
    forward_s: float
    backward_s: float
    exposed_comm_s: float
    overlapped_comm_s: float
    idle_s: float
    buffer_bytes: int
    kept_bytes: int


def report_on(
    *,
    blocks: BlockGraph,
    cluster: Cluster,
    placement: Placement,
    limits: Limits,
    ranks: list[RankPlan],
    forward: Estimate,
    backward: Estimate,
    planning_s: float,
) -> PlanReport:
    """Measure a plan from its programs, not from what its makers intended."""
    comm, inter = moved_bytes(blocks, cluster, [rank.forward for rank in ranks])
    back, back_inter = moved_bytes(blocks, cluster, [rank.backward for rank in ranks])
    problem = PlacementProblem.of(blocks, cluster, limits=limits)
    programs = [program for rank in ranks for program in (rank.forward, rank.backward)]
    return PlanReport(
        comm_bytes=comm,
        inter_node_bytes=inter,
        backward_comm_bytes=back,
        backward_inter_node_bytes=back_inter,
        volume_bytes=placement.volume_bytes,
        volume_inter_node_bytes=placement.inter_node_bytes,
        lower_bound_bytes=lower_bound_bytes(blocks, problem),
        compute_imbalance=placement.compute_imbalance,
        token_imbalance=placement.token_imbalance,
        feasible=placement.feasible,
        violations=placement.violations,
        planning_s=planning_s,
        forward_s=forward.total_s,
        backward_s=backward.total_s,
        exposed_comm_s=forward.exposed_comm_s + backward.exposed_comm_s,
        overlapped_comm_s=forward.overlapped_comm_s + backward.overlapped_comm_s,
        idle_s=forward.idle_s + backward.idle_s,
        buffer_bytes=max(program_bytes(blocks, program) for program in programs),
        kept_bytes=max(kept_bytes(blocks, rank.backward) for rank in ranks),
    )
