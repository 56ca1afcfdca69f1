"""The interface of transports, and the one that needs no network: ranks in one process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from dcp.errors import TransportError


@dataclass(frozen=True, kw_only=True, eq=False)
class Send:
    """A message to start: its peer, its first block, and the bytes (uint8, 1-D, contiguous)."""

    peer: int
    block: int
    data: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Receive:
    """A message to expect: its peer, its first block, and where its bytes go, like `Send`'s."""

    peer: int
    block: int
    data: Tensor


class Transport(ABC):
    """Moves messages between the ranks of one context-parallel group, for one rank.

    Between two ranks there is at most one message a step and direction, and both ends launch
    their steps in ascending order.
    """

    @abstractmethod
    def launch(self, step: int, sends: list[Send], receives: list[Receive]) -> None:
        """Start all messages of a step and return; nobody writes to the sends' bytes any more.

        The transport holds the sends until they have left, no longer than to the next `receive`.
        """

    @abstractmethod
    def receive(self, step: int) -> None:
        """Wait until the receives of a step hold their bytes.

        Raises:
            TransportError: one did not arrive in time, or is not what was expected.
        """

    def ready(self, step: int) -> bool:
        """Whether `receive` may be called; a transport that can block there is always ready."""
        return True

    @abstractmethod
    def finish(self) -> None:
        """Wait until everything sent has left.

        Raises:
            TransportError: it did not in time.
        """


def describe(rank: int, receive: Receive, step: int) -> str:
    """Name a message that is missing."""
    return (
        f"rank {rank} waits for rank {receive.peer}, which is to send {len(receive.data)} bytes, "
        f"first of them block {receive.block}, before division {step}"
    )


class Mailboxes:
    """Messages under way between ranks of one process, by (source, destination, step)."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int, int], Tensor] = {}


class LocalTransport(Transport):
    """One rank's end of mailboxes in this process. Never blocks: ask `ready` first."""

    def __init__(self, mailboxes: Mailboxes, rank: int) -> None:
        self._held = mailboxes.held
        self._rank = rank
        self._expected: dict[int, list[Receive]] = {}

    def launch(self, step: int, sends: list[Send], receives: list[Receive]) -> None:
        """See `Transport.launch`."""
        for send in sends:
            self._held[self._rank, send.peer, step] = send.data
        self._expected[step] = receives

    def ready(self, step: int) -> bool:
        """Whether all messages of the step have been sent."""
        return not self.missing(step)

    def missing(self, step: int) -> list[Receive]:
        """Messages of a step that have not been sent."""
        return [
            receive
            for receive in self._expected[step]
            if (receive.peer, self._rank, step) not in self._held
        ]

    def receive(self, step: int) -> None:
        """See `Transport.receive`."""
        for receive in self._expected.pop(step):
            message = self._held.pop((receive.peer, self._rank, step))
            if len(message) != len(receive.data):
                raise TransportError(f"{describe(self._rank, receive, step)}; got {len(message)}")
            receive.data.copy_(message)

    def finish(self) -> None:
        """Nothing to wait for: a message has left when it lies in its mailbox."""
