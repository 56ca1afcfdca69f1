"""Masks of blocks as torch's operators take them, derived once and kept while they are in use.

They are computed on the stream that was current when they were first asked for, and later ones do
not wait for it, so there is one computing stream a device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

import torch
from torch import Tensor

from dcp.kernel_interface import BlockMask

_ALIGNMENT = 16  # elements; CUDA's efficient attention wants rows of a mask to start aligned


class TensorCache:
    """Keeps the tensors used last, up to a number of bytes in all."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._tensors: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._lock = Lock()  # autograd runs backward passes in threads of its own

    def get(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return the tensor of a key, made if it is not held."""
        with self._lock:
            if key in self._tensors:
                self._tensors.move_to_end(key)
                return self._tensors[key]
            tensor = self._tensors[key] = make()
            self._held_bytes += tensor.nbytes
            while self._held_bytes > self._limit_bytes and len(self._tensors) > 1:
                _, oldest = self._tensors.popitem(last=False)
                self._held_bytes -= oldest.nbytes
            return tensor

    def __len__(self) -> int:
        return len(self._tensors)


_cache = TensorCache(limit_bytes=256 << 20)


def additive(
    mask: BlockMask,
    q_len: int,
    kv_len: int,
    dtype: torch.dtype,
    device: torch.device,
    repeat: int = 1,
) -> Tensor:
    """Return what to add to the scores: 0 where allowed, -inf where not.

    Args:
        mask: The mask.
        q_len, kv_len: Its size.
        dtype, device: Of the result.
        repeat: Times that every row follows itself, for heads that are computed as tokens.

    Returns:
        [q_len · repeat, kv_len].
    """

    def make() -> Tensor:
        width = kv_len + -kv_len % _ALIGNMENT
        bias = torch.zeros(q_len * repeat, width, dtype=dtype, device=device)[:, :kv_len]
        forbidden = torch.from_numpy(~mask.dense(q_len, kv_len)).to(device)
        return bias.masked_fill_(forbidden.repeat_interleave(repeat, dim=0), -torch.inf)

    return _cache.get(("additive", mask, q_len, kv_len, dtype, device, repeat), make)


def rows_without_key(mask: BlockMask, q_len: int, device: torch.device, repeat: int = 1) -> Tensor:
    """Return the query rows that see no key of the block, each repeated; ascending, int64."""

    def make() -> Tensor:
        rows = torch.from_numpy(mask.rows_without_key(q_len))
        return (rows[:, None] * repeat + torch.arange(repeat)).view(-1).to(device)

    return _cache.get(("empty rows", mask, q_len, device, repeat), make)
