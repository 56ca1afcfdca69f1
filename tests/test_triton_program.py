"""What the Triton kernel launches for a program; nothing is, so Triton need not be there."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from program_memory import home_inputs, memory
from torch.utils._python_dispatch import TorchDispatchMode

import dcp
from dcp.errors import BackendError
from dcp.instructions import Attention, CommLaunch, Copy, Reduce
from dcp.kernels import flash_attn, triton_drafts, triton_program
from dcp.kernels.flash_attn import FlashAttention
from dcp.kernels.triton_attention import TritonAttention
from dcp.kernels.triton_tables import Draft
from dcp.runtime.executor import Executor
from dcp.runtime.messages import ProgramMessages
from dcp.runtime.transports import Receive, Send, Transport

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="bfloat16")
BATCH = dcp.Batch([90, 0, 41, 1])
PLANNED = {"partitioner": "greedy", "scheduler": "overlap"}
WAYS = pytest.mark.parametrize("how", [{"baseline": "usp"}, PLANNED], ids=["usp", "planned"])


def planned(ranks: int = 4, **how: str) -> dcp.ExecutionPlan:
    cluster = dcp.Cluster(devices_per_node=ranks)
    return dcp.plan(BATCH, SPEC, cluster, block_size=8, **(how or PLANNED))


class Launches:
    """Notes the kernels that would be launched, and the tables that are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.built: list[int] = []
        build = triton_program.build

        def counting(drafts: list[Any], device: torch.device) -> list[Any]:
            self.built.append(len(drafts))
            return build(drafts, device)

        monkeypatch.setattr(
            triton_program, "launch", lambda name, *arguments, **more: self.names.append(name)
        )
        monkeypatch.setattr(triton_program, "build", counting)

    def taken(self) -> list[str]:
        """Those since the last time."""
        taken, self.names = self.names, []
        return taken


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


@WAYS
def test_an_instruction_takes_one_launch_a_kind_of_work(
    launches: Launches, how: dict[str, str]
) -> None:
    plan = planned(**how)
    seen = set()
    for rank in range(4):
        for program, buffers in memory(BATCH, plan, rank):
            kernel = TritonAttention().bind(plan.blocks, program, buffers)
            backward = program is plan.ranks[rank].backward
            for one in program.instructions:
                seen.add(type(one))
                if isinstance(one, Attention):
                    kernel.attend(one)
                    both = ["backward_dq", "backward_dkv"]
                    assert launches.taken() == (both if backward else ["forward"])
                elif isinstance(one, Reduce):
                    kernel.reduce(one)
                    assert launches.taken() == (["copy"] if backward else ["merge"])
                elif isinstance(one, Copy):
                    kernel.copy(one)
                    # out and lse; or dq, dk and dv together
                    assert launches.taken() == ["copy"] * (1 if backward else 2)
                elif isinstance(one, CommLaunch):
                    layout = ProgramMessages.of(plan.blocks, program).of_items(one.sends)
                    kernel.pack(one, torch.empty(layout.nbytes, dtype=torch.uint8))
                    assert len(launches.taken()) <= 3  # as bits; cast; numbers of rows
    assert {Attention, Reduce, Copy, CommLaunch} <= seen


def test_tables_are_made_once_a_program_and_layout(launches: Launches) -> None:
    plan = planned(ranks=1)
    fused = torch.randn(132, 8, 16).bfloat16()
    views = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    copies = tuple(view.contiguous() for view in views)
    cp = dcp.ContextParallel(kernel=TritonAttention())
    for made, tensors in ((1, views), (2, copies), (2, views), (2, copies)):
        cp.attention(plan, *tensors)
        assert len(launches.built) == made


def test_tables_on_the_host_do_not_outlive_their_upload() -> None:
    plan = planned()
    bound = [
        TritonAttention().bind(plan.blocks, *both)
        for rank in range(4)
        for both in memory(BATCH, plan, rank)
    ]
    gc.collect()
    assert bound
    assert not any(type(one) is Draft for one in gc.get_objects())


class Nowhere(Transport):
    """Messages that leave at once and bring nothing."""

    def launch(self, step: int, sends: list[Send], receives: list[Receive]) -> None:
        pass

    def receive(self, step: int) -> None:
        pass

    def finish(self) -> None:
        pass


class Operations(TorchDispatchMode):
    """Names of all operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@WAYS
def test_between_instructions_the_host_only_allocates_messages(
    launches: Launches, how: dict[str, str]
) -> None:
    """It reads no tensor, and brings nothing to the device: either would let it wait."""
    plan = planned(**how)
    for rank in range(4):
        for program, inputs in home_inputs(BATCH, plan, rank):
            executor = Executor(
                plan.blocks, program, inputs, kernel=TritonAttention(), transport=Nowhere()
            )
            with Operations() as operations:
                assert not list(executor.run())
            assert operations.names <= {
                "aten.detach.default",
                "aten.empty.memory_format",
                "aten.slice.Tensor",
                "aten.view.dtype",
            }
    assert launches.names


def test_accumulators_of_several_inputs_are_refused() -> None:
    """No plan has them; the table of a row has one place for its own side."""
    plan = planned(ranks=1)
    ((program, buffers), _) = memory(BATCH, plan, 0)
    (one,) = (each for each in program.instructions if isinstance(each, Attention))
    items = one.items.copy()
    slots, counts = np.unique(items["out"], return_counts=True)
    shared = items["out"] == slots[counts > 1][0]
    items["q"][shared.nonzero()[0][0]] = items["q"][~shared][0]
    instructions = [
        Attention(one.division, items) if each is one else each for each in program.instructions
    ]
    damaged = msgspec.structs.replace(program, instructions=instructions)
    with pytest.raises(BackendError, match="name different slots as 'q'"):
        TritonAttention().bind(plan.blocks, damaged, buffers)


def test_beside_flash_attn_it_makes_no_tables_of_attention(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what it would refuse of attention is not refused either."""
    monkeypatch.setattr(flash_attn, "other_kernel", lambda request: TritonAttention())
    monkeypatch.setattr(triton_drafts.Rows, "check_alike", lambda *rest: pytest.fail("attention"))
    plan = planned()
    bound = 0
    for rank in range(4):
        for program, buffers in memory(BATCH, plan, rank):
            for _ in range(2):
                kernel = FlashAttention().bind(plan.blocks, program, buffers)
            bound += 1
            for one in program.instructions:
                if isinstance(one, Reduce):
                    kernel.reduce(one)
                elif isinstance(one, Copy):
                    kernel.copy(one)
    assert launches.names
    assert len(launches.built) == bound
