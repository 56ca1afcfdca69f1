"""What the planning benchmarks have in common: batches, clusters, masks, heads, and CPU time."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

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

BATCHES = Path(__file__).parent / "data" / "batches.json"


def families_of(batches: Path) -> dict[str, list[list[int]]]:
    """Batches of every family, each a list of lengths."""
    families: dict[str, list[list[int]]] = json.loads(batches.read_text())["families"]
    return families


def cpu_s() -> float:
    """CPU seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
