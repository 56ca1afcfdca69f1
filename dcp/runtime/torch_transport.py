"""Messages over torch.distributed: one code for gloo and NCCL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dcp.errors import TransportError
from dcp.runtime.streams import MessageStream
from dcp.runtime.transports import Receive, Send, Transport, describe
from dcp.scheduling import PHASES, Phase


class _Started(NamedTuple):
    """A message under way; the tensor is held until its work is done."""

    work: dist.Work
    tensor: Tensor
    what: str


class TorchTransport(Transport):
    """Point-to-point messages in a process group.

    Between two ranks messages match by their order. A tag of the program keeps messages of
    other programs from being taken for its own, which gloo would do silently where they are
    shorter, and end the process where they are longer; NCCL has no tags.
    All messages of a step start as one batch, which NCCL needs to progress them together.

    gloo waits on the host and keeps the timeout given here. NCCL moves messages while the GPU
    computes and waits on a stream of the GPU, so the host runs ahead; the timeout of the process
    group holds there, and its watchdog ends the process.

    Args:
        group: The context-parallel group; peers are ranks in it.
        device: Where the tensors of the program are.
        tag: See `message_tag`.
        timeout_s: Longest wait for one message.
    """

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, tag: int, timeout_s: float
    ) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._device = device
        self._tag = tag
        self._stream = MessageStream(device)
        self._timeout_s = timeout_s
        self._sent: list[_Started] = []
        self._receiving: dict[int, list[_Started]] = {}

    def launch(self, step: int, sends: list[Send], receives: list[Receive]) -> None:
        """See `Transport.launch`."""
        named = [self._describe_send(send, step) for send in sends]
        named += [describe(self._rank, receive, step) for receive in receives]
        operations = [self._operation(dist.isend, send) for send in sends]
        operations += [self._operation(dist.irecv, receive) for receive in receives]
        try:
            with self._stream.after_computing():  # which has packed what is sent
                works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise TransportError(f"cannot start {'; '.join(named)}: {error}") from error
        if len(works) != len(operations):  # a backend may answer with one work for the batch
            works = [works[-1]] * len(operations)
        started = [
            _Started(work, operation.tensor, what)
            for work, operation, what in zip(works, operations, named, strict=True)
        ]
        self._sent += started[: len(sends)]
        self._receiving[step] = started[len(sends) :]

    def receive(self, step: int) -> None:
        """See `Transport.receive`."""
        # What was sent with or before these has been asked for by now: all ranks launch a step
        # before they wait for it. So its memory is free again, as `dcp.memory` counts.
        self._wait([*self._receiving.pop(step), *self._sent])
        self._sent.clear()

    def finish(self) -> None:
        """See `Transport.finish`."""
        self._wait(self._sent)
        self._sent.clear()

    def _wait(self, started: list[_Started]) -> None:
        """Let the computing stream wait for messages; on a CPU that is the host."""
        with self._stream.before_computing():
            for message in started:
                wait_for(message.work, self._device, self._timeout_s, message.what)

    def _operation(self, start: Any, message: Send | Receive) -> dist.P2POp:
        peer = dist.get_global_rank(self._group, message.peer)
        return dist.P2POp(start, message.data, peer, self._group, self._tag)

    def _describe_send(self, send: Send, step: int) -> str:
        return (
            f"rank {self._rank} sends rank {send.peer} {len(send.data)} bytes, first of them "
            f"block {send.block}, to arrive before division {step}"
        )


def message_tag(digest: str, phase: Phase) -> int:
    """Tag of the messages of a program, below 2**31, as gloo takes.

    Args:
        digest: Of the plan, in hex.
        phase: Of the program.
    """
    return 2 * int(digest[:7], 16) + PHASES.index(phase)


def wait_for(work: dist.Work, device: torch.device, timeout_s: float, what: str) -> None:
    """Wait for work of a process group.

    Raises:
        TransportError: it failed or took too long; says what it was.
    """
    try:
        if device.type == "cuda":
            work.wait()  # makes the GPU's stream wait; with a timeout the host would block
        else:
            work.wait(timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise TransportError(
            f"{what}: failed, or not done within {timeout_s:g} s; that rank may have died, be "
            f"slow or run another plan: {error}"
        ) from error
