"""Devices, nodes and the links between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dcp.arrays import IntArray
from dcp.checks import check_choice, check_integer, check_kind, check_number
from dcp.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class Link:
    """One kind of link.

    Args:
        bandwidth_bytes_per_s: Bytes a second through one port, in each direction.
        latency_s: Seconds before the first byte of a message arrives (the α of α–β).

    Raises:
        SpecError: a rate that is not positive and finite, or a negative latency.
    """

    bandwidth_bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        check_number("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, positive=True)
        check_number("latency_s", self.latency_s)


@dataclass(frozen=True, kw_only=True)
class Device:
    """How fast one device is.

    Args:
        flops_per_s: Attention FLOPs a second, forward, on long full blocks (achieved, not peak).
        backward_flops_per_s: The same, backward.
        tile_tokens: Side of the square tile that a kernel skips or computes as a whole: along
            the border of a mask half a tile is computed for nothing.
        launch_s: Seconds that starting one kernel costs.
        memory_bytes_per_s: Memory bandwidth, for what merges and copies blocks.

    Raises:
        SpecError: a rate that is not positive and finite, or a negative time.
    """

    flops_per_s: float
    backward_flops_per_s: float
    tile_tokens: int
    launch_s: float
    memory_bytes_per_s: float

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "backward_flops_per_s", "memory_bytes_per_s"):
            check_number(name, getattr(self, name), positive=True)
        check_number("launch_s", self.launch_s)
        check_integer("tile_tokens", self.tile_tokens)


# FlashAttention-2 on A100, head dim 128, causal, long sequences: about 180 TFLOP/s forward and
# 160 backward (Dao 2023, figures 5 and 6); 2.0 TB/s of HBM (A100 80 GB datasheet).
A100 = Device(
    flops_per_s=180e12,
    backward_flops_per_s=160e12,
    tile_tokens=128,
    launch_s=8e-6,
    memory_bytes_per_s=2.0e12,
)
# FlashAttention-3 on H100, the same shapes: about 620 and 520 TFLOP/s (Shah et al. 2024,
# figures 5 and 6); 3.35 TB/s (H100 SXM datasheet).
H100 = replace(
    A100, flops_per_s=620e12, backward_flops_per_s=520e12, launch_s=6e-6, memory_bytes_per_s=3.35e12
)
# H100's compute with 4.8 TB/s (H200 datasheet).
H200 = replace(H100, memory_bytes_per_s=4.8e12)
# Assumed to reach the same part of its 2250 TFLOP/s dense bfloat16 peak as H100 of its 989;
# 8 TB/s (B200 datasheet).
B200 = replace(H100, flops_per_s=1400e12, backward_flops_per_s=1180e12, memory_bytes_per_s=8.0e12)
# One thread of a CPU running torch's fused attention: measured 80 GFLOP/s in float32.
CPU_THREAD = Device(
    flops_per_s=80e9,
    backward_flops_per_s=80e9,
    tile_tokens=32,
    launch_s=20e-6,
    memory_bytes_per_s=5e9,
)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes of equal devices; rank r is device r % devices_per_node of node r // that.

    Args:
        nodes: Number of nodes.
        devices_per_node: Devices in each node.
        device: How fast a device is.
        intra: Link between devices of a node; every device has one port.
        inter: Link between nodes; its ports are the node's NICs.
        nics_per_node: NICs of a node, shared evenly by its devices; None for one a device.
        name: Preset's name, for tables.

    Raises:
        SpecError: counts below 1, more NICs than devices, or no device or link where one should be.
    """

    nodes: int = 1
    devices_per_node: int
    device: Device = A100
    intra: Link = Link(bandwidth_bytes_per_s=300e9, latency_s=8e-6)
    inter: Link = Link(bandwidth_bytes_per_s=12.5e9, latency_s=20e-6)
    nics_per_node: int | None = None
    name: str = "custom"

    def __post_init__(self) -> None:
        check_integer("nodes", self.nodes)
        check_integer("devices_per_node", self.devices_per_node)
        check_kind("device", self.device, Device)
        check_kind("intra", self.intra, Link)
        check_kind("inter", self.inter, Link)
        check_kind("name", self.name, str)
        if self.nics_per_node is not None:
            check_integer("nics_per_node", self.nics_per_node)
            if self.nics_per_node > self.devices_per_node:
                raise SpecError(
                    f"{self.nics_per_node} NICs a node for {self.devices_per_node} devices: a "
                    "device sends through one; give at most as many as devices"
                )

    @classmethod
    def preset(cls, name: str, *, nodes: int = 1, devices_per_node: int | None = None) -> Cluster:
        """A known machine type by name, whole or with some of its devices; see `PRESETS`.

        Raises:
            SpecError: no such preset; the message lists them.
        """
        check_choice("preset", name, PRESETS)
        base = PRESETS[name]
        devices = base.devices_per_node if devices_per_node is None else devices_per_node
        check_integer("devices_per_node", devices)
        nics = base.nics_per_node and min(base.nics_per_node, devices)
        return replace(base, nodes=nodes, devices_per_node=devices, nics_per_node=nics)

    @property
    def num_devices(self) -> int:
        """Devices in all nodes together."""
        return self.nodes * self.devices_per_node

    @property
    def device_node(self) -> IntArray:
        """Node of every device, [num_devices]."""
        return np.arange(self.num_devices) // self.devices_per_node

    @property
    def node_nics(self) -> int:
        """NICs of each node: where no number is given, one a device."""
        return self.nics_per_node or self.devices_per_node

    @property
    def device_nic(self) -> IntArray:
        """NIC that every device sends and receives through, numbered over all nodes."""
        nics = self.node_nics
        local = np.arange(self.num_devices) % self.devices_per_node
        return self.device_node * nics + local * nics // self.devices_per_node

    def link(self, src: int, dst: int) -> Link:
        """The link that a message from device src to device dst takes."""
        same = src // self.devices_per_node == dst // self.devices_per_node
        return self.intra if same else self.inter


# NVIDIA DGX H100: NVLink 4 450 GB/s a direction, 8 × 400 Gb/s InfiniBand.
_DGX_H100 = Cluster(
    devices_per_node=8,
    device=H100,
    intra=Link(bandwidth_bytes_per_s=450e9, latency_s=6e-6),
    inter=Link(bandwidth_bytes_per_s=50e9, latency_s=10e-6),
    name="dgx_h100",
)

PRESETS = {
    # AWS p4de.24xlarge: A100 80 GB, NVSwitch 300 GB/s a direction, 4 × 100 Gb/s EFA.
    "p4de": Cluster(devices_per_node=8, device=A100, nics_per_node=4, name="p4de"),
    "dgx_h100": _DGX_H100,
    # NVIDIA DGX H200: links as DGX H100.
    "dgx_h200": replace(_DGX_H100, device=H200, name="dgx_h200"),
    # NVIDIA DGX B200: NVLink 5 900 GB/s a direction, InfiniBand as DGX H100.
    "dgx_b200": replace(
        _DGX_H100,
        device=B200,
        intra=Link(bandwidth_bytes_per_s=900e9, latency_s=6e-6),
        name="dgx_b200",
    ),
    # One CPU machine with gloo over loopback, one thread a rank.
    "local": Cluster(
        devices_per_node=4,
        device=CPU_THREAD,
        intra=Link(bandwidth_bytes_per_s=1e9, latency_s=200e-6),
        inter=Link(bandwidth_bytes_per_s=1e9, latency_s=200e-6),
        name="local",
    ),
}
