"""Records when programs did what."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from dcp.profiling.trace import Range, Span, Subject
from dcp.runtime.observers import Observer


class Clock(ABC):
    """Marks moments, and says later when they were."""

    @abstractmethod
    def mark(self) -> Any:
        """This moment."""

    @abstractmethod
    def nanoseconds(self, mark: Any) -> int:
        """When a marked moment was, in nanoseconds of `time.perf_counter_ns`."""


class HostClock(Clock):
    """Moments on the host: right where computing is done when the call returns."""

    def mark(self) -> int:
        """See `Clock.mark`."""
        return time.perf_counter_ns()

    def nanoseconds(self, mark: int) -> int:
        """See `Clock.nanoseconds`."""
        return mark


class CudaClock(Clock):
    """Moments on the current stream of a GPU, as events.

    The host runs ahead of the stream, so its clock would show launches rather than work. It is
    read once, with the stream empty, as origin of all events. Not tested: it has not run on a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.synchronize(device)
        self._origin = self.mark()
        self._origin.synchronize()
        self._origin_ns = time.perf_counter_ns()

    def mark(self) -> torch.cuda.Event:
        """See `Clock.mark`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def nanoseconds(self, mark: torch.cuda.Event) -> int:
        """See `Clock.nanoseconds`."""
        mark.synchronize()
        milliseconds: float = self._origin.elapsed_time(mark)
        return self._origin_ns + round(milliseconds * 1e6)


class _Record(NamedTuple):
    """A span whose moments are marks of a clock."""

    subject: Subject
    run: int
    what: Range
    begin: Any
    end: Any
    clock: Clock


class Recorder:
    """Keeps a span for every range of the programs that it is asked to observe."""

    def __init__(self) -> None:
        self._records: list[_Record] = []
        self._runs: Counter[Subject] = Counter()
        self._clocks: dict[torch.device, Clock] = {}

    def observer(self, subject: Subject, device: torch.device) -> Observer:
        """Observe one run of a program whose tensors are on a device."""
        run = self._runs[subject]
        self._runs[subject] += 1
        return _RecordingObserver(subject, run, self._clock(device), self._records.append)

    def spans(self, digest: str) -> list[Span]:
        """All spans of a plan, inner ones before the outer; waits for the GPU where it has to."""
        return [
            Span(
                rank=record.subject.rank,
                phase=record.subject.phase,
                run=record.run,
                kind=record.what.kind,
                division=record.what.division,
                begin_ns=record.clock.nanoseconds(record.begin),
                end_ns=record.clock.nanoseconds(record.end),
                bytes=record.what.bytes,
                pairs=record.what.pairs,
            )
            for record in self._records
            if record.subject.digest == digest
        ]

    def _clock(self, device: torch.device) -> Clock:
        if device not in self._clocks:
            self._clocks[device] = CudaClock(device) if device.type == "cuda" else HostClock()
        return self._clocks[device]


class _RecordingObserver(Observer):
    """Turns nested ranges of one run into records."""

    def __init__(
        self, subject: Subject, run: int, clock: Clock, keep: Callable[[_Record], None]
    ) -> None:
        self._subject = subject
        self._run = run
        self._clock = clock
        self._keep = keep
        self._open: list[tuple[Range, Any]] = []

    def begin(self, what: Range) -> None:
        """See `Observer.begin`."""
        self._open.append((what, self._clock.mark()))

    def end(self) -> None:
        """See `Observer.end`."""
        end = self._clock.mark()
        what, begin = self._open.pop()
        self._keep(_Record(self._subject, self._run, what, begin, end, self._clock))
