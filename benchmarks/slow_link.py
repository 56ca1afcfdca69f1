"""Wall time of planned attention on two nodes with a slow link between them, emulated.

Two network namespaces of this machine, joined by a pair of virtual interfaces whose rate `tc`
limits, with two ranks in each: what fewer bytes between nodes are worth in time. Strategies take
turns within one run. Needs Linux, root, and the programs `ip` and `tc`.

    sudo python benchmarks/slow_link.py --mbit 400 --csv out.csv
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from executor_ranks import run_ranks
from executor_setting import STRATEGIES, spec_of
from executor_wall import measurements, plan_all, print_times, run_plans
from tidy import write_csv

import dcp

INTERFACE = "dcp0"
RANKS_A_NODE = 2


def main(
    shapes: Annotated[str, typer.Option()] = "one-4k,varlen-4k,short,lambda-2k",
    strategies: Annotated[str, typer.Option()] = ",".join(STRATEGIES),
    mbit: Annotated[int, typer.Option(help="10^6 bits a second, each way")] = 400,
    dtype: Annotated[str, typer.Option()] = "float32",
    head_dim: Annotated[int, typer.Option()] = 64,
    rounds: Annotated[int, typer.Option()] = 5,
    seed: Annotated[int, typer.Option()] = 0,
    csv: Annotated[Path | None, typer.Option(help="also write the times there, tidy")] = None,
) -> None:
    """Print times of every shape and strategy, and their ratios to zigzag."""
    if missing := _missing():
        print(f"skipped: {missing}")
        return
    link = dcp.Link(bandwidth_bytes_per_s=mbit * 1e6 / 8, latency_s=300e-6)
    local = dcp.Cluster.preset("local", nodes=2, devices_per_node=RANKS_A_NODE)
    cluster = replace(local, inter=link, nics_per_node=1)
    plans = plan_all(shapes, strategies, spec_of(head_dim, dtype), cluster, seed=seed)
    with _two_nodes(mbit) as nodes:
        run = partial(
            run_ranks,
            interface=INTERFACE,
            prefix=lambda rank: ("ip", "netns", "exec", nodes[rank // RANKS_A_NODE]),
        )
        times = run_plans(plans, run, rounds=rounds, seed=seed)
    title = (
        f"forward + backward, 2 nodes x {RANKS_A_NODE} ranks, {mbit} Mbit/s, {dtype}, {head_dim}"
    )
    print_times(times, plans, title=title)
    if csv:
        setting = {"dtype": dtype, "head_dim": head_dim, "nodes": 2, "ranks": 4, "mbit": mbit}
        write_csv(csv, list(measurements(times, setting)), seed=seed)


def _missing() -> str:
    """What keeps this machine from emulating a link; empty where nothing does."""
    programs = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if programs:
        return f"no program {' and '.join(programs)} in PATH; Debian has them in iproute2"
    return "" if os.geteuid() == 0 else "network namespaces need root"


@contextmanager
def _two_nodes(mbit: int) -> Iterator[tuple[str, str]]:
    """Names of two network namespaces, joined by a slow link, which are gone afterwards."""
    nodes = (f"dcp-{os.getpid()}-0", f"dcp-{os.getpid()}-1")
    try:
        for node in nodes:
            _ip("netns", "add", node)
        link = ("link", "add", INTERFACE, "netns", nodes[0], "type", "veth")
        _ip(*link, "peer", "name", INTERFACE, "netns", nodes[1])
        for number, node in enumerate(nodes):
            _ip("-n", node, "address", "add", f"10.66.77.{number + 1}/30", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip("-n", node, "link", "set", interface, "up")
            limit = ("tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "400ms")
            command = ("tc", "-n", node, "qdisc", "add", "dev", INTERFACE, "root", *limit)
            subprocess.run(command, check=True)
        yield nodes
    finally:
        for node in nodes:
            subprocess.run(("ip", "netns", "delete", node), check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True)


if __name__ == "__main__":
    typer.run(main)
