"""Clocks of ranks brought together."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

_ROUNDS = 20


def clock_offset_ns(group: dist.ProcessGroup | None = None) -> int:
    """By how much this rank's `time.perf_counter_ns` is ahead of rank 0's.

    Rank 0 asks every other rank for its time and takes the answer to belong to the middle of the
    shortest of the round trips (Cristian 1989), so the error is at most half of that. All ranks
    of the group call it together; it moves CPU tensors.

    Args:
        group: Ranks whose clocks to compare; None for all.
    """
    dist.barrier(group)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    offsets = torch.zeros(size, dtype=torch.int64)
    for peer in range(1, size):
        if rank == 0:
            offsets[peer] = _ask(_global(peer, group), group)
        elif rank == peer:
            _answer(_global(0, group), group)
    dist.broadcast(offsets, _global(0, group), group)
    return int(offsets[rank])


def _global(rank: int, group: dist.ProcessGroup | None) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


def _ask(peer: int, group: dist.ProcessGroup | None) -> int:
    message = torch.zeros(1, dtype=torch.int64)
    trips = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter_ns()
        dist.send(message, peer, group)
        dist.recv(message, peer, group)
        end = time.perf_counter_ns()
        trips.append((end - begin, int(message) - (begin + end) // 2))
    return min(trips)[1]


def _answer(peer: int, group: dist.ProcessGroup | None) -> None:
    message = torch.zeros(1, dtype=torch.int64)
    for _ in range(_ROUNDS):
        dist.recv(message, peer, group)
        dist.send(torch.tensor([time.perf_counter_ns()]), peer, group)
