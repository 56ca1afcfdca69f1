"""The memory that plans claim is the memory that the executor takes, to the byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attention_runs import random_inputs
from distributed_ranks import run_ranks

import dcp
from dcp.blocks import Kind
from dcp.execution_plan import ExecutionPlan
from dcp.instructions import CommLaunch, Program
from dcp.kernels.torch_flash import TorchFlash
from dcp.memory import program_bytes
from dcp.runtime.allocation import Meter, metered
from dcp.runtime.autograd import backward_inputs, forward_inputs
from dcp.runtime.buffers import Planes
from dcp.runtime.executor import Executor
from dcp.runtime.sharding import shard_for
from dcp.runtime.transports import Receive, Send, Transport

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="float32")
SELF = dcp.Batch([150, 0, 61, 1])
WINDOW = dcp.Batch([130, 47], mask=dcp.masks.sliding_window(50))
CROSS = dcp.Batch([70, 0, 25], [30, 10, 90], mask=dcp.masks.full())

CASES = [
    (SELF, "float32", {"baseline": "ring"}),
    (SELF, "bfloat16", {"baseline": "zigzag"}),
    (WINDOW, "float64", {"baseline": "ulysses"}),
    (CROSS, "bfloat16", {"baseline": "usp"}),
    (SELF, "bfloat16", {"partitioner": "greedy", "scheduler": "overlap"}),
    (WINDOW, "float16", {"partitioner": "greedy", "scheduler": "paper"}),
    (CROSS, "float32", {"partitioner": "greedy", "scheduler": "sequential"}),
]


def planned(
    case: tuple[dcp.Batch, str, dict[str, str]], ranks: int
) -> tuple[dcp.AttentionSpec, ExecutionPlan]:
    batch, dtype, how = case
    spec = replace(SPEC, dtype=dtype)
    cluster = dcp.Cluster(devices_per_node=ranks)
    return spec, dcp.plan(batch, spec, cluster, block_size=24, **how)


class Alone(Transport):
    """The memory of a real transport, for one rank without others: receives hold zeros."""

    def __init__(self) -> None:
        self._sent: list[Send] = []
        self._receiving: dict[int, list[Receive]] = {}

    def launch(self, step: int, sends: list[Send], receives: list[Receive]) -> None:
        self._sent += sends
        self._receiving[step] = receives

    def receive(self, step: int) -> None:
        self._sent.clear()
        for receive in self._receiving.pop(step):
            receive.data.zero_()

    def finish(self) -> None:
        self._sent.clear()


def run_alone(plan: ExecutionPlan, program: Program, inputs: dict[Kind, Planes]) -> Meter:
    with metered() as meter:
        executor = Executor(plan.blocks, program, inputs, kernel=TorchFlash(), transport=Alone())
        for _ in executor.run():
            raise AssertionError("this transport is always ready")
    return meter


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([case[1], *case[2].values()]))
def test_every_rank_takes_what_its_programs_claim(
    case: tuple[dcp.Batch, str, dict[str, str]],
) -> None:
    spec, plan = planned(case, ranks=3)
    q, k, v, dout = random_inputs(case[0], spec)
    lse = torch.zeros(q.shape[:2], dtype=torch.float64 if spec.dtype == "float64" else None)
    peaks = []
    for mine in plan.ranks:
        local = (shard_for(plan, q, mine.rank), shard_for(plan, k, mine.rank, "kv"))
        inputs = (*local, shard_for(plan, v, mine.rank, "kv"))
        rows = (shard_for(plan, x, mine.rank) for x in (dout, lse, lse))
        for program, home in (
            (mine.forward, forward_inputs(*inputs)),
            (mine.backward, backward_inputs(*inputs, *rows)),
        ):
            meter = run_alone(plan, program, home)
            assert meter.peak_bytes == program_bytes(plan.blocks, program)
            assert meter.held_bytes == 0
            peaks.append(meter.peak_bytes)
    assert max(peaks) == plan.report().buffer_bytes


def check_ranks(rank: int, world_size: int, folder: Path) -> None:
    cp = dcp.ContextParallel(timeout_s=30)
    for case in CASES:
        spec, plan = planned(case, world_size)
        q, k, v, dout = random_inputs(case[0], spec)
        local = [
            cp.shard(plan, x, side).requires_grad_() for x, side in ((q, "q"), (k, "kv"), (v, "kv"))
        ]
        mine = plan.ranks[rank]
        with metered() as meter:
            out = cp.attention(plan, *local)
        assert meter.peak_bytes == program_bytes(plan.blocks, mine.forward), case
        with metered() as meter:
            out.backward(cp.shard(plan, dout))
        assert meter.peak_bytes == program_bytes(plan.blocks, mine.backward), case
        assert meter.held_bytes == 0


@pytest.mark.distributed
def test_gloo_ranks_take_what_their_programs_claim(tmp_path: Path) -> None:
    run_ranks(check_ranks, 3, tmp_path)


def test_nothing_is_held_after_all_ranks_ran_in_one_process() -> None:
    spec, plan = planned(CASES[0], ranks=3)
    q, k, v, dout = random_inputs(SELF, spec)
    with metered() as meter:
        dcp.run_local(plan, q.requires_grad_(), k, v).backward(dout)
    claims = [
        sum(program_bytes(plan.blocks, program) for program in programs)
        for programs in zip(*((mine.forward, mine.backward) for mine in plan.ranks), strict=True)
    ]
    assert 0 < meter.peak_bytes <= max(claims)
    assert meter.held_bytes == 0


def test_plans_of_these_tests_do_send() -> None:
    for case in CASES:
        _, plan = planned(case, ranks=3)
        assert any(
            isinstance(instruction, CommLaunch)
            for mine in plan.ranks
            for instruction in mine.forward.instructions
        )
