"""Messages on a stream of their own: what is ordered by events, with streams that only record."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from program_memory import home_inputs
from torch import Tensor

import dcp
from dcp.instructions import Attention, CommLaunch, CommWait, Copy, Program, Reduce
from dcp.kernel_interface import ProgramKernel
from dcp.kernels.torch_flash import TorchFlash
from dcp.runtime import streams, torch_transport
from dcp.runtime.executor import Executor
from dcp.runtime.torch_transport import TorchTransport

SPEC = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=16, dtype="float32")
BATCH = dcp.Batch([60, 31])

Work = tuple[str, int]  # what, and the step that it belongs to


class Stream:
    """Knows what is done for sure before whatever is launched on it next."""

    def __init__(self) -> None:
        self.done: set[Work] = set()

    def record_event(self) -> frozenset[Work]:
        return frozenset(self.done)

    def wait_event(self, event: frozenset[Work]) -> None:
        self.done |= event


class Device:
    """A device with streams, as torch.cuda is, that notes what is ordered before what."""

    Stream = Stream

    def __init__(self) -> None:
        self.computing = self.current = Stream()
        self.moving = {"send": Stream(), "receive": Stream()}  # of the communication library
        self.before: dict[Work, frozenset[Work]] = {}
        self.sent: list[tuple[int, weakref.ref[Tensor]]] = []
        self.reused = 0

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        outside, self.current = self.current, stream
        yield
        self.current = outside

    def launch(self, what: str, step: int) -> None:
        """Launch work on the current stream."""
        self._launch((what, step), self.current)

    def move(self, what: str, step: int) -> frozenset[Work]:
        """Launch work on a stream of the library, which first waits for the current one."""
        self.moving[what].done |= self.current.done
        self._launch((what, step), self.moving[what])
        return self.moving[what].record_event()

    def _launch(self, work: Work, stream: Stream) -> None:
        assert work not in self.before
        self.before[work] = stream.record_event()
        stream.done.add(work)

    def check_reuse(self, step: int) -> None:
        """Whatever buffer was freed may be used from here on, so its message must have left."""
        for sent, tensor in self.sent:
            if tensor() is None:
                self.reused += 1
                assert ("send", sent) in self.computing.done, f"step {step} may overwrite {sent}"


@dataclass
class Library:
    """Takes the place of torch.distributed, with works that make the current stream wait.

    It answers a batch with one work, as NCCL does, or with one for every operation.
    """

    device: Device
    one_work: bool
    step: int = -1

    isend = staticmethod(lambda: None)
    irecv = staticmethod(lambda: None)
    get_rank = staticmethod(lambda group: 0)
    get_global_rank = staticmethod(lambda group, rank: rank)
    P2POp = staticmethod(
        lambda op, tensor, peer, group, tag: SimpleNamespace(op=op, tensor=tensor, peer=peer)
    )

    def batch_isend_irecv(self, operations: list[Any]) -> list[Any]:
        sends = [one for one in operations if one.op is self.isend]
        self.device.sent += [(self.step, weakref.ref(one.tensor)) for one in sends]
        kinds = ["send" if one.op is self.isend else "receive" for one in operations]
        moved = {kind: self.device.move(kind, self.step) for kind in dict.fromkeys(kinds)}
        if self.one_work:
            return [SimpleNamespace(wait=self._waits(frozenset().union(*moved.values())))]
        return [SimpleNamespace(wait=self._waits(moved[kind])) for kind in kinds]

    def _waits(self, event: frozenset[Work]) -> Any:
        def wait(timeout: timedelta | None = None) -> None:
            assert self.device.current is not self.device.computing
            self.device.current.wait_event(event)

        return wait


@dataclass
class Recording(ProgramKernel):
    """Launches what it is asked for, and computes nothing."""

    device: Device
    library: Library
    attended: int = 0

    def attend(self, instruction: Attention) -> None:
        self.device.launch("attend", self.attended)
        self.attended += 1

    def reduce(self, instruction: Reduce) -> None:
        pass

    def copy(self, instruction: Copy) -> None:
        pass

    def pack(self, launch: CommLaunch, data: Tensor) -> None:
        self.library.step = launch.step
        self.device.check_reuse(launch.step)
        self.device.launch("pack", launch.step)

    def unpack(self, launch: CommLaunch, data: Tensor) -> None:
        self.device.launch("unpack", launch.step)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device()
    monkeypatch.setattr(streams, "device_module", lambda kind: device)
    streams._stream.cache_clear()
    yield device
    streams._stream.cache_clear()


def programs(how: dict[str, str]) -> Iterator[tuple[dcp.ExecutionPlan, Program, Any]]:
    plan = dcp.plan(BATCH, SPEC, dcp.Cluster(devices_per_node=4), block_size=8, **how)
    yield from ((plan, *each) for each in home_inputs(BATCH, plan, 0))


@pytest.mark.parametrize(
    "how",
    [{"baseline": "ring"}, {"baseline": "usp"}, {"partitioner": "greedy", "scheduler": "paper"}],
    ids=lambda how: next(iter(how.values())),
)
@pytest.mark.parametrize("phase", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("one_work", [True, False])
def test_events_order_packing_moving_and_unpacking(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, str],
    phase: int,
    one_work: bool,
) -> None:
    library = Library(device, one_work)
    monkeypatch.setattr(torch_transport, "dist", library)
    plan, program, inputs = list(programs(how))[phase]
    transport = TorchTransport(None, torch.device("cpu"), 0, 1.0)  # type: ignore[arg-type]
    kernel = TorchFlash()
    monkeypatch.setattr(TorchFlash, "bind", lambda *arguments: Recording(device, library))
    executor = Executor(plan.blocks, program, inputs, kernel=kernel, transport=transport)
    assert not list(executor.run())

    waited = [one.step for one in program.instructions if isinstance(one, CommWait)]
    sent = [step for what, step in device.before if what == "send"]
    assert len(waited) > 1
    for step in waited:
        assert ("receive", step) in device.before["unpack", step]
    for step in sent:
        assert ("pack", step) in device.before["send", step]
    assert device.reused
    assert {("send", step) for step in sent} <= device.computing.done
    # Nothing more: what is computed while messages move does not wait for them.
    launched = [one for one in program.instructions if isinstance(one, CommLaunch | Attention)]
    under_way, attended = -1, 0
    for one in launched:
        if isinstance(one, CommLaunch):
            under_way = one.step
        else:
            assert ("receive", under_way) not in device.before["attend", attended] or (
                under_way <= one.division
            )
            attended += 1


def test_streams_of_a_cpu_do_nothing() -> None:
    stream = streams.MessageStream(torch.device("cpu"))
    with stream.after_computing(), stream.before_computing():
        assert float(torch.ones(2).sum()) == 2.0
