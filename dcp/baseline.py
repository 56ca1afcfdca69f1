"""The interface of static schemes: fixed cuts, placement and schedules in one block model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from dcp.backend import Backend
from dcp.blocks import BlockGraph
from dcp.placement import Assignment
from dcp.plan_request import PlanRequest
from dcp.scheduling import Schedule


class Baseline(Backend):
    """A static scheme: its own cuts, a fixed placement and fixed schedules."""

    @abstractmethod
    def arrange(self, request: PlanRequest) -> Arrangement:
        """Cut, place and schedule.

        Raises:
            SpecError: the scheme cannot serve this request; says why and what can.
        """

    def least_seconds(self, request: PlanRequest) -> float:
        """Time that forward and backward take at least, without arranging anything; 0 if unknown.

        `auto` spares itself a scheme that cannot win.
        """
        del request
        return 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrangement:
    """A static scheme's whole answer."""

    blocks: BlockGraph
    assignment: Assignment
    forward: Schedule
    backward: Schedule
