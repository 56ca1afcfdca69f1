"""What forward received may stay for backward, within a limit, and changes no bit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from attention_runs import random_inputs, run_both_ways
from distributed_ranks import run_ranks
from plan_damage import kinds_of, program_of, with_program
from program_memory import home_inputs
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dcp
from dcp.blocks import Kind
from dcp.errors import DtypeError, PlanCheckError, ShapeError, SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.instructions import Buffer, CommLaunch, Program
from dcp.memory import kept_bytes, program_bytes
from dcp.runtime.allocation import metered
from dcp.runtime.autograd import kept_arenas
from dcp.runtime.buffers import Buffers, Planes
from dcp.verification import check_plan

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="float32")
SELF = dcp.Batch([150, 0, 61, 1])
CROSS = dcp.Batch([70, 0, 25], [30, 10, 90], mask=dcp.masks.full())
STRATEGIES = [
    {"baseline": "ring"},
    {"baseline": "zigzag"},
    {"baseline": "ulysses"},
    {"baseline": "usp"},
    {"partitioner": "greedy", "scheduler": "overlap"},
    {"partitioner": "local_search", "scheduler": "paper"},
]


def planned(
    how: dict[str, str],
    keep_bytes: int | None,
    batch: dcp.Batch = SELF,
    cluster: dcp.Cluster | None = None,
) -> ExecutionPlan:
    cluster = cluster or dcp.Cluster(nodes=2, devices_per_node=2)
    return dcp.plan(batch, SPEC, cluster, block_size=24, keep_bytes=keep_bytes, **how)


def kinds_kept(plan: ExecutionPlan) -> set[Buffer]:
    return {buffer for rank in plan.ranks for buffer in rank.backward.kept_buffers}


@pytest.mark.parametrize("batch", [SELF, CROSS], ids=["self", "cross"])
@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: "-".join(how.values()))
def test_gradients_have_the_same_bits_and_backward_sends_less(
    batch: dcp.Batch, how: dict[str, str]
) -> None:
    fetching, keeping = planned(how, 0, batch), planned(how, None, batch)
    proof = check_plan(keeping)
    assert keeping.report().kept_bytes > 0
    assert proof.backward.total_bytes == keeping.report().backward_comm_bytes
    assert keeping.report().backward_comm_bytes < fetching.report().backward_comm_bytes
    assert keeping.report().comm_bytes == fetching.report().comm_bytes
    inputs = random_inputs(batch, SPEC)
    expected, results = run_both_ways(fetching, inputs), run_both_ways(keeping, inputs)
    assert all(torch.equal(results[name], expected[name]) for name in expected)


def test_by_default_nothing_is_kept() -> None:
    plan = dcp.plan(SELF, SPEC, dcp.Cluster(devices_per_node=2), block_size=24)
    assert plan.report().kept_bytes == 0
    again = planned({}, 0, cluster=dcp.Cluster(devices_per_node=2))
    assert again.digest == plan.digest


def test_keeping_is_part_of_the_plan() -> None:
    plan = planned(STRATEGIES[0], None)
    assert plan.digest != planned(STRATEGIES[0], 0).digest
    loaded = ExecutionPlan.from_bytes(plan.to_bytes())
    assert loaded.digest == plan.digest
    assert [kept_bytes(loaded.blocks, rank.backward) for rank in loaded.ranks] == [
        kept_bytes(plan.blocks, rank.backward) for rank in plan.ranks
    ]


def test_no_rank_keeps_more_than_allowed_and_what_fits_is_kept() -> None:
    """USP receives queries as well as keys; they fit together, then one of them, then none."""
    both = planned({"baseline": "usp"}, None)
    assert kinds_kept(both) == {Buffer.Q_IN, Buffer.KV_IN}
    everything = both.report().kept_bytes
    assert kinds_kept(planned({"baseline": "usp"}, everything)) == kinds_kept(both)
    one = planned({"baseline": "usp"}, everything - 1)
    assert len(kinds_kept(one)) == 1
    assert 0 < one.report().kept_bytes < everything
    assert kinds_kept(planned({"baseline": "usp"}, 1)) == set()


def test_what_saves_bytes_between_nodes_is_kept_first() -> None:
    """USP sends queries inside nodes and keys around a ring of nodes."""
    fetching = planned({"baseline": "usp"}, 0).report()
    for limit in range(0, planned({"baseline": "usp"}, None).report().kept_bytes, 2000):
        plan = planned({"baseline": "usp"}, limit)
        saved = fetching.backward_inter_node_bytes - plan.report().backward_inter_node_bytes
        assert plan.report().kept_bytes <= limit
        assert (saved > 0) == (Buffer.KV_IN in kinds_kept(plan))


@pytest.mark.parametrize("keep_bytes", [-1, 1.5, "all", True])
def test_other_limits_are_refused(keep_bytes: object) -> None:
    with pytest.raises(SpecError, match=r"keep_bytes is .* give a whole number of bytes"):
        planned({"baseline": "ring"}, keep_bytes)  # type: ignore[arg-type]


class TestWhatBackwardIsGiven:
    """Anything else than what its program was planned with is refused, not made up."""

    PLAN = planned({"baseline": "usp"}, None)

    def give(self, change: Callable[[dict[Buffer, Planes]], dict[Buffer, Planes]]) -> None:
        (forward, inputs), (backward, rows) = home_inputs(SELF, self.PLAN, 0)
        left = Buffers(self.PLAN.blocks, forward, inputs)
        kept = {buffer: left.planes(buffer) for buffer in backward.kept_buffers}
        buffers = Buffers(self.PLAN.blocks, backward, rows, change(kept))
        assert all(map(operator.is_, buffers.planes(Buffer.KV_IN), kept[Buffer.KV_IN]))

    def test_what_forward_left(self) -> None:
        self.give(lambda kept: kept)

    def test_nothing(self) -> None:
        with pytest.raises(ShapeError, match=r"kept arenas \[\]; .* with \['Q_IN', 'KV_IN'\]"):
            self.give(lambda kept: {})
        _, (backward, _) = home_inputs(SELF, self.PLAN, 0)
        with pytest.raises(ShapeError, match=r"Q_IN has planes \[\]; .* give what its forward"):
            self.give(lambda kept: kept_arenas(backward, iter(())))

    def test_more_arenas(self) -> None:
        with pytest.raises(ShapeError, match=r"\['Q_IN', 'KV_IN', 'O_PART'\]; the program was"):
            self.give(lambda kept: {**kept, Buffer.O_PART: kept[Buffer.Q_IN]})

    def test_one_plane_less(self) -> None:
        with pytest.raises(ShapeError, match="KV_IN has planes"):
            self.give(lambda kept: {**kept, Buffer.KV_IN: kept[Buffer.KV_IN][:1]})

    def test_fewer_rows(self) -> None:
        with pytest.raises(ShapeError, match="Q_IN has planes"):
            self.give(lambda kept: {**kept, Buffer.Q_IN: (kept[Buffer.Q_IN][0][1:],)})

    def test_another_dtype(self) -> None:
        with pytest.raises(DtypeError, match=r"Q_IN has dtypes \[torch.float64\]; the program"):
            self.give(lambda kept: {**kept, Buffer.Q_IN: (kept[Buffer.Q_IN][0].double(),)})


class TestDamage:
    """A hand-over that does not fit is found by the checker."""

    PLAN = planned({"baseline": "ring"}, None)

    def damaged(self, edit: Callable[[Program], Program], rank: int = 1) -> ExecutionPlan:
        program = edit(program_of(self.PLAN, rank, "backward"))
        return with_program(self.PLAN, rank, "backward", program)

    def test_another_block_than_forward_left(self) -> None:
        def edit(program: Program) -> Program:
            slots = program.slots.copy()
            whole = slots["size"] == slots["size"][program.kept["slot"]].max()
            first, second = [slot for slot in program.kept["slot"] if whole[slot]][:2]
            slots["offset"][[first, second]] = slots["offset"][[second, first]]
            return msgspec.structs.replace(program, slots=slots)

        with pytest.raises(PlanCheckError, match="from forward, which leaves something else"):
            check_plan(self.damaged(edit))

    def test_a_block_that_is_not_handed_over(self) -> None:
        def edit(program: Program) -> Program:
            return msgspec.structs.replace(program, kept=program.kept[1:])

        with pytest.raises(PlanCheckError, match=r"reads it from slot .*, which holds nothing"):
            check_plan(self.damaged(edit))

    def test_an_arena_of_another_size(self) -> None:
        def edit(program: Program) -> Program:
            rows, slots = program.arena_rows.copy(), program.slots.copy()
            last = np.flatnonzero(slots["buffer"] == Buffer.KV_IN)[-1]
            rows[Buffer.KV_IN] += 1
            slots["size"][last] += 1
            return msgspec.structs.replace(program, arena_rows=rows, slots=slots)

        with pytest.raises(PlanCheckError, match=r"arena KV_IN has .* rows; forward hands over"):
            check_plan(self.damaged(edit))

    @pytest.mark.parametrize("of_kept", [True, False], ids=["slot", "arena"])
    def test_messages_into_what_is_handed_over(self, of_kept: bool) -> None:
        """A second backward pass would find them there, whether the slot held a block or not."""

        def edit(program: Program) -> Program:
            at = next(
                index
                for index, one in enumerate(program.instructions)
                if isinstance(one, CommLaunch) and len(one.receives)
            )
            launch, kept = program.instructions[at], program.kept
            assert isinstance(launch, CommLaunch)
            receives = np.resize(launch.receives, len(launch.receives) + 1)
            for name in ("slot", "block", "group"):
                receives[name][-1] = kept[name][0]
            instructions = list(program.instructions)
            instructions[at] = msgspec.structs.replace(launch, receives=receives)
            kept = kept if of_kept else kept[1:]
            return msgspec.structs.replace(program, instructions=instructions, kept=kept)

        with pytest.raises(PlanCheckError, match=r"receives into slot .* of KV_IN, an arena that"):
            check_plan(self.damaged(edit))

    def test_forward_has_no_phase_before_it(self) -> None:
        forward = program_of(self.PLAN, 1, "forward")
        kept = program_of(self.PLAN, 1, "backward").kept
        plan = with_program(
            self.PLAN, 1, "forward", msgspec.structs.replace(forward, kept=kept[:1])
        )
        with pytest.raises(PlanCheckError, match="kept for forward, which has no phase before"):
            check_plan(plan)

    def test_a_slot_that_is_not_for_arrivals(self) -> None:
        def edit(program: Program) -> Program:
            kept = program.kept.copy()
            kept["slot"][0] = np.flatnonzero(program.slots["buffer"] == Buffer.DQ_ACC)[0]
            return msgspec.structs.replace(program, kept=kept)

        with pytest.raises(PlanCheckError, match="in buffer DQ_ACC; legal: Q_IN, KV_IN"):
            check_plan(self.damaged(edit))


def attention_of(plan: ExecutionPlan) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda q, k, v: dcp.run_local(plan, q, k, v)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_keeps_nothing_before_its_recomputation(use_reentrant: bool) -> None:
    plan = planned({"baseline": "zigzag"}, None)
    *tensors, dout = random_inputs(SELF, SPEC)
    expected = run_both_ways(plan, (*tensors, dout))
    inputs = [x.requires_grad_() for x in tensors]
    with metered() as meter:
        out = checkpoint(attention_of(plan), *inputs, use_reentrant=use_reentrant)
        assert meter.held_bytes == 0
        out.backward(dout)
        assert meter.held_bytes == 0
    for x, name in zip(inputs, ("dq", "dk", "dv"), strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, expected[name])


def test_backward_may_run_twice() -> None:
    plan = planned(STRATEGIES[4], None)
    *tensors, dout = random_inputs(SELF, SPEC)
    inputs = [x.requires_grad_() for x in tensors]
    out = dcp.run_local(plan, *inputs)
    first = torch.autograd.grad(out, inputs, dout, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(out, inputs, dout)))


def test_what_is_kept_is_held_until_backward() -> None:
    plan = planned({"baseline": "usp"}, None)
    *tensors, dout = random_inputs(SELF, SPEC)
    kept = sum(kept_bytes(plan.blocks, rank.backward) for rank in plan.ranks)
    with metered() as meter:
        out = dcp.run_local(plan, *(x.requires_grad_() for x in tensors))
        assert meter.held_bytes == kept
        out.backward(dout)
        assert meter.held_bytes == 0


def check_ranks(rank: int, world_size: int, folder: Path) -> None:
    """Memory is what is claimed, and gradients are those of one process."""
    cp = dcp.ContextParallel(timeout_s=30)
    for how in STRATEGIES[::2]:
        plan = planned(how, None, cluster=dcp.Cluster(devices_per_node=world_size))
        *tensors, dout = random_inputs(SELF, SPEC)
        expected = run_both_ways(plan, (*tensors, dout))
        local = [cp.shard(plan, x).requires_grad_() for x in tensors]
        mine = plan.ranks[rank]
        with metered() as meter:
            out = cp.attention(plan, *local)
            assert meter.peak_bytes == program_bytes(plan.blocks, mine.forward), how
            assert meter.held_bytes == kept_bytes(plan.blocks, mine.backward), how
            out.backward(cp.shard(plan, dout))
            claims = [program_bytes(plan.blocks, one) for one in (mine.forward, mine.backward)]
            assert meter.peak_bytes == max(claims), how
            assert meter.held_bytes == 0
        for x, name in zip(local, ("dq", "dk", "dv"), strict=True):
            assert x.grad is not None
            assert torch.equal(x.grad, cp.shard(plan, expected[name])), how


@pytest.mark.distributed
def test_gloo_ranks_keep_what_their_programs_claim(tmp_path: Path) -> None:
    run_ranks(check_ranks, 3, tmp_path)


def test_kinds_of_data_that_move_in_backward() -> None:
    """Gradients and what belongs to them still do; queries and keys do not."""
    plan = planned({"baseline": "usp"}, None)
    kinds = {
        kind
        for rank in plan.ranks
        for one in rank.backward.instructions
        if isinstance(one, CommLaunch)
        for kind in kinds_of(rank.backward, one.sends)
    }
    assert kinds == {Kind.DO, Kind.DQ, Kind.DKV}
