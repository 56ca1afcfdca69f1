"""That all ranks of a group come to the same plans in the same order."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from dcp.errors import DigestMismatchError
from dcp.execution_plan import ExecutionPlan
from dcp.runtime.collectives import gather_bytes

_DIGESTS_REMEMBERED = 4096


class Agreement:
    """What this rank has run on a group; compared with the others before a plan is new to it.

    A hash runs over the digests of all calls. So ranks that ran different plans, each of which
    they had compared before, are found out when the next new plan comes, and a call of a plan
    that is not new costs no message.
    """

    def __init__(self) -> None:
        self._agreed: OrderedDict[str, None] = OrderedDict()
        self._history = hashlib.sha256()
        self._calls = 0
        self._same_calls = 0

    def call(
        self, plan: ExecutionPlan, group: dist.ProcessGroup, device: torch.device, timeout_s: float
    ) -> None:
        """Count a call with a plan, after comparing with all ranks where the plan is new.

        Args:
            plan: This rank's.
            group: The context-parallel group, always the same.
            device: Where the group's backend wants its tensors.
            timeout_s: Longest wait.

        Raises:
            DigestMismatchError: another rank has another plan, or ran others before.
            TransportError: a rank did not answer in time.
        """
        if plan.digest not in self._agreed:
            self._compare(plan.digest, group, device, timeout_s)
            self._agreed[plan.digest] = None
            if len(self._agreed) > _DIGESTS_REMEMBERED:
                self._agreed.popitem(last=False)
        self._history.update(bytes.fromhex(plan.digest))
        self._calls += 1

    def _compare(
        self, digest: str, group: dist.ProcessGroup, device: torch.device, timeout_s: float
    ) -> None:
        rank = dist.get_rank(group)
        calls = self._calls.to_bytes(8, "big")
        mine = bytes.fromhex(digest) + self._history.digest() + calls
        what = f"rank {rank} compares plan digests with all ranks before division 0"
        everyone = gather_bytes(mine, group, device, timeout_s, what)
        for peer, theirs in enumerate(everyone):
            other = theirs[:32].hex()
            if other != digest:
                raise DigestMismatchError(
                    f"rank {rank} holds plan {digest} but rank {peer} holds plan {other}; give "
                    "all ranks the same plan: plan once and share the file, or plan from equal "
                    "input"
                )
        for peer, theirs in enumerate(everyone):
            if theirs[32:] != mine[32:]:
                raise DigestMismatchError(self._difference(rank, peer, theirs[32:]))
        self._same_calls = self._calls + 1  # with the one that follows

    def _difference(self, rank: int, peer: int, theirs: bytes) -> str:
        calls = int.from_bytes(theirs[32:], "big")
        return (
            f"rank {rank} has made {self._calls} calls with plans whose digests hash to "
            f"{self._history.hexdigest()}, but rank {peer} {calls} calls that hash to "
            f"{theirs[:32].hex()}: they ran other plans, or one left a call out, after the first "
            f"{self._same_calls} calls, which were the same, and what came of it is wrong; "
            "log plan.digest at every call on both ranks, make the first that differs the same "
            "and start again with a new group"
        )


_AGREEMENTS: WeakKeyDictionary[dist.ProcessGroup, Agreement] = WeakKeyDictionary()


def agreement_of(group: dist.ProcessGroup) -> Agreement:
    """The one agreement of a group, however many objects use the group."""
    return _AGREEMENTS.setdefault(group, Agreement())
