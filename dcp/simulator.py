"""Plays a finished plan through the cost model: its programs, not the schedule they came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import FloatArray
from dcp.blocks import KEY_SIDE, BlockGraph
from dcp.cluster import Cluster
from dcp.cost import (
    Messages,
    Timeline,
    Work,
    attention_seconds,
    memory_seconds,
    rewriting_seconds,
    simulate,
)
from dcp.errors import SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.instructions import Attention, CommLaunch, Items, Program
from dcp.program_facts import Fact, InstructionKind, facts_of, item_pairs, mask_areas
from dcp.scheduling import PHASE_RESULTS, PHASES, Phase
from dcp.traffic import item_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedPhase:
    """One phase of a plan and when everything in it happens.

    Attributes:
        facts: Instructions of every rank.
        timeline: By rank and division.
    """

    phase: Phase
    facts: list[list[Fact]]
    timeline: Timeline

    @property
    def total_s(self) -> float:
        """Until the last rank is done."""
        return self.timeline.estimate().total_s


def simulate_plan(plan: ExecutionPlan, cluster: Cluster | None = None) -> list[SimulatedPhase]:
    """Play forward and backward.

    Args:
        plan: The plan.
        cluster: Devices and links; by default those that the plan is made for.

    Raises:
        SpecError: a cluster of another number of devices.
    """
    cluster = cluster or plan.cluster
    if cluster.num_devices != len(plan.ranks):
        raise SpecError(
            f"the plan has {len(plan.ranks)} ranks but the cluster has {cluster.num_devices} "
            "devices; give a cluster of as many"
        )
    return [_simulated(plan, phase, cluster) for phase in PHASES]


def programs_of(plan: ExecutionPlan, phase: Phase) -> list[Program]:
    """Programs of all ranks for one phase."""
    return [rank.program(phase) for rank in plan.ranks]


def messages_of(plan: ExecutionPlan, phase: Phase) -> Messages:
    """What the launches of all ranks send."""
    programs = programs_of(plan, phase)
    parts = [
        np.stack(
            [
                np.full(len(launch.sends), rank),
                launch.sends["peer"],
                np.full(len(launch.sends), launch.step),
                item_bytes(plan.blocks, program, launch.sends),
            ]
        )
        for rank, program in enumerate(programs)
        for launch in program.instructions
        if isinstance(launch, CommLaunch)
    ]
    return Messages.joined(*np.concatenate([np.zeros((4, 0), dtype=np.int64), *parts], axis=1))


def _simulated(plan: ExecutionPlan, phase: Phase, cluster: Cluster) -> SimulatedPhase:
    programs = programs_of(plan, phase)
    facts = [facts_of(plan.blocks, program) for program in programs]
    messages = messages_of(plan, phase)
    steps = 1 + max(
        [int(messages.step.max(initial=0)), *(fact.division for some in facts for fact in some)]
    )
    work = Work(
        reduce_s=_moving_seconds(facts, "reduce", steps, cluster),
        attention_s=_attention_seconds(plan.blocks, programs, phase, steps, cluster),
        copy_s=_moving_seconds(facts, "copy", steps, cluster),
    )
    return SimulatedPhase(phase=phase, facts=facts, timeline=simulate(work, messages, cluster))


def _moving_seconds(
    facts: list[list[Fact]], kind: InstructionKind, steps: int, cluster: Cluster
) -> FloatArray:
    """Seconds of every division: each reduce or copy is a kernel."""
    seconds = np.zeros((len(facts), steps))
    for rank, some in enumerate(facts):
        for fact in some:
            if fact.kind == kind:
                moving = memory_seconds(cluster.device, np.array(fact.bytes))
                seconds[rank, fact.division] += moving + cluster.device.launch_s
    return seconds


def _attention_seconds(
    blocks: BlockGraph, programs: list[Program], phase: Phase, steps: int, cluster: Cluster
) -> FloatArray:
    """Seconds of every division: its items in one kernel."""
    seconds = np.zeros((len(programs), steps))
    for rank, program in enumerate(programs):
        areas = mask_areas(program)
        begun: set[int] = set()
        for attention in program.instructions:
            if isinstance(attention, Attention):
                items = attention.items
                inside = attention_seconds(
                    cluster.device,
                    backward=phase == "backward",
                    flops_a_pair=blocks.flops_a_pair[items["group"]],
                    pairs=item_pairs(blocks, areas, items),
                    q_tokens=blocks.token_length[items["q_block"]],
                    kv_tokens=blocks.token_length[items["kv_block"]],
                )
                seconds[rank, attention.division] += inside.sum() + cluster.device.launch_s
                sums = _sums(blocks, phase, items)
                seconds[rank, attention.division] += rewriting_seconds(
                    cluster.device, blocks.accumulator_bytes.flat[list(sums & begun)]
                ).sum()
                begun |= sums
    return seconds


def _sums(blocks: BlockGraph, phase: Phase, items: Items) -> set[int]:
    """Sums that items are part of, as places in `accumulator_bytes`."""
    shape = blocks.accumulator_bytes.shape
    places = [
        np.ravel_multi_index(
            (kind, items["kv_block" if kind in KEY_SIDE else "q_block"], items["group"]), shape
        )
        for kind in PHASE_RESULTS[phase]
    ]
    return set(np.concatenate(places).tolist())
