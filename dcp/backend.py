"""What all replaceable parts have in common; `dcp.registry` finds them by name."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, NamedTuple


class Availability(NamedTuple):
    """Whether a backend can run here, and if not, why and what to install."""

    available: bool
    reason: str = ""


class Backend(ABC):
    """A partitioner, scheduler, baseline, kernel or cost model.

    Implementations are frozen keyword-only dataclasses: their fields are the options that a
    request `name:option=value` sets.
    """

    name: ClassVar[str]

    @classmethod
    def availability(cls) -> Availability:
        """Whether it can run here; imports nothing heavy."""
        return Availability(True)
