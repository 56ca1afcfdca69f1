"""Lives of accumulators: from a rank's first contribution to the send or the final copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.blocks import BlockGraph, Kind
from dcp.ordering import row_order
from dcp.scheduling import KEY_RESULT, Schedule
from dcp.timeline import attention_time, copy_time, launch_time, wait_time


@dataclass(frozen=True, kw_only=True, eq=False)
class Accumulators:
    """Every life of every sum on every rank.

    Attributes:
        rank, kind, block, group: Where and what is summed, [lives].
        birth, death: First and last quarter, [lives].
        is_final: The sum is copied to its home output rather than sent, [lives].
        of_comp, comp_is_first: For each result kind, the life that each computation adds to and
            whether it opens it, in the order of the computations given, [C].
        of_receive, receive_is_first: The same for each transfer as it arrives; -1 for inputs.
        of_send: The life that each transfer ends as it leaves; -1 for inputs.
    """

    rank: IntArray
    kind: IntArray
    block: IntArray
    group: IntArray
    birth: IntArray
    death: IntArray
    is_final: BoolArray
    of_comp: dict[Kind, IntArray]
    comp_is_first: dict[Kind, BoolArray]
    of_receive: IntArray
    receive_is_first: BoolArray
    of_send: IntArray


def trace_accumulators(
    blocks: BlockGraph,
    comp_device: IntArray,
    schedule: Schedule,
    comps: IntArray,
    results: tuple[Kind, ...],
) -> Accumulators:
    """Follow all sums through time: computations, arrivals and departures of one sum in order.

    Args:
        blocks: The batch in blocks.
        comp_device: Rank of every computation block, [C].
        schedule: The phase.
        comps: Computation blocks in the order of their ranks' programs, [C].
        results: Result kinds of the phase.
    """
    moved = schedule.transfers
    partial = np.flatnonzero(moved.is_result)
    kinds, tokens, groups = len(Kind), max(blocks.num_token_blocks, 1), len(blocks.groups)

    def key(rank: IntArray, kind: IntArray, block: IntArray, group: IntArray) -> IntArray:
        return ((rank * kinds + kind) * tokens + block) * groups + group

    what = moved.kind[partial], moved.block[partial], moved.group[partial]
    keys = [key(moved.dst[partial], *what), key(moved.src[partial], *what)]
    times = [wait_time(moved.step[partial]), launch_time(moved.step[partial])]
    computed_at = attention_time(schedule.comp_division[comps])
    for result in results:
        block = blocks.comp_kv if result == KEY_RESULT else blocks.comp_q
        keys.append(
            key(
                comp_device[comps],
                np.full(len(comps), int(result)),
                block[comps],
                blocks.comp_group[comps],
            )
        )
        times.append(computed_at)
    life, is_first, table = _lives(keys, times)

    rest, group = np.divmod(table.key, groups)
    rest, block = np.divmod(rest, tokens)
    rank, kind = np.divmod(rest, kinds)
    of_receive = np.full(len(moved), -1)
    of_receive[partial] = life[0]
    receive_is_first = np.zeros(len(moved), dtype=bool)
    receive_is_first[partial] = is_first[0]
    of_send = np.full(len(moved), -1)
    of_send[partial] = life[1]
    return Accumulators(
        rank=rank,
        kind=kind,
        block=block,
        group=group,
        birth=table.first,
        death=np.where(table.is_sent, table.last, copy_time(table.last)),
        is_final=~table.is_sent,
        of_comp=dict(zip(results, life[2:], strict=True)),
        comp_is_first=dict(zip(results, is_first[2:], strict=True)),
        of_receive=of_receive,
        receive_is_first=receive_is_first,
        of_send=of_send,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Lives:
    """Key, first and last time of every life, and whether a send ends it, [lives]."""

    key: IntArray
    first: IntArray
    last: IntArray
    is_sent: BoolArray


def _lives(
    keys: list[IntArray], times: list[IntArray]
) -> tuple[list[IntArray], list[BoolArray], _Lives]:
    """Cut the events of each key into lives; the second list of events are sends, which end one.

    Events of a key at one time are in the order of the lists and of their rows.

    Returns:
        The life of every event and whether the event opens it, list by list, and the lives.
    """
    key, time = np.concatenate(keys), np.concatenate(times)
    is_send = np.zeros(len(key), dtype=bool)
    is_send[len(keys[0]) : len(keys[0]) + len(keys[1])] = True
    order = row_order(key, time)
    sorted_key, ends_life = key[order], is_send[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (sorted_key[1:] != sorted_key[:-1]) | ends_life[:-1]
    starts = np.flatnonzero(begins)
    last = np.append(starts, len(order))[1:] - 1

    life = np.empty(len(key), dtype=np.int64)
    life[order] = np.cumsum(begins) - 1
    is_first = np.empty(len(key), dtype=bool)
    is_first[order] = begins
    edges = np.cumsum([len(part) for part in keys])[:-1]
    table = _Lives(
        key=sorted_key[starts],
        first=time[order[starts]],
        last=time[order[last]],
        is_sent=ends_life[last],
    )
    return np.split(life, edges), np.split(is_first, edges), table
