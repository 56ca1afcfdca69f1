"""All-gather of keys, with head and tail chunks: context parallelism as in Llama 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dcp.arrays import IntArray
from dcp.baseline import Arrangement, Baseline
from dcp.baselines.dealing import Grid, place_blocks
from dcp.blocks import BlockGraph
from dcp.cluster import Cluster
from dcp.cutting import cut
from dcp.direct_transfers import Touches, transfer_rows
from dcp.placement import Assignment
from dcp.plan_request import PlanRequest
from dcp.scheduling import KEY_INPUT, KEY_RESULT, Phase, Schedule, SchedulingProblem, Transfers


@dataclass(frozen=True, kw_only=True)
class AllGather(Baseline):
    """Every rank receives all KV, then computes the queries that it is home to.

    Of 2P chunks of every sequence, rank r of P is home to chunks r and 2P - 1 - r. Forward, all
    KV goes straight from its home to every other rank, also where the mask needs nothing of it,
    and all work follows: nothing overlaps. A rank receives (P - 1) / P of all KV. Backward, KV is
    gathered again, and a reduce-scatter brings dKV home; a rank that adds nothing to a block's
    dKV sends nothing for it, where the original sends zeros.

    Chunks are cut at floor(i * L / 2P); the originals pad every sequence to a multiple of 2P.

    Source: Dubey et al. 2024, "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2.
    """

    name: ClassVar[str] = "allgather"

    def least_seconds(self, request: PlanRequest) -> float:
        """Time in which all other nodes' keys reach a rank, and the even work behind it."""
        spec, cluster, tokens = request.spec, request.cluster, request.batch.num_kv_tokens
        places = cluster.nodes if cluster.nodes > 1 else cluster.num_devices
        link = cluster.inter if cluster.nodes > 1 else cluster.intra
        # Shares are even but for a token a chunk of each sequence.
        own = tokens / places + 2 * len(request.batch) * cluster.num_devices / places
        token_bytes = 2 * spec.num_kv_heads * spec.head_dim * spec.dtype_bytes
        gather_s = max(tokens - own, 0.0) * token_bytes / link.bandwidth_bytes_per_s
        times = 2 if request.keep_bytes == 0 else 1
        return times * gather_s + sum(request.work_s.values())

    def arrange(self, request: PlanRequest) -> Arrangement:
        """Cut, place and schedule."""
        grid = Grid(ring_degree=request.cluster.num_devices, zigzag=True)
        blocks = cut(request.batch, request.spec, request.block_size, chunk_edges=grid.chunk_edges)
        home, _ = place_blocks(blocks, grid)
        assignment = Assignment(token_home=home, comp_device=home[blocks.comp_q])
        return Arrangement(
            blocks=blocks,
            assignment=assignment,
            forward=_schedule(blocks, assignment, request.cluster, "forward"),
            backward=_schedule(blocks, assignment, request.cluster, "backward"),
        )


def _schedule(
    blocks: BlockGraph, assignment: Assignment, cluster: Cluster, phase: Phase
) -> Schedule:
    rows = [_gather(blocks, assignment.token_home, cluster.num_devices)]
    division = int(cluster.num_devices > 1)
    if phase == "backward":
        problem = SchedulingProblem(
            blocks=blocks, **assignment._asdict(), cluster=cluster, phase=phase
        )
        rows.append(Touches.of(problem, blocks.comp_kv).to_home([KEY_RESULT], division + 2))
    return Schedule(
        phase=phase,
        num_divisions=division + 1,
        comp_division=np.full(len(blocks.comp_q), division),
        transfers=Transfers.of(np.concatenate(rows)),
    )


def _gather(blocks: BlockGraph, home: IntArray, num_devices: int) -> IntArray:
    """Rows that send all KV to all other ranks at step 1."""
    block, group, dst = np.meshgrid(
        np.flatnonzero(blocks.has_kv),
        np.arange(len(blocks.groups)),
        np.arange(num_devices),
        indexing="ij",
    )
    return transfer_rows(KEY_INPUT, block, group, home[block], dst, 1)
