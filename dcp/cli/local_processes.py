"""Local processes that are joined to one gloo group, one process a rank."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessContext, start_processes

MAX_PROCESSES = 16
TIMEOUT_S = 120.0

StartMethod = Literal["forkserver", "spawn"]


@contextmanager
def local_processes(
    function: Callable[..., None],
    world_size: int,
    *arguments: Any,
    start_method: StartMethod = "forkserver",
) -> Iterator[ProcessContext]:
    """Run function(rank, world_size, *arguments) in fresh processes; none outlives the block."""
    # Ranks are forked from a server that has imported torch once; importing it takes seconds.
    multiprocessing.get_context("forkserver").set_forkserver_preload([function.__module__])
    context = start_processes(  # type: ignore[no-untyped-call]
        function,
        args=(world_size, *arguments),
        nprocs=world_size,
        join=False,
        start_method=start_method,
    )
    try:
        yield context
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def join_group(rank: int, world_size: int, rendezvous: str) -> None:
    """Make this process one rank, which computes with one thread."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # needs no host name that resolves
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
