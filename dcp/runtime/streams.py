"""A stream for messages beside the one that computes, ordered by events alone.

One code for all devices: torch gives CPUs streams and events that do nothing, which is right
where everything is done when the call returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch


class MessageStream:
    """The stream of a device on which messages move; the host never waits for either stream.

    Args:
        device: Where the tensors of the program are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = device_module(device.type)
        self._stream = _stream(device)

    @contextmanager
    def after_computing(self) -> Iterator[None]:
        """Launch what needs the results of all that is launched on the computing stream so far."""
        self._stream.wait_event(self._computing().record_event())
        with self._module.stream(self._stream):
            yield

    @contextmanager
    def before_computing(self) -> Iterator[None]:
        """Launch, on the stream of messages, what computing needs from here on."""
        with self._module.stream(self._stream):
            yield
        self._computing().wait_event(self._stream.record_event())

    def _computing(self) -> Any:
        return self._module.current_stream(self._device)


def device_module(kind: str) -> ModuleType:
    """What torch has for a kind of device, such as torch.cuda."""
    module: ModuleType = torch.get_device_module(kind)
    return module


@lru_cache
def _stream(device: torch.device) -> Any:
    """One a device for the whole process: messages of all programs are in one order."""
    if device.type == "cuda":
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return device_module(device.type).Stream()
