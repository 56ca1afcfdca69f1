"""A block size for a batch: fine enough to balance, coarse enough to plan and to compute fast."""

from __future__ import annotations

import numpy as np

from dcp.batch import Batch
from dcp.cluster import Cluster

SMALLEST, LARGEST = 256, 8192
_BLOCKS_A_DEVICE = 6
_MOST_COMPUTATIONS = 40_000


def choose_block_size(batch: Batch, cluster: Cluster) -> int:
    """A power of two that gives a device about six blocks of tokens.

    Smaller blocks send less but cost planning time and kernel efficiency, so it is at least 256,
    and it grows where long sequences would give more than 40 000 pairs of blocks: each allowed
    pair of tokens falls into one, and along a mask's borders a query block meets about two more.

    Args:
        batch: Lengths and masks.
        cluster: Devices to share them.
    """
    tokens = batch.num_q_tokens + (batch.num_kv_tokens if batch.is_cross else 0)
    wanted = tokens / cluster.num_devices / _BLOCKS_A_DEVICE
    size = int(2 ** np.clip(np.round(np.log2(max(wanted, 1))), *np.log2([SMALLEST, LARGEST])))
    while size < LARGEST and batch.allowed_pairs / size**2 + 2 * tokens / size > _MOST_COMPUTATIONS:
        size *= 2
    return size
