"""Planned attention on the ranks of a process group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from dcp.arrays import IntArray
from dcp.blocks import Kind
from dcp.checks import check_kind, check_number, shown
from dcp.errors import SpecError
from dcp.execution_plan import ExecutionPlan
from dcp.kernel_interface import Kernel
from dcp.runtime import collectives, sharding
from dcp.runtime.agreement import agreement_of
from dcp.runtime.arguments import check_attention_inputs, resolve_kernel
from dcp.runtime.autograd import (
    Runner,
    attend,
    backward_inputs,
    forward_inputs,
    kept_planes,
)
from dcp.runtime.buffers import Planes
from dcp.runtime.compilation import uncompiled
from dcp.runtime.executor import Executor
from dcp.runtime.rank_start import start_rank
from dcp.runtime.sharding import TokenSide
from dcp.runtime.torch_transport import TorchTransport, message_tag
from dcp.runtime.transports import LocalTransport, Mailboxes, Transport
from dcp.scheduling import Phase

_LONGEST_S = 1e9  # what a timedelta holds has an end


class ContextParallel:
    """One rank's view of a context-parallel group.

    Every rank of the group calls the same methods with the same plans in the same order, and
    runs backward where the others do, also a rank that holds no tokens. There is no dropout.

    Args:
        group_or_mesh: A process group, a device mesh of one dimension, or None for all processes
            (without torch.distributed: this one).
        kernel: Name, "name:option=value,…", or an instance.
        timeout_s: Longest wait for another rank on gloo; after a TransportError the group is of
            no use. On NCCL, which waits on the GPU, the timeout of the process group holds
            instead, and its watchdog ends the process.

    Raises:
        SpecError: not a group, a mesh of several dimensions, a group without this process, or a
            time that is not positive, or more than 1e9 seconds.
    """

    def __init__(
        self,
        group_or_mesh: dist.ProcessGroup | DeviceMesh | None = None,
        *,
        kernel: str | Kernel = "torch",
        timeout_s: float = 600.0,
    ) -> None:
        check_number("timeout_s", timeout_s, positive=True, most=_LONGEST_S)
        self._group = _process_group(group_or_mesh)
        self._kernel = resolve_kernel(kernel)
        self._timeout_s = timeout_s
        self.rank = 0 if self._group is None else dist.get_rank(self._group)
        self.size = 1 if self._group is None else dist.get_world_size(self._group)
        if self.rank < 0:
            raise SpecError(
                f"this process (global rank {dist.get_rank()}) is not in the given group; "
                "give each process the group that it belongs to"
            )

    # --- tokens ------------------------------------------------------------------------------

    def local_indices(self, plan: ExecutionPlan, side: TokenSide = "q") -> IntArray:
        """Positions in the packed batch of this rank's tokens, in local order, [local tokens]."""
        self._check_size(plan)
        return sharding.local_indices(plan, self.rank, side)

    @uncompiled
    def shard(self, plan: ExecutionPlan, x: Tensor, side: TokenSide = "q") -> Tensor:
        """Cut out this rank's tokens; nothing is sent.

        Args:
            plan: The plan.
            x: [tokens of the batch, ...], the same on every rank.
            side: In cross-attention "q" for query tokens, "kv" for key tokens.

        Returns:
            [local tokens, ...], a copy; differentiable.

        Raises:
            ShapeError: x has not one row a token of the batch.
            SpecError: the plan is not for as many devices as the group has ranks.
        """
        self._check_size(plan)
        return sharding.shard_for(plan, x, self.rank, side)

    @uncompiled
    def unshard(self, plan: ExecutionPlan, x: Tensor, side: TokenSide = "q") -> Tensor:
        """Gather every rank's tokens in batch order.

        Args:
            plan: The plan.
            x: This rank's tokens, [local tokens, ...]; the other dimensions and the dtype are
                the same on every rank.
            side: As for `shard`.

        Returns:
            [tokens of the batch, ...] on every rank. Its gradient is taken to be that of one
            loss that every rank computes, so each rank keeps its own rows of it.

        Raises:
            ShapeError: x has not one row for each of this rank's tokens.
            TransportError: another rank did not answer in time.
            DigestMismatchError: ranks hold different plans, or ran different ones before.
        """
        self._check_size(plan)
        sharding.check_local(plan, x, self.rank, side)
        if self._group is None:
            return sharding.unshard_from(plan, [x], side)
        self._agree(plan, x.device)
        return collectives.gather_tokens(plan, x, side, self._group, self._timeout_s)

    # --- attention ---------------------------------------------------------------------------

    @overload
    def attention(
        self,
        plan: ExecutionPlan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        return_lse: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def attention(
        self, plan: ExecutionPlan, q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    @uncompiled
    def attention(
        self,
        plan: ExecutionPlan,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention over the whole batch, from and to local tokens; differentiable once.

        Args:
            plan: The same plan on every rank.
            q: This rank's queries, [local q tokens, num_q_heads, head_dim], as `shard` cuts them.
            k: Its keys, [local key tokens, num_kv_heads, head_dim].
            v: Its values, like k.
            return_lse: Also return the log-sum-exp of the scores.

        Returns:
            out like q; with return_lse also lse [local q tokens, num_q_heads] in float32, or
            float64 for float64. A row that may see no key gives 0 and -inf.

        Raises:
            ShapeError, DtypeError: a tensor does not fit the plan.
            SpecError: the plan is not for as many devices as the group has ranks.
            DigestMismatchError: ranks hold different plans, or ran different ones before.
            TransportError: another rank did not answer in time.
        """
        self._check_size(plan)
        counts = (len(sharding.local_indices(plan, self.rank, side)) for side in ("q", "kv"))
        check_attention_inputs(plan.spec, q, k, v, *counts)
        self._agree(plan, q.device)
        runner = _RankRunner(
            plan=plan,
            rank=self.rank,
            kernel=self._kernel,
            group=self._group,
            timeout_s=self._timeout_s,
        )
        out, lse = attend(runner, q, k, v)
        return (out, lse) if return_lse else out

    # --- agreement ---------------------------------------------------------------------------

    def _check_size(self, plan: ExecutionPlan) -> None:
        check_kind("plan", plan, ExecutionPlan)
        devices = len(plan.ranks)
        if devices != self.size:
            raise SpecError(
                f"the plan is for {devices} devices but the group has {self.size} ranks; "
                "plan for a cluster of as many devices as the group has ranks"
            )

    def _agree(self, plan: ExecutionPlan, device: torch.device) -> None:
        """Before a call communicates, see that all ranks come to the same plans."""
        if self._group is None:
            return
        if device.type != "cpu" and dist.get_backend(self._group) == "gloo":
            raise SpecError(f"gloo moves CPU tensors only, got {device}; use NCCL for a GPU")
        agreement_of(self._group).call(plan, self._group, device, self._timeout_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class _RankRunner(Runner):
    """Runs this rank's programs; without a group there is nobody to send to."""

    plan: ExecutionPlan
    rank: int
    kernel: Kernel
    group: dist.ProcessGroup | None
    timeout_s: float

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Planes]:
        executor = self._run("forward", forward_inputs(q, k, v), ())
        out, lse = executor.output(Kind.O)
        return out, lse, kept_planes(executor, self.plan.ranks[self.rank].backward)

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dout: Tensor,
        lse: Tensor,
        delta: Tensor,
        kept: Planes,
    ) -> tuple[Tensor, Tensor, Tensor]:
        executor = self._run("backward", backward_inputs(q, k, v, dout, lse, delta), kept)
        (dq,) = executor.output(Kind.DQ)
        dk, dv = executor.output(Kind.DKV)
        return dq, dk, dv

    def _run(self, phase: Phase, inputs: dict[Kind, Planes], kept: Planes) -> Executor:
        executor, turns = start_rank(
            self.plan,
            self.rank,
            phase,
            inputs,
            iter(kept),
            kernel=self.kernel,
            transport=self._transport(phase, inputs[Kind.Q][0].device),
        )
        # Never yields: both transports below are always ready here.
        for _ in turns:
            pass
        return executor

    def _transport(self, phase: Phase, device: torch.device) -> Transport:
        if self.group is None:
            return LocalTransport(Mailboxes(), self.rank)
        tag = message_tag(self.plan.digest, phase)
        return TorchTransport(self.group, device, tag, self.timeout_s)


def _process_group(
    group_or_mesh: dist.ProcessGroup | DeviceMesh | None,
) -> dist.ProcessGroup | None:
    """The process group, or None where there is one process."""
    if group_or_mesh is None:
        running = dist.is_available() and dist.is_initialized()
        return dist.group.WORLD if running else None
    if isinstance(group_or_mesh, DeviceMesh):
        if group_or_mesh.ndim != 1:
            raise SpecError(
                f"the mesh has {group_or_mesh.ndim} dimensions; take the context-parallel one, "
                'as in mesh["cp"]'
            )
        return group_or_mesh.get_group()
    if isinstance(group_or_mesh, dist.ProcessGroup):
        return group_or_mesh
    raise SpecError(
        f"got {shown(group_or_mesh)}; give a process group that holds this process, a device mesh, "
        "or None for all processes"
    )
