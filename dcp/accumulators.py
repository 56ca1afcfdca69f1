"""Lives of accumulators on one rank: from the first contribution to the send or the final copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.blocks import BlockGraph, Kind
from dcp.scheduling import KEY_RESULT, RESULTS, Schedule
from dcp.timeline import attention_time, copy_time, launch_time, wait_time


@dataclass(frozen=True, kw_only=True, eq=False)
class Accumulators:
    """Every life of every sum on one rank.

    Attributes:
        kind, block, group: What is summed, [lives].
        birth, death: First and last quarter, [lives].
        is_final: The sum is copied to its home output rather than sent, [lives].
        of_comp, comp_is_first: For each result kind, the life that each computation adds to and
            whether it opens it, [comps of the rank].
        of_receive, receive_is_first: The same for each receive, [receives]; -1 for inputs.
        of_send: The life that each send ends, [sends]; -1 for inputs.
    """

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
    schedule: Schedule,
    comps: IntArray,
    sends: IntArray,
    receives: IntArray,
    results: tuple[Kind, ...],
) -> Accumulators:
    """Follow the sums of one rank through time.

    Args:
        blocks: The batch in blocks.
        schedule: The phase.
        comps, sends, receives: The rank's rows, in program order.
        results: Result kinds of the phase.
    """
    moved = schedule.transfers
    groups = len(blocks.groups)

    def key_of(kind: IntArray | int, block: IntArray, group: IntArray) -> IntArray:
        return (kind * blocks.num_token_blocks + block) * groups + group

    receive_rows = np.flatnonzero(np.isin(moved.kind[receives], RESULTS))
    send_rows = np.flatnonzero(np.isin(moved.kind[sends], RESULTS))
    arriving, leaving = receives[receive_rows], sends[send_rows]
    division_time = attention_time(schedule.comp_division[comps])
    keys = [key_of(moved.kind[rows], moved.block[rows], moved.group[rows])
            for rows in (arriving, leaving)]  # fmt: skip
    times = [wait_time(moved.step[arriving]), launch_time(moved.step[leaving])]
    for result in results:
        block = blocks.comp_kv if result == KEY_RESULT else blocks.comp_q
        keys.append(key_of(int(result), block[comps], blocks.comp_group[comps]))
        times.append(division_time)

    key, time = np.concatenate(keys), np.concatenate(times)
    is_send = np.zeros(len(key), dtype=bool)
    is_send[len(arriving) : len(arriving) + len(leaving)] = True
    order = np.lexsort((np.arange(len(key)), time, key))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(key[order]) != 0) | is_send[order][:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts, len(order))[1:] - 1

    life = np.zeros(len(key), dtype=np.int64)
    life[order] = np.cumsum(begins) - 1
    is_first = np.zeros(len(key), dtype=bool)
    is_first[order] = begins

    last_time, is_final = time[order[ends]], ~is_send[order[ends]]
    block_and_kind, group = np.divmod(key[order[starts]], groups)
    kind, block = np.divmod(block_and_kind, max(blocks.num_token_blocks, 1))
    edges = np.cumsum([len(part) for part in keys])[:-1]
    lives = np.split(life, edges)
    firsts = np.split(is_first, edges)

    of_receive = np.full(len(receives), -1)
    of_receive[receive_rows] = lives[0]
    receive_is_first = np.zeros(len(receives), dtype=bool)
    receive_is_first[receive_rows] = firsts[0]
    of_send = np.full(len(sends), -1)
    of_send[send_rows] = lives[1]
    return Accumulators(
        kind=kind,
        block=block,
        group=group,
        birth=time[order[starts]],
        death=np.where(is_final, copy_time(last_time), last_time),
        is_final=is_final,
        of_comp=dict(zip(results, lives[2:], strict=True)),
        comp_is_first=dict(zip(results, firsts[2:], strict=True)),
        of_receive=of_receive,
        receive_is_first=receive_is_first,
        of_send=of_send,
    )
