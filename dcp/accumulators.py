"""Lives of accumulators: from a rank's first contribution to the send or the final copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import BoolArray, Int32Array, IntArray
from dcp.blocks import Kind
from dcp.ordering import row_order
from dcp.placed_phase import PlacedPhase
from dcp.quarters import attention_time, copy_time, launch_time, wait_time


@dataclass(frozen=True, kw_only=True, eq=False)
class Accumulators:
    """Every life of every sum of one kind of result, on all ranks.

    Attributes:
        rank, block, group: Where and what is summed, ascending, [lives].
        birth, death: First and last quarter, [lives].
        is_final: The sum is copied to its home output rather than sent, [lives].
        of_comp, comp_is_first: The life that each computation adds to and whether it opens it,
            in program order, [C].
        transfers: Those that move the kind, [m].
        of_receive, receive_is_first: As for computations, for each of them as it arrives, [m].
        of_send: The life that each of them ends as it leaves, [m].
    """

    rank: IntArray
    block: IntArray
    group: IntArray
    birth: IntArray
    death: IntArray
    is_final: BoolArray
    of_comp: Int32Array
    comp_is_first: BoolArray
    transfers: IntArray
    of_receive: Int32Array
    receive_is_first: BoolArray
    of_send: Int32Array


def trace_accumulators(phase: PlacedPhase, kind: Kind) -> Accumulators:
    """Follow all sums of a kind through time: arrivals, departures, computations."""
    moved, comps = phase.schedule.transfers, phase.comps
    transfers = np.flatnonzero(moved.kind == kind)
    count, step = len(transfers), moved.step[transfers]
    block, group = moved.block[transfers], moved.group[transfers]
    key = phase.key(
        np.concatenate([moved.dst[transfers], moved.src[transfers], phase.comp_device[comps]]),
        kind,
        np.concatenate([block, block, phase.comp_block(kind)]),
        np.concatenate([group, group, phase.blocks.comp_group[comps]]),
    )
    time = np.concatenate(
        [
            wait_time(step),
            launch_time(step),
            attention_time(phase.schedule.comp_division[comps]),
        ]
    )
    is_send = np.zeros(len(key), dtype=bool)
    is_send[count : 2 * count] = True
    life, is_first, lives = _lives(key, time, is_send)

    rest, group = np.divmod(lives.key, len(phase.blocks.groups))
    rest, block = np.divmod(rest, max(phase.blocks.num_token_blocks, 1))
    return Accumulators(
        rank=rest // len(Kind),
        block=block,
        group=group,
        birth=lives.first,
        death=np.where(lives.is_sent, lives.last, copy_time(lives.last)),
        is_final=~lives.is_sent,
        of_comp=life[2 * count :],
        comp_is_first=is_first[2 * count :],
        transfers=transfers,
        of_receive=life[:count],
        receive_is_first=is_first[:count],
        of_send=life[count : 2 * count],
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Lives:
    """Key, first and last time of every life, and whether a send ends it, [lives]."""

    key: IntArray
    first: IntArray
    last: IntArray
    is_sent: BoolArray


def _lives(
    key: IntArray, time: IntArray, is_send: BoolArray
) -> tuple[Int32Array, BoolArray, _Lives]:
    """Cut the events of each key into lives, [events]; a send ends one.

    Returns:
        The life of every event and whether the event opens it, [events], and the lives.
    """
    order = row_order(key, time)
    sorted_key, ends_life = key[order], is_send[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (sorted_key[1:] != sorted_key[:-1]) | ends_life[:-1]
    starts = np.flatnonzero(begins)
    last = np.append(starts, len(order))[1:] - 1
    lives = _Lives(
        key=sorted_key[starts],
        first=time[order[starts]],
        last=time[order[last]],
        is_sent=ends_life[last],
    )
    life, is_first = np.empty(len(key), dtype=np.int32), np.empty(len(key), dtype=bool)
    life[order] = np.cumsum(begins, dtype=np.int32) - 1
    is_first[order] = begins
    return life, is_first, lives
