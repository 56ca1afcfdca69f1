"""CPU time of planned attention over that of one process doing the same work.

Every plan runs with all its ranks in this process, forward and backward. The reference runs
torch's fused CPU attention on one whole causal sequence after another; for a sparse mask its time
counts by the share of causal pairs that the mask allows. Plans and reference take turns in one
process on one thread, so that their ratio holds on a shared machine.

    python benchmarks/executor_cpu.py --shapes one,ragged --dtypes float32 --csv out.csv
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import torch
import typer
from executor_setting import (
    SHAPES,
    STRATEGIES,
    Shape,
    chosen,
    fused_causal,
    planned,
    random_tensors,
    spec_of,
)
from tidy import Measurement, write_csv

import dcp


def main(
    shapes: Annotated[str, typer.Option()] = "one,ragged,lambda,shared-question,causal-blockwise",
    strategies: Annotated[str, typer.Option()] = "ours,zigzag,ring,usp",
    dtypes: Annotated[str, typer.Option()] = "float32,bfloat16",
    head_dims: Annotated[str, typer.Option()] = "64,128",
    ranks: Annotated[int, typer.Option()] = 4,
    repeats: Annotated[int, typer.Option()] = 3,
    seed: Annotated[int, typer.Option()] = 0,
    csv: Annotated[Path | None, typer.Option(help="also write the times there, tidy")] = None,
) -> None:
    """Print a row for every shape, head dimension and dtype: least CPU time over the reference."""
    torch.set_num_threads(1)
    names = chosen(strategies, STRATEGIES)
    measurements = []
    print(f"{'shape':21} {'dtype':9} {'dim':>4} {'reference':>10}", *_cells(names))
    for title, head_dim, dtype in itertools.product(
        chosen(shapes, SHAPES),
        map(int, head_dims.split(",")),
        chosen(dtypes, ("float32", "bfloat16")),
    ):
        shape = SHAPES[title]
        works = _works(shape, names, dcp.Cluster(devices_per_node=ranks), head_dim, dtype, seed)
        times = _cpu_times(works, repeats)
        reference = min(times["reference"]) * shape.share_of_causal
        ratios = (f"{min(times[name]) / reference:.3f}" for name in names)
        print(f"{title:21} {dtype:9} {head_dim:4} {reference:8.3f} s", *_cells(ratios), flush=True)
        setting = {"shape": title, "dtype": dtype, "head_dim": head_dim, "ranks": ranks}
        measurements += [
            Measurement(
                name="executor.cpu",
                parameters={**setting, "strategy": name},
                samples=took,
                unit="s",
            )
            for name, took in times.items()
        ]
    if csv:
        write_csv(csv, measurements, seed=seed)


def _cells(texts: Iterable[str]) -> list[str]:
    return [f"{text:>9}" for text in texts]


def _works(
    shape: Shape, names: list[str], cluster: dcp.Cluster, head_dim: int, dtype: str, seed: int
) -> dict[str, Callable[[], object]]:
    """What to measure: forward and backward of every strategy's plan, and the reference."""
    tensors = random_tensors(sum(shape.lengths), head_dim, dtype, seed=seed)
    dout = tensors[3]
    inputs = tuple(x.detach().requires_grad_() for x in tensors[:3])

    def work(plan: dcp.ExecutionPlan) -> Callable[[], object]:
        return lambda: torch.autograd.grad(dcp.run_local(plan, *inputs), inputs, dout)

    spec = spec_of(head_dim, dtype)
    plans = {name: planned(shape, name, spec, cluster, seed=seed) for name in names}
    return {
        "reference": lambda: fused_causal(shape.lengths, tensors),
        **{name: work(plan) for name, plan in plans.items()},
    }


def _cpu_times(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of every repetition; all take turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            start = time.process_time()
            work()
            if repeat:  # the first one compiles the plan's calls and fills caches
                times[name].append(time.process_time() - start)
    return times


if __name__ == "__main__":
    typer.run(main)
