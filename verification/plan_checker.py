"""`check_plan`: a plan proven right by executing it symbolically, without trusting its maker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dcp.arrays import IntArray
from dcp.blocks import BlockGraph
from dcp.checks import check_kind
from dcp.errors import PlanCheckError
from dcp.execution_plan import ExecutionPlan
from dcp.placement import Assignment, PlacementProblem, evaluate
from dcp.scheduling import PHASE_RESULTS, Phase
from dcp.verification.facts import Facts, derive_facts
from dcp.verification.faults import Site
from dcp.verification.kept_check import check_kept
from dcp.verification.message_check import Traffic, check_launch_order, check_messages
from dcp.verification.program_check import CheckedProgram, check_program
from dcp.verification.simulation import Simulated, missing_result, simulate
from dcp.verification.slot_check import check_memory


@dataclass(frozen=True, kw_only=True)
class PlanProof:
    """What was proven of a plan, in numbers.

    Attributes:
        ranks: Ranks whose programs were followed.
        computations: Computation blocks, each done exactly once forward and once backward.
        allowed_pairs: Allowed (query, key) positions in them, a query head.
        results: O, dQ and dKV blocks that reached their homes with exactly their contributions.
        instructions: Instructions executed, all ranks and both phases.
        forward, backward: What was sent, each send with its receive.
    """

    ranks: int
    computations: int
    allowed_pairs: int
    results: int
    instructions: int
    forward: Traffic
    backward: Traffic

    def __str__(self) -> str:
        return (
            f"{self.computations} computation blocks exactly once forward and backward, "
            f"{self.results} results complete at their homes, "
            f"{self.forward.transfers} + {self.backward.transfers} transfers received, "
            f"{self.forward.total_bytes} + {self.backward.total_bytes} bytes as reported, "
            f"{self.instructions} instructions of {self.ranks} ranks"
        )


def check_plan(plan: ExecutionPlan) -> PlanProof:
    """Prove a plan right, forward and backward, or name its first fault.

    Of the plan's blocks only lengths, token blocks and the sequences' mask slices are believed.
    What has to be computed is derived from them; then all ranks' programs are executed
    symbolically, following which block's content, or which set of partial contributions, stands
    in which slot of which rank. Proven are:

    * every allowed (query block, key block, head group) is computed exactly once, with exactly
      the positions that the mask allows;
    * every output and gradient ends at its home, made of exactly its contributions;
    * nothing is read before it has arrived or after its slot was reused, no sum is lost;
    * slots of an arena share no row and hold what they are for;
    * what backward is to find in its slots is what forward has left there, and is only read;
    * every send meets its receive, and no rank can deadlock;
    * the bytes moved and the balance are those reported.

    Raises:
        PlanCheckError: names rank, phase, instruction and block of the first fault.
        SpecError: no plan.
    """
    check_kind("plan", plan, ExecutionPlan)
    try:
        return _proven(plan)
    except (IndexError, TypeError, ValueError) as error:
        # Arrays of a shape or content that no rule below foresees.
        raise PlanCheckError(f"the plan's arrays do not belong together: {error}") from error


def _proven(plan: ExecutionPlan) -> PlanProof:
    facts = derive_facts(plan.blocks)
    _check_ranks(plan, facts)
    forward, given = _check_phase(plan, facts, "forward")
    backward, taken = _check_phase(plan, facts, "backward")
    for rank, contents in enumerate(given.simulated.contents):
        check_kept(facts, given.programs[rank], contents, taken.programs[rank])
    _check_placement(plan)
    _check_report(plan, forward, backward)
    return PlanProof(
        ranks=len(plan.ranks),
        computations=len(facts.pair_q) * facts.num_groups,
        allowed_pairs=int(facts.pair_area.sum()),
        results=len(given.simulated.results) + len(taken.simulated.results),
        instructions=sum(
            len(program.instructions)
            for rank in plan.ranks
            for program in (rank.forward, rank.backward)
        ),
        forward=forward,
        backward=backward,
    )


def _check_ranks(plan: ExecutionPlan, facts: Facts) -> None:
    """Each token block has one home, and the placement says which."""
    devices = plan.cluster.num_devices
    numbers = [rank.rank for rank in plan.ranks]
    if numbers != list(range(devices)):
        raise PlanCheckError(f"the plan has ranks {numbers}; the cluster has 0 … {devices - 1}")
    home = np.asarray(plan.placement.token_home)
    if home.shape != (facts.num_blocks,):
        raise PlanCheckError(f"token_home has shape {home.shape} for {facts.num_blocks} blocks")
    for rank in plan.ranks:
        expected = np.flatnonzero(home == rank.rank)
        if not np.array_equal(rank.home_blocks, expected):
            raise PlanCheckError(
                f"rank {rank.rank} is home to blocks {rank.home_blocks.tolist()}; the placement "
                f"says {expected.tolist()}"
            )
    if sum(len(rank.home_blocks) for rank in plan.ranks) != facts.num_blocks:
        raise PlanCheckError(f"token_home names devices beyond 0 … {devices - 1}")
    _check_wholes(plan.blocks, home)


def _check_wholes(blocks: BlockGraph, home: IntArray) -> None:
    """Pieces of a whole lie in one run on one device: limits are those of whole blocks."""
    step = np.diff(blocks.token_whole, prepend=-1)
    begin = blocks.token_start
    whole_begin = begin[np.maximum.accumulate(np.where(step, np.arange(len(step)), 0))]
    wrong = (step != 0) & (step != 1)
    wrong |= begin + blocks.token_length - whole_begin > blocks.block_size
    for same in (blocks.token_seq, blocks.token_side, home):
        wrong |= (step == 0) & (np.diff(same, prepend=-1) != 0)
    if wrong.any():
        raise PlanCheckError(
            f"block {int(np.flatnonzero(wrong)[0])} is no piece of whole block "
            f"{int(blocks.token_whole[wrong][0])}: a whole is a run of blocks of one sequence with "
            f"one home, at most {blocks.block_size} tokens in all"
        )


class _CheckedPhase(NamedTuple):
    programs: list[CheckedProgram]
    simulated: Simulated


def _check_phase(plan: ExecutionPlan, facts: Facts, phase: Phase) -> tuple[Traffic, _CheckedPhase]:
    programs = []
    for rank in plan.ranks:
        program = rank.program(phase)
        site = Site(rank.rank, phase, program.instructions)
        programs.append(check_program(facts, site, program, rank.home_blocks))
    _check_exactly_once(plan, facts, programs)
    traffic = check_messages(facts, plan.cluster, programs)
    simulated = simulate(facts, programs)
    for one, rank in zip(programs, plan.ranks, strict=True):
        check_launch_order(one.site)
        check_memory(one.site, rank.program(phase))
    for kind in PHASE_RESULTS[phase]:
        missing = missing_result(facts, kind, simulated.results)
        if missing is not None:
            site = programs[int(plan.placement.token_home[missing[0]])].site
            raise site.fault(
                f"{kind.name} is never copied to its home", block=missing[0], group=missing[1]
            )
    return traffic, _CheckedPhase(programs, simulated)


def _check_exactly_once(plan: ExecutionPlan, facts: Facts, programs: list[CheckedProgram]) -> None:
    """Every computation block is done once, where the placement says."""
    groups = facts.num_groups
    comp = np.concatenate([one.pair * groups + one.attention.items["group"] for one in programs])
    rank = np.repeat(np.arange(len(programs)), [len(one.pair) for one in programs])
    index = np.concatenate([one.attention.index for one in programs])
    order = np.argsort(comp, kind="stable")
    again = order[1:][np.diff(comp[order]) == 0]
    if len(again):
        second = int(again[0])
        first = int(np.flatnonzero(comp == comp[second])[0])
        raise _comp_fault(
            facts, programs[rank[second]].site, int(comp[second]),
            f"is computed a second time; rank {rank[first]} does so at instruction {index[first]}",
            int(index[second]),
        )  # fmt: skip
    device = np.asarray(plan.placement.comp_device)
    if device.shape != (len(facts.pair_q) * groups,):
        raise PlanCheckError(f"comp_device has shape {device.shape}")
    done = np.zeros(len(device), dtype=np.bool_)
    done[comp] = True
    if not done.all():
        missing = int(done.argmin())
        site = programs[int(device[missing]) % len(programs)].site
        raise _comp_fault(facts, site, missing, "is never computed")
    elsewhere = device[comp] != rank
    if elsewhere.any():
        first = int(elsewhere.argmax())
        raise _comp_fault(
            facts, programs[rank[first]].site, int(comp[first]),
            f"is computed here; the placement says device {device[comp[first]]}",
            int(index[first]),
        )  # fmt: skip


def _comp_fault(
    facts: Facts, site: Site, comp: int, text: str, index: int | None = None
) -> PlanCheckError:
    pair, group = divmod(comp, facts.num_groups)
    q, kv = int(facts.pair_q[pair]), int(facts.pair_kv[pair])
    return site.fault(f"(q {q}, kv {kv}) {text}", index=index, block=q, group=group)


def _check_placement(plan: ExecutionPlan) -> None:
    """What the plan says of its placement is what the framework measures."""
    problem = PlacementProblem.of(plan.blocks, plan.cluster, limits=plan.content.limits)
    said = plan.placement
    found = evaluate(problem, Assignment(said.token_home, said.comp_device))
    for name in (
        "volume_bytes",
        "inter_node_bytes",
        "compute_imbalance",
        "token_imbalance",
        "violations",
    ):
        if getattr(said, name) != getattr(found, name):
            raise PlanCheckError(
                f"the placement says {name} = {getattr(said, name)!r}; it is "
                f"{getattr(found, name)!r}"
            )


def _check_report(plan: ExecutionPlan, forward: Traffic, backward: Traffic) -> None:
    report = plan.report()
    moved = {
        "comm_bytes": forward.total_bytes,
        "inter_node_bytes": forward.inter_node_bytes,
        "backward_comm_bytes": backward.total_bytes,
        "backward_inter_node_bytes": backward.inter_node_bytes,
    }
    for name, measured in moved.items():
        if getattr(report, name) != measured:
            raise PlanCheckError(
                f"the plan reports {name} = {getattr(report, name)}; its transfers move {measured}"
            )
