"""CPU time of planned attention over that of one process doing the same work.

Every plan runs with all its ranks in this process, forward and backward. The reference runs
torch's fused CPU attention on one whole causal sequence after another; for a sparse mask its time
counts by the share of causal pairs that the mask allows. The plans of all shapes of the same
lengths and their one reference take turns in one process on one thread, so that their ratio holds
on a shared machine.

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
    chosen,
    fused_causal,
    planned,
    random_tensors,
    spec_of,
)
from tidy import Measurement, write_csv

import dcp

_Work = tuple[str, str]
"""Shape and strategy."""
_REFERENCE: _Work = ("", "reference")


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
    cluster = dcp.Cluster(devices_per_node=ranks)
    measurements = []
    print(f"{'shape':21} {'dtype':9} {'dim':>4} {'reference':>10}", *_cells(names))
    for alike, head_dim, dtype in itertools.product(
        _of_equal_lengths(chosen(shapes, SHAPES)),
        map(int, head_dims.split(",")),
        chosen(dtypes, ("float32", "bfloat16")),
    ):
        works = _works(alike, names, cluster, head_dim, dtype, seed)
        times = _cpu_times(works, repeats)
        for title in alike:
            own = {"reference": times[_REFERENCE], **{name: times[title, name] for name in names}}
            reference = min(own["reference"]) * SHAPES[title].share_of_causal
            ratios = (f"{min(own[name]) / reference:.3f}" for name in names)
            row = f"{title:21} {dtype:9} {head_dim:4} {reference:8.3f} s"
            print(row, *_cells(ratios), flush=True)
            setting = {"shape": title, "dtype": dtype, "head_dim": head_dim, "ranks": ranks}
            measurements += [
                Measurement(
                    name="executor.cpu",
                    parameters={**setting, "strategy": name},
                    samples=took,
                    unit="s",
                )
                for name, took in own.items()
            ]
    if csv:
        write_csv(csv, measurements, seed=seed)


def _of_equal_lengths(titles: list[str]) -> list[list[str]]:
    """Titles of shapes that have one reference."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for title in titles:
        groups.setdefault(tuple(SHAPES[title].lengths), []).append(title)
    return list(groups.values())


def _cells(texts: Iterable[str]) -> list[str]:
    return [f"{text:>9}" for text in texts]


def _works(
    titles: list[str], names: list[str], cluster: dcp.Cluster, head_dim: int, dtype: str, seed: int
) -> dict[_Work, Callable[[], object]]:
    """What to measure: forward and backward of every plan, and the reference of these shapes.

    Args:
        titles: Of shapes of the same lengths.
        names: Of strategies.
        cluster: To plan for.
        head_dim, dtype: Of the heads.
        seed: Of plans and tensors.
    """
    lengths = SHAPES[titles[0]].lengths
    tensors = random_tensors(sum(lengths), head_dim, dtype, seed=seed)
    dout = tensors[3]
    inputs = tuple(x.detach().requires_grad_() for x in tensors[:3])

    def work(plan: dcp.ExecutionPlan) -> Callable[[], object]:
        return lambda: torch.autograd.grad(dcp.run_local(plan, *inputs), inputs, dout)

    spec = spec_of(head_dim, dtype)
    plans = {
        (title, name): planned(SHAPES[title], name, spec, cluster, seed=seed)
        for title, name in itertools.product(titles, names)
    }
    return {
        _REFERENCE: lambda: fused_causal(lengths, tensors),
        **{key: work(plan) for key, plan in plans.items()},
    }


def _cpu_times(works: dict[_Work, Callable[[], object]], repeats: int) -> dict[_Work, list[float]]:
    """CPU seconds of every repetition; all take turns."""
    for key, work in works.items():
        if key != _REFERENCE:
            work()  # compiles the plan's calls and fills caches
    times: dict[_Work, list[float]] = {key: [] for key in works}
    for _ in range(repeats):
        for key, work in works.items():
            start = time.process_time()
            work()
            times[key].append(time.process_time() - start)
    return times


if __name__ == "__main__":
    typer.run(main)
