"""Static schemes arranged for small batches, and what is in their schedules."""

from __future__ import annotations

from typing import Any

import numpy as np

from dcp.baseline import Arrangement
from dcp.batch import AttentionSpec, Batch
from dcp.blocks import Kind
from dcp.cluster import Cluster
from dcp.plan_request import PlanRequest
from dcp.registry import create
from dcp.scheduling import Schedule

GQA = AttentionSpec(num_q_heads=8, num_kv_heads=4, head_dim=16)
EVEN = [64, 128]  # lengths that 2 * 8 ranks divide


def arranged(
    name: str,
    lengths: list[int],
    devices: int,
    *,
    mask: Any = None,
    spec: AttentionSpec = GQA,
    block_size: int = 1 << 20,
    kv_lengths: list[int] | None = None,
) -> Arrangement:
    request = PlanRequest(
        batch=Batch(lengths, kv_lengths, mask=mask),
        spec=spec,
        cluster=Cluster(devices_per_node=devices),
        block_size=block_size,
    )
    return create("baselines", name).arrange(request)


def sent_bytes(answer: Arrangement, schedule: Schedule, kind: Kind, devices: int) -> np.ndarray:
    """Bytes of a kind that each device sends, [devices]."""
    moves = schedule.transfers
    size = moves.bytes_of(answer.blocks) * (moves.kind == kind)
    return np.bincount(moves.src, weights=size, minlength=devices)


def total_bytes(answer: Arrangement, kind: Kind) -> int:
    return int(answer.blocks.data_bytes[kind].sum())


def hop_chain(schedule: Schedule, kind: Kind, block: int) -> list[tuple[int, int, int]]:
    """(step, src, dst) of one block's first head group, in order."""
    moves = schedule.transfers
    chosen = (moves.kind == kind) & (moves.block == block) & (moves.group == 0)
    columns = (moves.step[chosen], moves.src[chosen], moves.dst[chosen])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def rows_of(schedule: Schedule) -> list[tuple[int, ...]]:
    moves = schedule.transfers
    columns = (moves.kind, moves.block, moves.group, moves.src, moves.dst, moves.step)
    return list(zip(*(column.tolist() for column in columns), strict=True))
