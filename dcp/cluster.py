"""Devices, nodes and the links between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dcp.arrays import IntArray
from dcp.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class Link:
    """One kind of link: what a device can send over it.

    Args:
        bandwidth_bytes_per_s: Bytes a second that one device sends when all send at once.
        latency_s: Seconds before the first byte of a message arrives (the α of α–β).
    """

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of equal devices; rank r is device r % devices_per_node of node r // that.

    Args:
        nodes: Number of nodes.
        devices_per_node: Devices in each node.
        flops_per_s: Attention FLOPs that one device does a second (achieved, not peak).
        intra: Link between devices of a node.
        inter: Link between devices of different nodes.
        name: Preset's name, for tables.

    Raises:
        SpecError: counts below 1, or rates that are not positive and finite.
    """

    nodes: int = 1
    devices_per_node: int
    flops_per_s: float = 200e12
    intra: Link = Link(bandwidth_bytes_per_s=200e9, latency_s=10e-6)
    inter: Link = Link(bandwidth_bytes_per_s=6.25e9, latency_s=20e-6)
    name: str = "custom"

    def __post_init__(self) -> None:
        for field in ("nodes", "devices_per_node"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SpecError(f"{field} is {value!r}; it must be an integer of 1 or more")
        rates = {
            "flops_per_s": self.flops_per_s,
            "intra.bandwidth_bytes_per_s": self.intra.bandwidth_bytes_per_s,
            "inter.bandwidth_bytes_per_s": self.inter.bandwidth_bytes_per_s,
        }
        for field, rate in rates.items():
            if not (np.isfinite(rate) and rate > 0):
                raise SpecError(f"{field} is {rate}; it must be positive and finite")

    @classmethod
    def preset(cls, name: str, *, nodes: int = 1, devices_per_node: int | None = None) -> Cluster:
        """A known machine type by name; see `PRESETS`.

        Raises:
            SpecError: no such preset; the message lists them.
        """
        if name not in PRESETS:
            raise SpecError(f"no preset {name!r}; legal: {', '.join(PRESETS)}")
        base = PRESETS[name]
        return replace(
            base, nodes=nodes, devices_per_node=devices_per_node or base.devices_per_node
        )

    @property
    def num_devices(self) -> int:
        """Devices in all nodes together."""
        return self.nodes * self.devices_per_node

    @property
    def device_node(self) -> IntArray:
        """Node of every device, [num_devices]."""
        return np.arange(self.num_devices) // self.devices_per_node

    def link(self, src: int, dst: int) -> Link:
        """The link that a message from device src to device dst takes."""
        same = src // self.devices_per_node == dst // self.devices_per_node
        return self.intra if same else self.inter


# Bandwidths are the vendors' per-direction figures; achieved FLOP rates are those that
# FlashAttention-2 (Dao 2023, A100) and FlashAttention-3 (Shah et al. 2024, H100) report for
# long causal sequences, head dim 128, bfloat16, forward.
PRESETS = {
    # AWS p4de.24xlarge: 8 A100, NVSwitch 300 GB/s a direction, 4 × 100 Gb/s EFA a node.
    "p4de": Cluster(
        devices_per_node=8,
        flops_per_s=180e12,
        intra=Link(bandwidth_bytes_per_s=300e9, latency_s=8e-6),
        inter=Link(bandwidth_bytes_per_s=400e9 / 8 / 8, latency_s=20e-6),
        name="p4de",
    ),
    # NVIDIA DGX H100: 8 H100, NVLink 4 450 GB/s a direction, 8 × 400 Gb/s InfiniBand a node.
    "dgx_h100": Cluster(
        devices_per_node=8,
        flops_per_s=550e12,
        intra=Link(bandwidth_bytes_per_s=450e9, latency_s=6e-6),
        inter=Link(bandwidth_bytes_per_s=50e9, latency_s=10e-6),
        name="dgx_h100",
    ),
    # One CPU machine with gloo over loopback, one thread a rank.
    "local": Cluster(
        devices_per_node=4,
        flops_per_s=80e9,
        intra=Link(bandwidth_bytes_per_s=1e9, latency_s=200e-6),
        inter=Link(bandwidth_bytes_per_s=1e9, latency_s=200e-6),
        name="local",
    ),
}
