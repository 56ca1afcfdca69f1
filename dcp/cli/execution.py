"""What came of executing one plan on local processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TENSORS = ("out", "dq", "dk", "dv")
ITERATIONS = 3


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One plan, proven and executed.

    Attributes:
        proven: Whether the plan checker found no fault.
        measured_s: Forward and backward time, the median of the iterations, each the slowest
            rank's; None where it did not run to its end.
        errors: Largest absolute error against the float64 oracle, for out, dq, dk and dv.
        budgets: The largest errors allowed.
        problem: The fault or error that was found; empty where there is none.
    """

    proven: bool
    measured_s: float | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def equal(self) -> bool:
        """Whether every result is as near to dense attention as its budget asks."""
        return set(self.errors) == set(TENSORS) and all(
            self.errors[name] <= self.budgets[name] for name in TENSORS
        )


Executions = Mapping[str, tuple[Execution, ...]]
"""Executions of each strategy by its title, one a batch."""
