"""Uses the installed wheel as a newcomer would; run outside the checkout (tox -e wheel)."""

from __future__ import annotations

import sys
from importlib.metadata import files
from pathlib import Path

import torch

import dcp
import dcp.verification

DISTRIBUTION = "dynamic-context-parallel"


def check_files() -> None:
    """The wheel holds dcp, each linked folder once, and no other top-level name."""
    installed = [path for path in files(DISTRIBUTION) or () if path.suffix == ".py"]
    assert {path.parts[0] for path in installed} == {"dcp"}, installed
    rooms = {path.parts[1] for path in installed}
    assert {"backends", "baselines", "kernels", "verification"} <= rooms, rooms
    assert (Path(dcp.__file__).parent / "py.typed").is_file()
    assert Path(dcp.__file__).is_relative_to(sys.prefix), dcp.__file__


def check_use() -> None:
    """A small batch is planned, proven and executed; every sequence attends to itself alone."""
    batch = dcp.Batch([70, 9, 0, 33], mask=dcp.masks.causal())
    heads = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="float64")
    cluster = dcp.Cluster(nodes=2, devices_per_node=2)
    plan = dcp.plan(batch, heads, cluster, block_size=16)
    dcp.verification.check_plan(plan)

    generator = torch.Generator().manual_seed(0)
    q = torch.randn(112, 4, 16, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, 112, 2, 16, dtype=torch.float64, generator=generator)
    out = dcp.run_local(plan, q, k, v)
    torch.testing.assert_close(out, _dense(q, k, v, [70, 9, 33]), rtol=1e-10, atol=1e-12)


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    parts = []
    for qs, ks, vs in zip(*(torch.split(x, lengths) for x in (q, k, v)), strict=True):
        attended = torch.nn.functional.scaled_dot_product_attention(
            qs.transpose(0, 1),
            ks.transpose(0, 1),
            vs.transpose(0, 1),
            is_causal=True,
            enable_gqa=True,
        )
        parts.append(attended.transpose(0, 1))
    return torch.cat(parts)


if __name__ == "__main__":
    check_files()
    check_use()
    print(f"{DISTRIBUTION} works from {Path(dcp.__file__).parent}")
