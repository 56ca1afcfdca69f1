"""The interface between what runs programs and what observes them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dcp.profiling.trace import Range


class Observer(ABC):
    """Is told of the ranges of one program, properly nested."""

    @abstractmethod
    def begin(self, what: Range) -> None:
        """A range begins."""

    @abstractmethod
    def end(self) -> None:
        """The innermost range ends."""

    def pause(self) -> None:  # noqa: B027 - most observers do not mind
        """Another rank of this thread has its turn."""

    def resume(self) -> None:  # noqa: B027
        """The turn has come back."""
