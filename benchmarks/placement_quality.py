"""Bytes of our placements beside those of the solvers' placements.

    python benchmarks/placement_quality.py --solvers
    python benchmarks/placement_quality.py --paper-limits --solvers --most 8
    python benchmarks/placement_quality.py --partitioner local_search:inter_weight=16 --budget 8
    python benchmarks/placement_quality.py --mask-edges --most 8

Batches are those of data/batches.json, or of another file of its form. A cell is total MB / MB
between nodes (each node that needs a data block counted once) / the same counted for each device;
"!" marks cells with placements outside a limit, and how many. No placement sends less than "bound"
in all. Forward bytes, means over the batches of a family. Times are CPU milliseconds of this
process and its children.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from planning_setting import BATCHES, CLUSTERS, HEADS, MASKS, cpu_s, families_of
from rich.console import Console
from rich.table import Table
from tidy import Measurement, write_csv

import dcp
from dcp import registry
from dcp.cutting import cut
from dcp.lower_bound import lower_bound_bytes
from dcp.placement import Limits, Placement, PlacementProblem, evaluate

TIGHT = Limits(inter_node=0.4, intra_node=0.4, device=0.1)


class Result(NamedTuple):
    """What one placement costs."""

    total: float
    between_nodes: float
    by_device: float
    infeasible: float
    cpu_ms: float


def crossing_by_device(problem: PlacementProblem, placement: Placement) -> int:
    """Bytes × devices that need them in other nodes than their home's."""
    node_of, crossing = problem.cluster.device_node, 0
    for size, block in (
        (problem.q_side_bytes, problem.comp_q),
        (problem.kv_side_bytes, problem.comp_kv),
    ):
        away = node_of[placement.comp_device] != node_of[placement.token_home[block]]
        needed = np.stack([block, problem.comp_group, placement.comp_device], axis=1)[away]
        needed = np.unique(needed, axis=0)
        crossing += int(size[needed[:, 0], needed[:, 1]].sum())
    return crossing


def placed(problem: PlacementProblem, request: str) -> Result:
    """Place a problem and measure the answer."""
    partitioner = registry.create("partitioners", request)
    begin = cpu_s()
    answer = partitioner.place(problem)
    spent = cpu_s() - begin
    placement = evaluate(problem, answer)
    return Result(
        placement.volume_bytes / 1e6,
        placement.inter_node_bytes / 1e6,
        crossing_by_device(problem, placement) / 1e6,
        float(not placement.feasible),
        spent * 1e3,
    )


def cells(results: Sequence[Result]) -> tuple[str, str]:
    """Volumes and time of a family, as shown."""
    mean = Result(*np.mean(results, axis=0))
    over = sum(one.infeasible for one in results)
    mark = f" !{over:.0f}" if over else ""
    volumes = f"{mean.total:.0f} / {mean.between_nodes:.0f} / {mean.by_device:.0f}{mark}"
    return volumes, f"{mean.cpu_ms:.0f}"


def measured(results: Sequence[Result], setting: dict[str, object]) -> list[Measurement]:
    """Figures of a family, tidy."""
    units = dict.fromkeys(Result._fields, "MB") | {"infeasible": "", "cpu_ms": "ms"}
    return [
        Measurement(
            name=f"placement.{figure}",
            parameters=setting,
            samples=[getattr(result, figure) for result in results],
            unit=unit,
        )
        for figure, unit in units.items()
    ]


def main(
    batches: Annotated[Path, typer.Argument(show_default="data/batches.json")] = BATCHES,
    partitioner: Annotated[str, typer.Option(help="ours")] = "local_search",
    block_size: Annotated[int, typer.Option()] = 2048,
    budget: Annotated[float, typer.Option(help="effort of ours")] = 1.0,
    most: Annotated[int, typer.Option(help="batches of a family")] = 1,
    mask_edges: Annotated[bool, typer.Option(help="cut blocks there, as dcp.plan does")] = False,
    paper_limits: Annotated[bool, typer.Option(help="0.4 between nodes, 0.1 inside")] = False,
    solvers: Annotated[bool, typer.Option(help="KaHyPar and Mt-KaHyPar too")] = False,
    csv: Annotated[Path | None, typer.Option(help="also write the figures there, tidy")] = None,
) -> None:
    """Print one row for each family, cluster and mask."""
    families = families_of(batches)
    limits = Limits() if paper_limits else TIGHT
    others = [name for name in ("kahypar", "mtkahypar") if solvers and find_spec(name)]
    table = Table(title=f"MB forward, blocks of {block_size}, {limits}")
    columns = ("family", "cluster", "mask", "bound", partitioner, "ms")
    for column in (*columns, *(each for name in others for each in (name, "ms"))):
        table.add_column(column, justify="right")
    measurements: list[Measurement] = []
    for (family, lengths), cluster, mask in itertools.product(families.items(), CLUSTERS, MASKS):
        cuts = [
            cut(dcp.Batch(one, mask=MASKS[mask]()), HEADS, block_size, at_mask_edges=mask_edges)
            for one in lengths[:most]
        ]
        problems = [
            PlacementProblem.of(blocks, CLUSTERS[cluster], limits=limits, budget=budget)
            for blocks in cuts
        ]
        placed(problems[0], partitioner)  # compiled code is loaded before time counts
        bounds = [lower_bound_bytes(*one) / 1e6 for one in zip(cuts, problems, strict=True)]
        row = [family, cluster, mask, f"{np.mean(bounds):.0f}"]
        for request in (partitioner, *others):
            results = [placed(problem, request) for problem in problems]
            row += cells(results)
            setting = {"family": family, "cluster": cluster, "mask": mask, "partitioner": request}
            given = {"block_size": block_size, "budget": budget, "paper_limits": paper_limits}
            setting |= {**given, "mask_edges": mask_edges}
            measurements += measured(results, setting)
        table.add_row(*row)
    Console(width=40 * (3 + len(others))).print(table)
    if csv:
        write_csv(csv, measurements, seed=0)


if __name__ == "__main__":
    typer.run(main)
