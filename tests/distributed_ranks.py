"""Runs a function on several gloo processes, with a hard end."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing

from dcp.cli.local_processes import join_group

RankFunction = Callable[[int, int, Path], None]
"""Called with rank, world size and a folder that all ranks share; must be a module's function."""


def run_ranks(
    function: RankFunction, world_size: int, folder: Path, timeout_s: float = 90.0
) -> None:
    """Run a function on fresh processes joined by gloo through a file in `folder`.

    Raises:
        ProcessRaisedException: a rank raised; shows its traceback.
        TimeoutError: some rank still ran at the end; all are killed.
    """
    # Ranks are forked from a server that has imported torch once; importing it takes seconds.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "numpy"])
    context = torch.multiprocessing.start_processes(
        _rank_main,
        args=(world_size, folder, function),
        nprocs=world_size,
        join=False,
        start_method="forkserver",
    )
    deadline = time.monotonic() + timeout_s
    try:
        while not context.join(timeout=1.0, grace_period=10.0):
            if time.monotonic() > deadline:
                alive = [rank for rank, p in enumerate(context.processes) if p.is_alive()]
                raise TimeoutError(f"ranks {alive} still run after {timeout_s:g} s")
    finally:
        for process in context.processes:
            process.kill()


def _rank_main(rank: int, world_size: int, folder: Path, function: RankFunction) -> None:
    join_group(rank, world_size, str(folder / "store"))
    function(rank, world_size, folder)
    dist.destroy_process_group()
