"""How far a simulation is from what was measured."""

from __future__ import annotations

from typing import get_args

import msgspec

from dcp.profiling.decomposition import decompose, seconds_by_kind
from dcp.profiling.trace import GROUPS, SpanKind, Trace
from dcp.scheduling import Phase


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of instruction in one phase.

    Attributes:
        kind: An instruction, setup, finish, or "phase": until the slowest rank has ended.
        measured_s, simulated_s: Seconds in a run, means over runs and ranks.
        error: (simulated − measured) ÷ measured; None where nothing was measured.
    """

    phase: Phase
    kind: SpanKind
    measured_s: float
    simulated_s: float
    error: float | None


def compare_traces(measured: Trace, simulated: Trace, num_ranks: int) -> list[Accuracy]:
    """Compare kind by kind, phase by phase; kinds in neither are left out, the whole is last."""
    times = [seconds_by_kind(trace, num_ranks) for trace in (measured, simulated)]
    wholes = [
        {one.phase: one.mean.total_s for one in decompose(trace, num_ranks)}
        for trace in (measured, simulated)
    ]
    found = []
    for phase in times[0]:
        for kind in get_args(SpanKind):
            seconds = [time.get(phase, {}).get(kind, 0.0) for time in times]
            if kind not in GROUPS and any(seconds):
                found.append(_accuracy(phase, kind, *seconds))
        found.append(_accuracy(phase, "phase", *(whole.get(phase, 0.0) for whole in wholes)))
    return found


def _accuracy(phase: Phase, kind: SpanKind, measured: float, simulated: float) -> Accuracy:
    return Accuracy(
        phase=phase,
        kind=kind,
        measured_s=measured,
        simulated_s=simulated,
        error=(simulated - measured) / measured if measured else None,
    )
