"""Ranges for Nsight Systems and other NVTX tools, in the domain "dcp"."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dcp.profiling import range_text
from dcp.profiling.trace import Range, Subject
from dcp.runtime.observers import Observer

DOMAIN = "dcp"


@cache
def domain() -> Any:
    """The domain; None without the package `nvtx`, or where no tool listens. Decided once."""
    if find_spec("nvtx") is None:
        return None
    found = import_module("nvtx").get_domain(DOMAIN)
    # Where no tool is attached the package hands out a dummy, which makes no attributes.
    return None if found.get_event_attributes(message=DOMAIN) is None else found


class NvtxObserver(Observer):
    """Pushes and pops ranges of this thread.

    Ranges of a thread nest. So a rank's open ranges are closed while another rank of the same
    thread has its turn, and opened again after it.
    """

    def __init__(self, domain: Any, subject: Subject) -> None:
        self._domain = domain
        self._subject = subject
        self._open: list[Any] = []
        self._paused = False

    def begin(self, what: Range) -> None:
        """See `Observer.begin`."""
        text = range_text.text(self._subject, what)
        attributes = self._domain.get_event_attributes(message=text)
        self._open.append(attributes)
        self._domain.push_range(attributes)

    def end(self) -> None:
        """See `Observer.end`."""
        self._open.pop()
        if not self._paused:
            self._domain.pop_range()

    def pause(self) -> None:
        """See `Observer.pause`."""
        self._paused = True
        for _ in self._open:
            self._domain.pop_range()

    def resume(self) -> None:
        """See `Observer.resume`."""
        self._paused = False
        for attributes in self._open:
            self._domain.push_range(attributes)
