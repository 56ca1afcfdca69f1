"""Planning of large batches: time, memory of the process, bytes of a rank's plan.

    python benchmarks/planning_large.py

Every case is planned in a process of its own, with our partitioner and scheduler, after a small
batch that loads compiled code. Memory is the most that the process ever held, with the
interpreter, numpy and numba. Run it twice: the first run may compile.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import sys
from typing import NamedTuple

import numpy as np
from planning_setting import HEADS, cpu_s
from rich.console import Console
from rich.table import Table

import dcp
from dcp import plan_file


class Case(NamedTuple):
    """A batch of tokens for a cluster of nodes of eight."""

    name: str
    lengths: list[int]
    nodes: int
    block_size: int


class Measured(NamedTuple):
    """What planning a case takes."""

    seconds: float
    peak_mb: float
    rank_kb: float


def long_tailed(tokens: int, seed: int = 0) -> list[int]:
    """Lengths around 8k with a long tail, a quarter of the tokens at most each, that add up."""
    draw, lengths = np.random.default_rng(seed), list[int]()
    while (left := tokens - sum(lengths)) > 0:
        length = int(math.exp(draw.normal(9.0, 1.5)))
        lengths.append(max(1, min(length, left, tokens // 4)))
    return lengths


def planned(case: Case) -> Measured:
    """Plan a case in this process."""
    options = {"partitioner": "local_search", "scheduler": "overlap"}
    mask = dcp.masks.causal()
    small = dcp.Cluster(nodes=2, devices_per_node=8)
    dcp.plan(dcp.Batch([40_000, 3000], mask=mask), HEADS, small, **options)
    cluster = dcp.Cluster(nodes=case.nodes, devices_per_node=8)
    begin = cpu_s()
    plan = dcp.plan(
        dcp.Batch(case.lengths, mask=mask), HEADS, cluster, block_size=case.block_size, **options
    )
    seconds = cpu_s() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mb = peak * (1 if sys.platform == "darwin" else 1024) / 1e6
    largest = max(len(plan_file.encode(rank)) for rank in plan.ranks)
    return Measured(seconds, peak_mb, largest / 1e3)


def main() -> None:
    """Print a row a case."""
    million = 1 << 20
    cases = [
        Case("4M tokens, eight long sequences", [million // 2] * 8, 64, 2048),
        Case("4M tokens, long-tailed", long_tailed(4 * million), 64, 2048),
        Case("1M tokens, long-tailed", long_tailed(million), 16, 2048),
        Case("128k tokens, one sequence", [131072], 2, 1024),
        Case("128k tokens, long-tailed", long_tailed(131072), 2, 1024),
    ]
    table = Table(title="local_search + overlap, causal, one core")
    for column in ("batch", "sequences", "devices", "block", "CPU s", "peak MB", "rank's plan kB"):
        table.add_column(column, justify="left" if column == "batch" else "right")
    for case in cases:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            found = process.apply(planned, (case,))
        table.add_row(
            case.name,
            str(len(case.lengths)),
            str(case.nodes * 8),
            str(case.block_size),
            f"{found.seconds:.2f}",
            f"{found.peak_mb:.0f}",
            f"{found.rank_kb:.0f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
