"""Which strategies a command line asks for."""

from __future__ import annotations

from collections.abc import Sequence

from dcp import registry
from dcp.comparison import Strategy, strategies
from dcp.errors import MissingPackageError, SpecError


def chosen(
    baselines: Sequence[str] | None,
    partitioners: Sequence[str] | None,
    schedulers: Sequence[str] | None,
) -> list[Strategy]:
    """Strategies by request; None for every known one, ["none"] for none.

    Raises:
        UnknownBackendError, SpecError: a name that is not there, or an illegal option.
    """
    wanted = strategies(
        _requests("baselines", baselines),
        _requests("partitioners", partitioners),
        _requests("schedulers", ("auto",) if schedulers is None else schedulers),
    )
    if not wanted:
        raise SpecError("no strategy is left; ask for at least one baseline or partitioner")
    return wanted


def check_request(group: str, request: str) -> None:
    """Refuse a request that no installation could serve.

    Raises:
        UnknownBackendError, SpecError: a name that is not there, or an illegal option.
    """
    if request == "auto":
        return
    try:
        registry.create(group, request)
    except MissingPackageError:
        return  # becomes a row that says what to install


def _requests(group: str, asked: Sequence[str] | None) -> Sequence[str]:
    if asked is None:
        return registry.names(group)
    if list(asked) == ["none"]:
        return ()
    for request in asked:
        check_request(group, request)
    return tuple(dict.fromkeys(asked))
