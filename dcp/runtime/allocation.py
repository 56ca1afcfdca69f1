"""Memory that plans account for: arenas and messages come from here, so that it can be observed.

What a kernel needs while it computes one call is not among it, nor are the caller's tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(kw_only=True)
class Meter:
    """Bytes allocated and not yet freed, now and at most."""

    held_bytes: int = 0
    peak_bytes: int = 0

    def add(self, tensor: Tensor) -> None:
        """Count a tensor until it is freed."""
        nbytes = tensor.nbytes
        self.held_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        weakref.finalize(tensor, self._free, nbytes)

    def _free(self, nbytes: int) -> None:
        self.held_bytes -= nbytes


_meters: list[Meter] = []


@contextmanager
def metered() -> Iterator[Meter]:
    """Count what is allocated in this process from now on."""
    meter = Meter()
    _meters.append(meter)
    try:
        yield meter
    finally:
        _meters.remove(meter)


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory with undefined content."""
    tensor = torch.empty(shape, dtype=dtype, device=device)
    for meter in _meters:
        meter.add(tensor)
    return tensor
