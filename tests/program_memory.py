"""Memory of a rank's programs, full of random numbers, to run single instructions in."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from attention_runs import random_inputs
from torch import Tensor

import dcp
from dcp.blocks import Kind
from dcp.instructions import ARENAS, Buffer, Program
from dcp.runtime.autograd import backward_inputs, forward_inputs
from dcp.runtime.buffers import Buffers, Planes
from dcp.runtime.sharding import shard_for


def home_inputs(
    batch: dcp.Batch, plan: dcp.ExecutionPlan, rank: int
) -> Iterator[tuple[Program, dict[Kind, Planes]]]:
    """Both programs of a rank with home inputs."""
    q, k, v, dout = random_inputs(batch, plan.spec)
    generator = torch.Generator().manual_seed(rank)
    sums = torch.rand(2, *q.shape[:2], generator=generator)
    mine = plan.ranks[rank]
    local = [shard_for(plan, q, rank), *(shard_for(plan, x, rank, "kv") for x in (k, v))]
    rows = [shard_for(plan, x, rank) for x in (dout, *sums)]
    yield mine.forward, forward_inputs(*local)
    yield mine.backward, backward_inputs(*local, *rows)


def memory(
    batch: dcp.Batch, plan: dcp.ExecutionPlan, rank: int
) -> Iterator[tuple[Program, Buffers]]:
    """Both programs of a rank, each in memory of its own; the same numbers every time."""
    generator = torch.Generator().manual_seed(rank)
    left: dict[Buffer, Planes] = {}
    for program, inputs in home_inputs(batch, plan, rank):
        kept = {buffer: left[buffer] for buffer in program.kept_buffers}
        buffers = Buffers(plan.blocks, program, inputs, kept)
        left = {arena: tuple(map(torch.empty_like, buffers.planes(arena))) for arena in ARENAS}
        for plane in (plane for arena in ARENAS for plane in buffers.planes(arena)):
            plane.copy_(torch.randn(plane.shape, generator=generator))
        yield program, buffers


def contents(buffers: Buffers) -> list[Tensor]:
    """All that instructions may have changed."""
    arenas = [plane for arena in ARENAS for plane in buffers.planes(arena)]
    kinds = (Kind.DQ, Kind.DKV) if buffers.planes(Buffer.DO) else (Kind.O,)
    return arenas + [plane for kind in kinds for plane in buffers.output(kind)]
