"""Placement problems that every partitioner has to answer, and workload batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dcp import masks
from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.packing import tightest_load
from dcp.placement import Assignment, Limits, PlacementProblem

# The first batch of every family, 131072 tokens.
_FAMILIES = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "batches.json"
BATCHES: dict[str, list[int]] = {
    name: batches[0] for name, batches in json.loads(_FAMILIES.read_text())["families"].items()
}
GQA = AttentionSpec(num_q_heads=8, num_kv_heads=2, head_dim=128)
EIGHT_BY_TWO = Cluster(nodes=8, devices_per_node=2)
FOUR_BY_EIGHT = Cluster(nodes=4, devices_per_node=8)


def problem_of(
    batch: Batch,
    cluster: Cluster,
    *,
    block_size: int = 64,
    spec: AttentionSpec = GQA,
    **options: Any,
) -> PlacementProblem:
    return PlacementProblem.of(cut(batch, spec, block_size), cluster, **options)


def workload(
    name: str,
    mask: masks.Mask,
    cluster: Cluster,
    *,
    block_size: int = 2048,
    limits: Limits | None = None,
) -> PlacementProblem:
    batch = Batch(BATCHES[name], mask=mask)
    return problem_of(batch, cluster, block_size=block_size, limits=limits)


def _two_by_two(batch: Batch, **options: Any) -> PlacementProblem:
    return problem_of(batch, Cluster(nodes=2, devices_per_node=2), **options)


LENGTHS = [900, 130, 64, 1, 333, 700]

PROBLEMS: dict[str, Callable[[], PlacementProblem]] = {
    "causal": lambda: _two_by_two(Batch(LENGTHS)),
    "full": lambda: _two_by_two(Batch(LENGTHS, mask=masks.full())),
    "lambda": lambda: _two_by_two(Batch(LENGTHS, mask=masks.lambda_mask(16, 128))),
    "shared question": lambda: _two_by_two(
        Batch([900, 700], mask=masks.shared_question(question_fraction=0.3, answers=3))
    ),
    "mixed masks": lambda: _two_by_two(
        Batch([900, 700, 130], mask=[masks.causal(), masks.sliding_window(100), masks.full()])
    ),
    "cross-attention": lambda: _two_by_two(Batch([900, 0, 64], [300, 200, 700], mask=masks.full())),
    "three nodes": lambda: problem_of(Batch(LENGTHS), Cluster(nodes=3, devices_per_node=3)),
    "one node": lambda: problem_of(Batch(LENGTHS), Cluster(devices_per_node=5)),
    "one device a node": lambda: problem_of(Batch(LENGTHS), Cluster(nodes=4, devices_per_node=1)),
    "one device": lambda: problem_of(Batch(LENGTHS), Cluster(devices_per_node=1)),
    "many head groups": lambda: _two_by_two(
        Batch([500, 40]), spec=AttentionSpec(num_q_heads=8, num_kv_heads=8, head_dim=8)
    ),
    "no sequences": lambda: _two_by_two(Batch([])),
    "no tokens": lambda: _two_by_two(Batch([0, 0])),
    "no computations": lambda: _two_by_two(Batch([100, 70], [0, 0], mask=masks.full())),
    "one block": lambda: _two_by_two(Batch([64])),
    "fewer blocks than devices": lambda: problem_of(
        Batch([64, 10, 100]), Cluster(nodes=3, devices_per_node=4)
    ),
    "one giant among dwarfs": lambda: _two_by_two(Batch([2000, *[3] * 40]), block_size=2000),
    "exact balance asked": lambda: _two_by_two(
        Batch(LENGTHS), limits=Limits(inter_node=0.0, intra_node=0.0)
    ),
    "devices limited over all nodes": lambda: _two_by_two(
        Batch(LENGTHS), limits=Limits(device=0.05)
    ),
}


def digest(answer: Assignment) -> str:
    """A name for an answer, to compare processes."""
    return hashlib.sha256(
        np.concatenate([answer.token_home, answer.comp_device]).astype("<i8").tobytes()
    ).hexdigest()


def random_problem(seed: int) -> PlacementProblem:
    """Arrays that no batch would give: weights of 0 and of 10^15, blocks that nobody reads."""
    draw = np.random.default_rng(seed)
    tokens, groups = int(draw.choice([1, 2, 5, 20])), int(draw.choice([1, 3]))
    most = tokens * tokens * groups
    key = np.sort(draw.choice(most, min(most, int(draw.choice([1, 3, 30, 150]))), replace=False))
    flops = draw.integers(0, int(draw.choice([2, 10**12])), len(key))
    flops[0] *= int(draw.choice([1, 1000]))
    token_tokens = draw.integers(0, int(draw.choice([2, 4096])), tokens)
    cluster = Cluster(
        nodes=int(draw.choice([1, 2, 5])), devices_per_node=int(draw.choice([1, 2, 7]))
    )
    return PlacementProblem(
        token_tokens=token_tokens,
        data_bytes=draw.integers(0, int(draw.choice([1, 2, 10**9])), (6, tokens, groups)),
        comp_q=key // (tokens * groups),
        comp_kv=key // groups % tokens,
        comp_group=key % groups,
        comp_flops=flops,
        cluster=cluster,
        limits=Limits(
            inter_node=float(draw.choice([0, 0.4])),
            intra_node=float(draw.choice([0, 0.1])),
            device=[None, 0.1][int(draw.integers(2))],
        ),
        token_limit=tightest_load(token_tokens, cluster.num_devices),
        seed=int(draw.integers(-5, 2**33)),
    )
