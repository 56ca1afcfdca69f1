"""Time of whole planning, stage by stage, over a file of batches.

    python benchmarks/planning_time.py --solvers

Batches are those of data/batches.json, or of another file of its form. Medians of CPU time on one
core, in milliseconds: a batch is planned once to warm caches up, then measured. Plans by the
KaHyPar and Mt-KaHyPar partitioners are timed in the same run; a child process counts with its CPU
time.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from planning_setting import BATCHES, CLUSTERS, HEADS, MASKS, cpu_s, families_of
from rich.console import Console
from rich.table import Table
from tidy import Measurement, write_csv

import dcp
from dcp import registry
from dcp.cutting import cut
from dcp.lowering import lower
from dcp.needed_tokens import cut_to_need
from dcp.placement import PlacementProblem, evaluate
from dcp.schedule_validation import validate_schedule
from dcp.scheduling import PHASES, SchedulingProblem

STAGES = ("cut", "place", "schedule", "lower", "encode", "total", "auto")


@contextmanager
def measured(into: dict[str, float], stage: str) -> Iterator[None]:
    """Add the CPU time of a block to a stage."""
    begin = cpu_s()
    yield
    into[stage] = into.get(stage, 0.0) + cpu_s() - begin


def plan_by_stages(
    batch: dcp.Batch, cluster: dcp.Cluster, block_size: int, partitioner: str
) -> dict[str, float]:
    """CPU seconds of every stage of one plan."""
    spent: dict[str, float] = {}
    with measured(spent, "cut"):
        blocks = cut(batch, HEADS, block_size, at_mask_edges=True)
    with measured(spent, "place"):
        problem = PlacementProblem.of(blocks, cluster)
        placement = evaluate(problem, registry.create("partitioners", partitioner).place(problem))
    with measured(spent, "cut"):
        blocks, (home, device) = cut_to_need(blocks, placement.assignment)
    for phase in PHASES:
        with measured(spent, "schedule"):
            schedule = registry.create("schedulers", "overlap").schedule(
                SchedulingProblem(
                    blocks=blocks,
                    token_home=home,
                    comp_device=device,
                    cluster=cluster,
                    phase=phase,
                )
            )
            validate_schedule(blocks, home, device, cluster.num_devices, schedule)
        with measured(spent, "lower"):
            lower(blocks, home, device, cluster.num_devices, schedule)
    return spent


def plan_whole(batch: dcp.Batch, cluster: dcp.Cluster, **options: Any) -> dict[str, float]:
    """CPU seconds of `dcp.plan` and of encoding its plan."""
    spent: dict[str, float] = {}
    with measured(spent, "total"):
        plan = dcp.plan(batch, HEADS, cluster, **options)
    with measured(spent, "encode"):
        plan.to_bytes()
    return spent


def main(
    batches: Annotated[Path, typer.Argument(show_default="data/batches.json")] = BATCHES,
    partitioner: Annotated[str, typer.Option(help="ours")] = "local_search",
    block_size: Annotated[list[int] | None, typer.Option(help="repeatable")] = None,
    solvers: Annotated[bool, typer.Option(help="time KaHyPar and Mt-KaHyPar too")] = False,
    most: Annotated[int, typer.Option(help="batches of a family")] = 2,
    csv: Annotated[Path | None, typer.Option(help="also write the times there, tidy")] = None,
) -> None:
    """Print medians over batches, clusters and masks."""
    families = families_of(batches)
    lengths = [one for family in families.values() for one in family[:most]]
    console = Console(width=120)
    table = Table(title=f"CPU ms on one core, median over {len(lengths)} batches")
    columns = ("block", "cluster", "mask", *STAGES, *(("kahypar", "mtkahypar") if solvers else ()))
    for column in columns:
        table.add_column(column, justify="right")
    sizes = block_size or [2048, 1024, 512]
    measurements = []
    for size, cluster, mask in itertools.product(sizes, CLUSTERS, MASKS):
        spent: dict[str, list[float]] = defaultdict(list)
        for one in lengths:
            batch = dcp.Batch(one, mask=MASKS[mask]())
            options = {"block_size": size, "scheduler": "overlap"}
            plan_whole(batch, CLUSTERS[cluster], partitioner=partitioner, **options)
            found = plan_by_stages(batch, CLUSTERS[cluster], size, partitioner)
            found |= plan_whole(batch, CLUSTERS[cluster], partitioner=partitioner, **options)
            found["auto"] = plan_whole(batch, CLUSTERS[cluster], block_size=size)["total"]
            for name in ("kahypar", "mtkahypar") if solvers else ():
                whole = plan_whole(batch, CLUSTERS[cluster], partitioner=name, **options)
                found[name] = whole["total"]
            for stage, seconds in found.items():
                spent[stage].append(seconds)
        setting = {"block_size": size, "cluster": cluster, "mask": mask, "partitioner": partitioner}
        measurements += [
            Measurement(name=f"planning.{stage}", parameters=setting, samples=seconds, unit="s")
            for stage, seconds in spent.items()
        ]
        cells = [f"{median(spent[stage]) * 1e3:.1f}" for stage in columns[3:]]
        table.add_row(str(size), cluster, mask, *cells)
    console.print(table)
    if csv:
        write_csv(csv, measurements, seed=0)


if __name__ == "__main__":
    typer.run(main)
