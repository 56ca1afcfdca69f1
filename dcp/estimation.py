"""A placed and scheduled phase put to the cost model."""

from __future__ import annotations

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.cost import Messages, Timeline, Work, attention_seconds, simulate
from dcp.scheduling import QUERY_RESULT, RESULTS, Schedule


def simulate_schedule(
    blocks: BlockGraph,
    token_home: IntArray,
    comp_device: IntArray,
    schedule: Schedule,
    cluster: Cluster,
) -> Timeline:
    """Play one phase of a placed and scheduled batch through."""
    moved = schedule.transfers
    moved_bytes = moved.bytes_of(blocks)
    steps = max(schedule.num_divisions, int(moved.step.max(initial=0)) + 1)
    shape = (cluster.num_devices, steps)
    partial = np.isin(moved.kind, RESULTS)
    where = (moved.dst[partial], moved.step[partial])
    work = Work(
        reduce_s=_memory_seconds(cluster, shape, where, moved_bytes[partial]),
        attention_s=_attention(blocks, comp_device, schedule, cluster, shape),
        copy_s=_memory_seconds(
            cluster, shape, *_final_copies(blocks, token_home, schedule, steps - 1)
        ),
    )
    messages = Messages.joined(moved.src, moved.dst, moved.step, moved_bytes)
    return simulate(work, messages, cluster)


def _attention(
    blocks: BlockGraph,
    comp_device: IntArray,
    schedule: Schedule,
    cluster: Cluster,
    shape: tuple[int, int],
) -> FloatArray:
    """Seconds of every division: its blocks in one kernel."""
    heads = blocks.groups.q_count[blocks.comp_group]
    seconds = attention_seconds(
        cluster.device,
        backward=schedule.phase == "backward",
        flops_a_pair=4 * blocks.spec.head_dim * heads,
        pairs=blocks.comp_pairs,
        q_tokens=blocks.token_length[blocks.comp_q],
        kv_tokens=blocks.token_length[blocks.comp_kv],
    )
    where = (comp_device, schedule.comp_division)
    total = np.zeros(shape)
    np.add.at(total, where, seconds)
    return total + (total > 0) * cluster.device.launch_s


def _final_copies(
    blocks: BlockGraph, token_home: IntArray, schedule: Schedule, last_step: int
) -> tuple[tuple[IntArray, IntArray], IntArray]:
    """Where results become final, all in the last step, and their bytes."""
    kind = QUERY_RESULT[schedule.phase]
    result_bytes = blocks.data_bytes[kind].sum(axis=1)
    return (token_home, np.full(len(token_home), last_step)), result_bytes


def _memory_seconds(
    cluster: Cluster,
    shape: tuple[int, int],
    where: tuple[IntArray, IntArray],
    touched_bytes: IntArray,
) -> FloatArray:
    """Seconds to read these bytes and to read and write what they are merged into."""
    total = np.zeros(shape)
    np.add.at(total, where, 3 * touched_bytes / cluster.device.memory_bytes_per_s)
    return total + (total > 0) * cluster.device.launch_s
