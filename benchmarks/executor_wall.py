"""Wall time of planned attention on local processes, beside static schemes.

One process a rank, joined by gloo, a thread each; forward and backward. Strategies take turns
within one run. The reference is one of these processes alone, which runs torch's fused CPU
attention on the whole sequences, causally; machines can be compared by it.

    python benchmarks/executor_wall.py --shapes one-4k,ragged --csv out.csv

"/zigzag" is the time over that of zigzag in the same round, "CPU" the CPU time of all ranks over
the reference's share of it that the mask allows, "MB" and "inter" what a forward pass sends, in
all and between nodes. With fewer cores than ranks, wall time follows
the work of all ranks rather than that of the busiest one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from executor_ranks import REFERENCE, Case, Job, Result, Times, run_ranks, save_plans
from executor_setting import SHAPES, STRATEGIES, chosen, planned, spec_of
from rich.console import Console
from rich.table import Table
from tidy import Measurement, quantiles, write_csv

import dcp

Plans = Mapping[str, Mapping[str, dcp.ExecutionPlan]]
"""Plans by shape and strategy."""

BASIS = "zigzag"
_SHAPES = "one-4k,varlen-4k,short,ragged,lambda-2k,shared-question,causal-blockwise"


def main(
    shapes: Annotated[str, typer.Option()] = _SHAPES,
    strategies: Annotated[str, typer.Option()] = ",".join(STRATEGIES),
    dtype: Annotated[str, typer.Option()] = "float32",
    head_dim: Annotated[int, typer.Option()] = 64,
    ranks: Annotated[int, typer.Option()] = 4,
    rounds: Annotated[int, typer.Option()] = 5,
    seed: Annotated[int, typer.Option()] = 0,
    csv: Annotated[Path | None, typer.Option(help="also write the times there, tidy")] = None,
) -> None:
    """Print times of every shape and strategy, and their ratios to zigzag."""
    cluster = dcp.Cluster.preset("local", devices_per_node=ranks)
    spec = spec_of(head_dim, dtype)
    plans = plan_all(shapes, strategies, spec, cluster, seed=seed)
    times = run_plans(plans, run_ranks, rounds=rounds, seed=seed)
    print_times(times, plans, title=f"forward + backward, {ranks} ranks, {dtype}, {head_dim}")
    if csv:
        setting = {"dtype": dtype, "head_dim": head_dim, "ranks": ranks}
        write_csv(csv, list(measurements(times, setting)), seed=seed)


def plan_all(
    shapes: str, strategies: str, spec: dcp.AttentionSpec, cluster: dcp.Cluster, *, seed: int
) -> Plans:
    """Plans of all shapes and strategies, with those that others are compared with."""
    names = dict.fromkeys([BASIS, *chosen(strategies, STRATEGIES)])
    return {
        title: {name: planned(SHAPES[title], name, spec, cluster, seed=seed) for name in names}
        for title in chosen(shapes, SHAPES)
    }


def run_plans(plans: Plans, run: Callable[[Job], Result], *, rounds: int, seed: int) -> Result:
    """Run all plans in one group of processes."""
    some_plan = next(iter(next(iter(plans.values())).values()))
    with tempfile.TemporaryDirectory(prefix="dcp-bench-") as folder:
        cases = {
            title: Case(lengths=SHAPES[title].lengths, plans=save_plans(Path(folder, title), each))
            for title, each in plans.items()
        }
        return run(Job(cases=cases, ranks=len(some_plan.ranks), rounds=rounds, seed=seed))


def print_times(times: Result, plans: Plans, *, title: str) -> None:
    """Print a row for every shape and strategy, fastest first."""
    table = Table(title=title)
    for column in (
        "shape",
        "strategy",
        "MB",
        "inter",
        "least s",
        "median s",
        "/zigzag",
        "p20 - p80",
        "CPU",
    ):
        table.add_column(column, justify="right")
    for shape, by_name in times.items():
        for name, took in sorted(by_name.items(), key=lambda each: median(each[1].wall_s)):
            plan = plans[shape].get(name)
            table.add_row(
                shape, _described(name, plan), *_sent(plan), *_cells(shape, took, by_name)
            )
        table.add_section()
    Console(width=110).print(table)


def measurements(times: Result, setting: Mapping[str, object]) -> Iterator[Measurement]:
    """Wall and CPU times, tidy."""
    for shape, by_name in times.items():
        for name, took in by_name.items():
            parameters = {**setting, "shape": shape, "strategy": name}
            for quantity, samples in (("wall", took.wall_s), ("cpu", took.cpu_s)):
                yield Measurement(
                    name=f"executor.ranks.{quantity}",
                    parameters=parameters,
                    samples=samples,
                    unit="s",
                )


def _described(name: str, plan: dcp.ExecutionPlan | None) -> str:
    """Name of a strategy; of auto, what it has chosen too."""
    if name != "auto" or plan is None:
        return name
    origin = plan.origin
    return f"auto: {origin.baseline or str(origin.partitioner).partition(':')[0]}"


def _sent(plan: dcp.ExecutionPlan | None) -> tuple[str, str]:
    """Forward MB in all and between nodes."""
    if plan is None:
        return "", ""
    report = plan.report()
    return f"{report.comm_bytes / 1e6:.1f}", f"{report.inter_node_bytes / 1e6:.1f}"


def _cells(shape: str, took: Times, by_name: Mapping[str, Times]) -> Iterator[str]:
    yield f"{min(took.wall_s):.3f}"
    yield f"{median(took.wall_s):.3f}"
    basis = by_name[BASIS].wall_s
    p20, p50, p80 = quantiles([own / its for own, its in zip(took.wall_s, basis, strict=True)])
    yield f"{p50:.2f}"
    yield f"{p20:.2f} - {p80:.2f}"
    reference = median(by_name[REFERENCE].cpu_s)
    share = SHAPES[shape].share_of_causal if took is not by_name[REFERENCE] else 1.0
    yield f"{median(took.cpu_s) / reference / share:.2f}"


if __name__ == "__main__":
    typer.run(main)
