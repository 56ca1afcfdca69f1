"""Packing data blocks into messages: bytes of the planes, one after another, without gaps.

Planes are copied byte by byte, so a plane may start anywhere in a message.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dcp.runtime.buffers import Planes


def pack(contents: list[tuple[Planes, tuple[torch.dtype, ...]]]) -> Tensor:
    """Return one message of the contents, each plane cast to its dtype on the wire; uint8, 1-D."""
    parts = [
        plane.to(dtype).contiguous().view(-1).view(torch.uint8)
        for planes, dtypes in contents
        for plane, dtype in zip(planes, dtypes, strict=True)
    ]
    return torch.cat(parts)


def unpack(message: Tensor, contents: list[Planes]) -> None:
    """Write a message into contiguous planes that already have the dtypes of the wire."""
    planes = [plane.view(-1).view(torch.uint8) for content in contents for plane in content]
    parts = torch.split(message, [len(plane) for plane in planes])
    for plane, part in zip(planes, parts, strict=True):
        plane.copy_(part)


def size_bytes(contents: list[Planes]) -> int:
    """Bytes of a message for these planes."""
    return sum(plane.nbytes for content in contents for plane in content)
