"""Plans on several gloo processes: the same bits as in one process, and errors instead of hangs.

Starting processes costs seconds, so each test hands one function with several checks to a world.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from attention_runs import random_inputs, run_both_ways
from distributed_ranks import run_ranks
from plan_damage import instructions_of, kinds_of, program_of
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import dcp
from dcp import registry
from dcp.blocks import Kind
from dcp.errors import (
    DigestMismatchError,
    DtypeError,
    ShapeError,
    SpecError,
    TransportError,
)
from dcp.instructions import CommLaunch
from dcp.verification import check_within_budget

pytestmark = pytest.mark.distributed

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="float32")
SELF = dcp.Batch([150, 0, 61, 1])
WINDOW = dcp.Batch([130, 47], mask=dcp.masks.sliding_window(50))
CROSS = dcp.Batch([70, 0, 25], [30, 10, 90], mask=dcp.masks.full())
LONG = dcp.Batch([150, 61], mask=dcp.masks.full())
# Nodes so far apart that data had better cross once and be relayed.
FAR_APART = dcp.Cluster(
    nodes=2, devices_per_node=2, inter=dcp.Link(bandwidth_bytes_per_s=1e6, latency_s=1e-6)
)


def planned(
    batch: dcp.Batch, dtype: str, ranks: int, **how: str
) -> tuple[dcp.Batch, dcp.AttentionSpec, dcp.ExecutionPlan]:
    spec = replace(SPEC, dtype=dtype)
    cluster = dcp.Cluster(devices_per_node=ranks)
    return batch, spec, dcp.plan(batch, spec, cluster, block_size=24, **how)


def run_on_group(
    cp: dcp.ContextParallel, plan: dcp.ExecutionPlan, inputs: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """Shard, attend, unshard and go back; every rank returns everything, in batch order."""
    q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
    local = cp.shard(plan, q), cp.shard(plan, k, "kv"), cp.shard(plan, v, "kv")
    out = cp.unshard(plan, cp.attention(plan, *local))
    out.backward(inputs[3])
    results = {"out": out.detach()}
    for name, x, side in (("dq", q, "q"), ("dk", k, "kv"), ("dv", v, "kv")):
        assert x.grad is not None
        mine = cp.local_indices(plan, side)
        elsewhere = torch.ones(len(x), dtype=torch.bool)
        elsewhere[mine] = False
        assert not x.grad[elsewhere].any()
        results[name] = cp.unshard(plan, x.grad[mine], side)
    return results


def check_schemes(rank: int, world_size: int, folder: Path) -> None:
    cp = dcp.ContextParallel(timeout_s=30)
    for batch, spec, plan in (
        planned(SELF, "float64", world_size, baseline="ring"),
        planned(SELF, "bfloat16", world_size, baseline="zigzag"),
        planned(WINDOW, "float32", world_size, baseline="ulysses"),
        planned(CROSS, "float64", world_size, baseline="usp"),
        planned(CROSS, "bfloat16", world_size, partitioner="greedy", scheduler="paper"),
        planned(WINDOW, "float16", world_size, partitioner="greedy", scheduler="sequential"),
    ):
        inputs = random_inputs(batch, spec)
        check_within_budget(batch, spec, inputs, check_bits(cp, plan, inputs))


def check_bits(
    cp: dcp.ContextParallel, plan: dcp.ExecutionPlan, inputs: tuple[Tensor, Tensor, Tensor, Tensor]
) -> dict[str, Tensor]:
    """Assert that the group's results are those of one process, bit by bit."""
    results, local = run_on_group(cp, plan, inputs), run_both_ways(plan, inputs)
    for name in results:
        assert torch.equal(results[name], local[name]), (plan.origin, name)
    return results


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_scheme_gives_the_bits_of_one_process(world_size: int, tmp_path: Path) -> None:
    run_ranks(check_schemes, world_size, tmp_path)


PARTITIONERS = ("greedy", "kahypar", "mtkahypar")


def check_saved_plans(rank: int, world_size: int, folder: Path) -> None:
    cp = dcp.ContextParallel(timeout_s=30)
    for file in sorted(folder.glob("*.plan")):
        check_bits(cp, dcp.ExecutionPlan.load(file), random_inputs(LONG, SPEC))


@pytest.fixture(scope="module")
def checked_plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dcp.ExecutionPlan]:
    """Plans by every partitioner that can run here, which four ranks have run like one process."""
    folder, plans = tmp_path_factory.mktemp("plans"), {}
    for name in PARTITIONERS:
        if registry.load("partitioners", name).availability().available:
            plans[name] = dcp.plan(
                LONG, SPEC, FAR_APART, block_size=24, partitioner=name, scheduler="overlap"
            )
            plans[name].save(folder / f"{name}.plan")
    run_ranks(check_saved_plans, 4, folder)
    return plans


def num_relayed(plan: dcp.ExecutionPlan) -> int:
    """Keys and values that ranks which are not their home send on."""
    count = 0
    for rank, _, launch in instructions_of(plan, "forward", CommLaunch):
        kinds = kinds_of(program_of(plan, rank, "forward"), launch.sends)
        homes = plan.placement.token_home[launch.sends["block"]]
        count += sum(
            kind == Kind.KV and home != rank for kind, home in zip(kinds, homes, strict=True)
        )
    return count


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_relays_between_nodes_give_the_bits_of_one_process(
    partitioner: str, checked_plans: dict[str, dcp.ExecutionPlan]
) -> None:
    if partitioner not in checked_plans:
        pytest.skip(registry.load("partitioners", partitioner).availability().reason)
    assert num_relayed(checked_plans[partitioner])


def check_edges(rank: int, world_size: int, folder: Path) -> None:
    cp = dcp.ContextParallel(timeout_s=30)
    cases: dict[str, Callable[[], None]] = {
        "no tokens at all": lambda: _run(cp, dcp.Batch([0]), world_size),
        "ranks without tokens": lambda: _run(cp, dcp.Batch([5]), world_size),
        "keys without queries": lambda: _run(cp, dcp.Batch([0], [9]), world_size),
    }
    for check in cases.values():
        check()
    _repeats(cp, world_size)
    _unshards_any_tensor(cp, world_size)
    _refuses_bad_input(cp, world_size)


def _run(cp: dcp.ContextParallel, batch: dcp.Batch, world_size: int) -> None:
    batch, spec, plan = planned(batch, "float64", world_size, baseline="zigzag")
    inputs = random_inputs(batch, spec)
    check_within_budget(batch, spec, inputs, run_on_group(cp, plan, inputs))


def _repeats(cp: dcp.ContextParallel, world_size: int) -> None:
    """TransformerEngine#1624: occasional races."""
    batch, spec, plan = planned(dcp.Batch([60, 60]), "bfloat16", world_size, baseline="ring")
    inputs = random_inputs(batch, spec)
    first = run_on_group(cp, plan, inputs)
    for _ in range(30):
        again = run_on_group(cp, plan, inputs)
        assert all(torch.equal(again[name], first[name]) for name in first)


def _unshards_any_tensor(cp: dcp.ContextParallel, world_size: int) -> None:
    *_, plan = planned(SELF, "float32", world_size, baseline="zigzag")
    ids = torch.arange(212)
    for x in (ids, ids[:, None] > 100, (ids * 1j).reshape(-1, 1, 1), ids.bfloat16()):
        assert torch.equal(cp.unshard(plan, cp.shard(plan, x)), x)


def _refuses_bad_input(cp: dcp.ContextParallel, world_size: int) -> None:
    """On all ranks alike, before anything is sent."""
    batch, spec, plan = planned(SELF, "float32", world_size, baseline="ring")
    q, k, v, _ = random_inputs(batch, spec)
    local = [cp.shard(plan, x) for x in (q, k, v)]
    with pytest.raises(ShapeError, match=r"q has shape \(212, 4, 16\); this plan needs"):
        cp.attention(plan, q, k, v)
    with pytest.raises(DtypeError, match=r"q is torch.float64; the plan is for float32"):
        cp.attention(plan, local[0].double(), *local[1:])
    with pytest.raises(SpecError, match="gloo moves CPU tensors only, got meta"):
        cp.attention(plan, *(x.to("meta") for x in local))
    *_, larger = planned(SELF, "float32", world_size + 1, baseline="ring")
    with pytest.raises(
        SpecError, match=f"for {world_size + 1} devices but the group has {world_size} ranks"
    ):
        cp.attention(larger, *local)


def test_edges_on_three_processes(tmp_path: Path) -> None:
    run_ranks(check_edges, 3, tmp_path)


def check_groups(rank: int, world_size: int, folder: Path) -> None:
    """Megatron-LM#6746: two groups of two at once, each with a batch of its own."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, other = pairs[rank // 2], pairs[1 - rank // 2]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    lengths = [256] if rank < 2 else [100, 30]
    for handle in (mine, mesh["cp"], mesh["cp"].get_group()):
        cp = dcp.ContextParallel(handle, timeout_s=30)
        assert (cp.rank, cp.size) == (rank % 2, 2)
        batch, spec, plan = planned(dcp.Batch(lengths), "float64", 2, baseline="ring")
        inputs = random_inputs(batch, spec, seed=rank // 2)
        check_within_budget(batch, spec, inputs, run_on_group(cp, plan, inputs))
    with pytest.raises(SpecError, match=r"2 dimensions; .*mesh\[\"cp\"\]"):
        dcp.ContextParallel(mesh)
    with pytest.raises(SpecError, match="give a process group that holds this process"):
        dcp.ContextParallel(other)
    # Backwards ranks: global rank and group rank differ on every process.
    across = dist.new_group([0, 2]), dist.new_group([1, 3])
    cp = dcp.ContextParallel(across[rank % 2], timeout_s=30)
    batch, spec, plan = planned(SELF, "float64", 2, partitioner="greedy", scheduler="paper")
    inputs = random_inputs(batch, spec)
    check_within_budget(batch, spec, inputs, run_on_group(cp, plan, inputs))


def test_groups_inside_a_world_of_four(tmp_path: Path) -> None:
    run_ranks(check_groups, 4, tmp_path)


def check_digests(rank: int, world_size: int, folder: Path) -> None:
    lengths = [150, 61] if rank == 1 else [61, 150]
    _, _, plan = planned(dcp.Batch(lengths), "float32", world_size, baseline="ring")
    _, _, right = planned(dcp.Batch([61, 150]), "float32", world_size, baseline="ring")
    cp = dcp.ContextParallel(timeout_s=30)
    q, k, v, _ = random_inputs(dcp.Batch(lengths), SPEC)
    with pytest.raises(DigestMismatchError) as caught:
        cp.attention(plan, *(cp.shard(plan, x) for x in (q, k, v)))
    assert plan.digest in str(caught.value)
    if rank == 1:
        assert right.digest in str(caught.value)
    cp.attention(right, *(cp.shard(right, x) for x in (q, k, v)))  # the group is still of use


def test_different_plans_are_refused_with_both_digests(tmp_path: Path) -> None:
    run_ranks(check_digests, 3, tmp_path)


def check_absence(rank: int, world_size: int, folder: Path) -> None:
    """Rank 1 stays away, first from the digests' comparison, then from attention."""
    _, _, plan = planned(SELF, "float32", world_size, baseline="ring")
    inputs = random_inputs(SELF, SPEC)[:3]
    groups = [dist.new_group(list(range(world_size))) for _ in range(2)]
    strangers, acquainted = (dcp.ContextParallel(group, timeout_s=2) for group in groups)
    local = [acquainted.shard(plan, x) for x in inputs]
    acquainted.attention(plan, *local)
    if rank == 1:
        _wait_for_files(folder, world_size - 1)
        return
    started = time.monotonic()
    with pytest.raises(TransportError, match=f"rank {rank} compares plan digests"):
        strangers.attention(plan, *local)
    with pytest.raises(
        TransportError,
        match=rf"rank {rank} (waits for|sends) rank \d.* block \d+, (to arrive )?before division",
    ):
        acquainted.attention(plan, *local)
    assert time.monotonic() - started < 10
    (folder / f"done {rank}").touch()


def check_death(rank: int, world_size: int, folder: Path) -> None:
    """Rank 1 dies between forward and backward."""
    _, _, plan = planned(SELF, "float32", world_size, baseline="ring")
    cp = dcp.ContextParallel(timeout_s=10)
    local = [cp.shard(plan, x).requires_grad_() for x in random_inputs(SELF, SPEC)[:3]]
    out = cp.attention(plan, *local)
    dist.barrier()
    if rank == 1:
        os._exit(0)
    with pytest.raises(TransportError, match=rf"rank {rank} (waits for|sends) rank \d"):
        out.sum().backward()


def _wait_for_files(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(list(folder.glob("done *"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("check", [check_absence, check_death])
def test_a_rank_that_never_comes_is_named(
    check: Callable[[int, int, Path], None], tmp_path: Path
) -> None:
    run_ranks(check, 3, tmp_path)


SCRIPT = """
import torch, torch.distributed as dist
import dcp

dist.init_process_group("gloo")
batch = dcp.Batch([90, 20])
heads = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8, dtype="float64")
cluster = dcp.Cluster(devices_per_node=dist.get_world_size())
plan = dcp.plan(batch, heads, cluster, block_size=16, baseline="zigzag")
cp = dcp.ContextParallel(timeout_s=30)
torch.manual_seed(0)
q, k, v = (torch.randn(110, h, 8, dtype=torch.float64) for h in (2, 1, 1))
out = cp.unshard(plan, cp.attention(plan, *(cp.shard(plan, x) for x in (q, k, v))))
assert torch.equal(out, dcp.run_local(plan, q, k, v))
dist.destroy_process_group()
"""


def test_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(dcp.__file__).parents[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    rendezvous = ["--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    subprocess.run(
        [*torchrun, *rendezvous, "--rdzv-endpoint=localhost:0", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
        timeout=90,
        check=True,
    )


class TestOneProcess:
    """Without torch.distributed there is nobody to send to."""

    def test_attention_is_differentiable_and_sends_nothing(self) -> None:
        assert not dist.is_initialized()
        cp = dcp.ContextParallel()
        assert (cp.rank, cp.size) == (0, 1)
        batch, spec, plan = planned(SELF, "float64", 1, baseline="ring")
        inputs = random_inputs(batch, spec)
        check_within_budget(batch, spec, inputs, run_on_group(cp, plan, inputs))

    def test_lse_is_returned_on_demand(self) -> None:
        batch, spec, plan = planned(SELF, "float32", 1, baseline="ring")
        inputs = random_inputs(batch, spec)[:3]
        out, lse = dcp.ContextParallel().attention(plan, *inputs, return_lse=True)
        expected = dcp.run_local(plan, *inputs, return_lse=True)
        assert torch.equal(out, expected[0])
        assert torch.equal(lse, expected[1])

    def test_what_is_no_group_is_refused(self) -> None:
        with pytest.raises(SpecError, match="got 'world'; give a process group"):
            dcp.ContextParallel("world")  # type: ignore[arg-type]

    def test_a_timeout_is_positive(self) -> None:
        with pytest.raises(SpecError, match="timeout_s is 0"):
            dcp.ContextParallel(timeout_s=0)


def test_a_group_of_one_process_sends_nothing_to_itself(tmp_path: Path) -> None:
    run_ranks(check_schemes, 1, tmp_path)
