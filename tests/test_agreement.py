"""Ranks that come to other plans than the others are found out, and mix no data before that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from attention_runs import random_inputs
from distributed_ranks import run_ranks
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dcp
from dcp.errors import DigestMismatchError, TransportError
from dcp.runtime import agreement
from dcp.runtime.torch_transport import message_tag

pytestmark = pytest.mark.distributed

SPEC = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8, dtype="float32")


def silent(length: int) -> dcp.ExecutionPlan:
    """Two sequences on two ranks: nothing is sent."""
    plan = planned(dcp.Batch([length, length]), partitioner="greedy", scheduler="sequential")
    assert plan.report().comm_bytes == 0
    return plan


def planned(batch: dcp.Batch, **how: str) -> dcp.ExecutionPlan:
    return dcp.plan(batch, SPEC, dcp.Cluster(devices_per_node=2), block_size=16, **how)


def ring(length: int, mask: dcp.masks.Mask | None = None) -> dcp.ExecutionPlan:
    return planned(dcp.Batch([length], mask=mask), baseline="ring")


def inputs_of(cp: dcp.ContextParallel, plan: dcp.ExecutionPlan) -> list[Tensor]:
    batch = dcp.Batch(plan.blocks.q_lengths.tolist())
    return [cp.shard(plan, x) for x in random_inputs(batch, SPEC)[:3]]


def attend(cp: dcp.ContextParallel, *plans: dcp.ExecutionPlan) -> None:
    for plan in plans:
        cp.attention(plan, *inputs_of(cp, plan))


def new_group() -> dist.ProcessGroup:
    group = dist.new_group([0, 1])
    assert group is not None
    return group


def check_histories(rank: int, world_size: int, folder: Path) -> None:
    a, b, new, newer = (silent(length) for length in (16, 32, 48, 64))
    orders = {
        "another order": ((a, b), (b, a)),
        "a call left out": ((a, b), (a,)),
        "another plan": ((a, a), (a, b)),
    }
    for what, both in orders.items():
        cp = dcp.ContextParallel(new_group(), timeout_s=30)
        attend(cp, a, b)
        attend(cp, *both[rank])  # known to both: nothing is compared
        counts = [2 + len(both[which]) for which in (rank, 1 - rank)]
        with pytest.raises(DigestMismatchError) as caught:
            attend(cp, new)
        found = re.fullmatch(
            rf"rank {rank} has made {counts[0]} calls with plans whose digests hash to (\w{{64}}), "
            rf"but rank {1 - rank} {counts[1]} calls that hash to (\w{{64}}): .* after the first 2 "
            r"calls, .* log plan\.digest at every call on both ranks, .* a new group",
            str(caught.value),
        )
        assert found, (what, str(caught.value))
        (folder / f"{what} {rank}").write_text(" ".join(found.groups()))
        dist.barrier()
        theirs = (folder / f"{what} {1 - rank}").read_text().split()
        assert list(found.groups()) == theirs[::-1], "each names the other's value"
        with pytest.raises(DigestMismatchError):  # it stays so, whatever comes
            attend(cp, newer)


def test_other_plans_that_were_known_are_found_out_with_the_next_new_one(tmp_path: Path) -> None:
    run_ranks(check_histories, 2, tmp_path)


def check_equal_calls(rank: int, world_size: int, folder: Path) -> None:
    a, b, c = ring(40), silent(16), ring(64)
    group, compared = new_group(), []
    gather = agreement.gather_bytes
    agreement.gather_bytes = lambda *given: compared.append(given) or gather(*given)  # type: ignore
    first, second = (dcp.ContextParallel(group, timeout_s=30) for _ in range(2))
    attend(first, a)
    # Which object of a group is called changes nothing, nor when it was made.
    attend(second if rank else first, b, a)
    attend(dcp.ContextParallel(group, timeout_s=30) if rank else second, a, b)
    for reentrant in (False, True):
        local = [x.requires_grad_() for x in inputs_of(first, a)]

        def layer(*qkv: Tensor) -> Tensor:
            return torch.relu(first.attention(a, *qkv)) + qkv[0]

        out: Tensor = checkpoint(layer, *local, use_reentrant=reentrant)  # calls it twice
        out.sum().backward()
    assert len(compared) == 2
    attend(second, c)
    assert len(compared) == 3


def test_equal_calls_agree_by_whatever_object_and_are_compared_once_a_plan(tmp_path: Path) -> None:
    run_ranks(check_equal_calls, 2, tmp_path)


def check_crossed_plans(rank: int, world_size: int, folder: Path) -> None:
    full, shorter = ring(64, dcp.masks.full()), ring(32, dcp.masks.full())
    half = ring(64, dcp.masks.causal())
    sent = [plan.report().comm_bytes for plan in (shorter, half, full)]
    assert sent[0] < sent[1] == sent[2]
    for other in (shorter, half):
        cp = dcp.ContextParallel(new_group(), timeout_s=2)
        attend(cp, full, other)
        with pytest.raises(
            TransportError, match=rf"rank {rank} (sends|waits for) rank {1 - rank}.*another plan"
        ):
            attend(cp, other if rank else full)
        dist.barrier()


def test_crossed_plans_name_the_peer_and_mix_no_data(tmp_path: Path) -> None:
    run_ranks(check_crossed_plans, 2, tmp_path)


def check_crossed_phases(rank: int, world_size: int, folder: Path) -> None:
    """One rank goes back where the other attends again, as with checkpoints on one only."""
    plan = ring(64, dcp.masks.full())
    cp = dcp.ContextParallel(new_group(), timeout_s=2)
    local = [x.requires_grad_() for x in inputs_of(cp, plan)]
    out = cp.attention(plan, *local)
    with pytest.raises(TransportError, match=rf"rank {rank} (sends|waits for) rank {1 - rank}"):
        cp.attention(plan, *local) if rank else out.sum().backward()
    dist.barrier()


def test_backward_takes_no_message_of_forward(tmp_path: Path) -> None:
    run_ranks(check_crossed_phases, 2, tmp_path)


def test_tags_differ_by_plan_and_phase_and_fit_31_bits() -> None:
    digests = ("0" * 64, "f" * 64, "0" * 6 + "1" + "0" * 57)
    tags = {message_tag(digest, "forward") for digest in digests}
    tags |= {message_tag(digest, "backward") for digest in digests}
    assert len(tags) == 6
    assert min(tags) == 0
    assert max(tags) == 2**29 - 1
