"""What the executor does, for profilers: NVTX ranges, and a recorder of its own.

A `Watch` accompanies one program. It tells its observers of nested ranges: setup; then the phase,
in it divisions, in them instructions, at last the finish. Where nobody observes, the executor
iterates over the bare list of instructions.

    with tracing.record() as recorder:
        dcp.run_local(plan, q, k, v)
    spans = recorder.spans(plan.digest)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from weakref import WeakKeyDictionary

import torch

from dcp.execution_plan import ExecutionPlan
from dcp.instructions import Instruction
from dcp.profiling.ranges import ProgramRanges
from dcp.profiling.trace import Range, Subject
from dcp.program_facts import facts_of
from dcp.runtime import nvtx_ranges
from dcp.runtime.observers import Observer
from dcp.runtime.recorder import Recorder
from dcp.scheduling import Phase

_recorders: list[Recorder] = []


@contextmanager
def record() -> Iterator[Recorder]:
    """Record all programs that run in this process inside the block, in any thread."""
    recorder = Recorder()
    _recorders.append(recorder)
    try:
        yield recorder
    finally:
        _recorders.remove(recorder)


def watch(plan: ExecutionPlan, rank: int, phase: Phase, device: torch.device) -> Watch:
    """Accompany one program of a plan, for whoever observes now.

    Args:
        plan: The plan.
        rank: Whose program.
        phase: Which of its two.
        device: Where its tensors are.
    """
    domain = nvtx_ranges.domain()
    if domain is None and not _recorders:
        return UNWATCHED
    subject = Subject(digest=plan.digest, rank=rank, phase=phase)
    observers: list[Observer] = [recorder.observer(subject, device) for recorder in _recorders]
    if domain is not None:
        observers.append(nvtx_ranges.NvtxObserver(domain, subject))
    return ObservedWatch(ranges_of(plan, rank, phase), observers)


class Watch:
    """Accompanies one program; this one looks away."""

    def setup(self) -> AbstractContextManager[None]:
        """Surround the making of the executor."""
        return nullcontext()

    def turns(self, run: Iterator[int]) -> Iterator[int]:
        """Accompany the run of the executor, which yields where other ranks have their turns."""
        return run

    def each(self, instructions: list[Instruction]) -> Iterable[Instruction]:
        """Accompany the instructions: one begins when it is taken and ends with the next."""
        return instructions


UNWATCHED = Watch()


class ObservedWatch(Watch):
    """Tells observers of every range."""

    def __init__(self, ranges: ProgramRanges, observers: list[Observer]) -> None:
        self._ranges = ranges
        self._observers = observers
        self._depth = 0

    @contextmanager
    def setup(self) -> Iterator[None]:
        """See `Watch.setup`."""
        self._begin(Range("setup", -1, 0, 0))
        try:
            yield
        finally:
            self._unwind()

    def turns(self, run: Iterator[int]) -> Iterator[int]:
        """See `Watch.turns`."""
        self._begin(self._ranges.phase)
        try:
            for step in run:
                for observer in self._observers:
                    observer.pause()
                yield step
                for observer in self._observers:
                    observer.resume()
        finally:
            self._unwind()

    def each(self, instructions: list[Instruction]) -> Iterator[Instruction]:
        """See `Watch.each`. What comes after the last instruction is the finish."""
        remaining = iter(instructions)
        for division, inside in self._ranges.divisions:
            self._begin(division)
            for what in inside:
                self._begin(what)
                yield next(remaining)
                self._end()
            self._end()
        self._begin(Range("finish", -1, 0, 0))

    def _begin(self, what: Range) -> None:
        self._depth += 1
        for observer in self._observers:
            observer.begin(what)

    def _end(self) -> None:
        self._depth -= 1
        for observer in reversed(self._observers):
            observer.end()

    def _unwind(self) -> None:
        """End what is open, at the end or wherever an error struck."""
        while self._depth:
            self._end()


_ranges: WeakKeyDictionary[ExecutionPlan, dict[tuple[int, Phase], ProgramRanges]] = (
    WeakKeyDictionary()
)


def ranges_of(plan: ExecutionPlan, rank: int, phase: Phase) -> ProgramRanges:
    """Ranges of one program; worked out once a plan."""
    known = _ranges.setdefault(plan, {})
    if (rank, phase) not in known:
        programs = plan.ranks[rank]
        program = programs.program(phase)
        known[rank, phase] = ProgramRanges.of(facts_of(plan.blocks, program))
    return known[rank, phase]
