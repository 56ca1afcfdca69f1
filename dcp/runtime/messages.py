"""Packing data blocks into messages: bytes of the planes, one after another, without gaps."""

from __future__ import annotations

import torch
from torch import Tensor

from dcp.runtime.allocation import allocate
from dcp.runtime.buffers import Planes


def pack(contents: list[tuple[Planes, tuple[torch.dtype, ...]]]) -> Tensor:
    """Return one message of the contents, each plane cast to its dtype on the wire; uint8, 1-D."""
    planes = [
        (plane, dtype)
        for content, dtypes in contents
        for plane, dtype in zip(content, dtypes, strict=True)
    ]
    sizes = [plane.numel() * dtype.itemsize for plane, dtype in planes]
    message = allocate((sum(sizes),), torch.uint8, planes[0][0].device)
    begin = 0
    for (plane, dtype), size in zip(planes, sizes, strict=True):
        part = message[begin : begin + size]
        if begin % dtype.itemsize == 0:
            part.view(dtype).view(plane.shape).copy_(plane)
        else:  # a tensor cannot start there, but bytes can
            part.copy_(_bytes_of(plane.to(dtype)))
        begin += size
    return message


def unpack(message: Tensor, contents: list[Planes]) -> None:
    """Write a message into contiguous planes that already have the dtypes of the wire."""
    planes = [_bytes_of(plane) for content in contents for plane in content]
    parts = torch.split(message, [len(plane) for plane in planes])
    for plane, part in zip(planes, parts, strict=True):
        plane.copy_(part)


def size_bytes(contents: list[Planes]) -> int:
    """Bytes of a message for these planes."""
    return sum(plane.nbytes for content in contents for plane in content)


def _bytes_of(plane: Tensor) -> Tensor:
    return plane.contiguous().view(-1).view(torch.uint8)
