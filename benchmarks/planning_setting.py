"""What the planning benchmarks have in common: clusters, masks, heads, and CPU time."""

from __future__ import annotations

import resource
from collections.abc import Callable

import dcp

CLUSTERS = {
    "8x2": dcp.Cluster(nodes=8, devices_per_node=2),
    "4x8": dcp.Cluster(nodes=4, devices_per_node=8),
}
MASKS: dict[str, Callable[[], dcp.masks.Mask]] = {
    "causal": dcp.masks.causal,
    "lambda": lambda: dcp.masks.lambda_mask(64, 4096),
    "blockwise": lambda: dcp.masks.causal_blockwise(256, 2),
    "question": lambda: dcp.masks.shared_question(question_fraction=0.2, answers=4),
}
HEADS = dcp.AttentionSpec(num_q_heads=8, num_kv_heads=2, head_dim=128)


def cpu_s() -> float:
    """CPU seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
