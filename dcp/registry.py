"""Finding backends by name: a table of built-ins, merged lazily with entry points.

A backend is asked for as `name` or `name:option=value,option=value`; options are the fields of
its dataclass. Another package adds one by an entry point in the group of its kind.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

import msgspec

from dcp.backend import Availability
from dcp.errors import BackendError, MissingPackageError, SpecError, UnknownBackendError

logger = logging.getLogger("dcp")

BUILT_IN: dict[str, dict[str, str]] = {
    "partitioners": {
        "local_search": "dcp.backends.local_search:LocalSearch",
        "greedy": "dcp.backends.greedy:Greedy",
        "kahypar": "dcp.backends.kahypar:KaHyPar",
        "mtkahypar": "dcp.backends.mtkahypar:MtKaHyPar",
    },
    "schedulers": {
        "paper": "dcp.backends.paper_schedule:PaperSchedule",
        "overlap": "dcp.backends.overlap_schedule:OverlapSchedule",
        "sequential": "dcp.backends.sequential_schedule:SequentialSchedule",
    },
    "baselines": {
        "ring": "dcp.baselines.ring:Ring",
        "zigzag": "dcp.baselines.zigzag:Zigzag",
        "ulysses": "dcp.baselines.ulysses:Ulysses",
        "usp": "dcp.baselines.usp:USP",
        "allgather": "dcp.baselines.allgather:AllGather",
    },
    "cost_models": {
        "event": "dcp.scheduling:EventModel",
    },
    "kernels": {
        "torch": "dcp.kernels.torch_flash:TorchFlash",
        "triton": "dcp.kernels.triton_attention:TritonAttention",
        "flash_attn": "dcp.kernels.flash_attn:FlashAttention",
    },
}


class Entry(NamedTuple):
    """One backend as listed: its name, who provides it, and whether it can run here."""

    name: str
    provider: str
    availability: Availability


def names(group: str) -> tuple[str, ...]:
    """Names of a group, one of the keys of `BUILT_IN`; built-ins first."""
    return (*BUILT_IN[group], *_plugins(group))


def create(group: str, request: str) -> Any:
    """Make a backend from `name` or `name:option=value,...`.

    Raises:
        UnknownBackendError: no such name; lists those that exist.
        SpecError: an unknown option, or a value of the wrong type.
        MissingPackageError: it needs a package that is not installed.
    """
    name, options = parse_request(request)
    backend = load(group, name)
    availability = backend.availability()
    if not availability.available:
        raise MissingPackageError(f"{group[:-1]} {name!r} cannot run here: {availability.reason}")
    return _configured(backend, name, options)


def load(group: str, name: str) -> Any:
    """The class behind a name.

    Raises:
        UnknownBackendError: no such name; lists those that exist, and says so where the name is
            one of another group.
        BackendError: it belongs to a package that fails to load.
    """
    if name in BUILT_IN[group]:
        module, _, attribute = BUILT_IN[group][name].partition(":")
        return getattr(import_module(module), attribute)
    if name in _plugins(group):
        try:
            return _plugins(group)[name].load()
        except Exception as error:
            raise BackendError(
                f"{group[:-1]} {name!r} of {_provider(group, name)} fails to load "
                f"({type(error).__name__}: {error}); reinstall or remove that package"
            ) from error
    raise UnknownBackendError(
        f"no {group[:-1]} is named {name!r}; there are: {', '.join(names(group))}{_elsewhere(name)}"
    )


def entries(group: str) -> list[Entry]:
    """All backends of a group; one that fails to load is listed with the reason."""
    found = []
    for name in names(group):
        try:
            availability = load(group, name).availability()
        except Exception as error:
            logger.warning("%s %r cannot be used: %s", group[:-1], name, error)
            availability = Availability(False, str(error))
        found.append(Entry(name, _provider(group, name), availability))
    return found


def parse_request(request: str) -> tuple[str, dict[str, str]]:
    """Read `name` or `name:option=value,...` into the name and its options.

    Raises:
        SpecError: an option that is not written `option=value`.
    """
    name, _, rest = request.partition(":")
    options = {}
    for option in filter(None, rest.split(",")):
        key, equals, value = option.partition("=")
        if not (key and equals):
            raise SpecError(f"cannot read {option!r} in {request!r}; write name:option=value,...")
        if key in options:
            raise SpecError(f"{key!r} stands twice in {request!r}; give each option once")
        options[key] = value
    return name, options


@lru_cache
def _plugins(group: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"dcp.{group}"):
        if point.name in BUILT_IN[group] or point.name in found:
            logger.warning("%s %r of %s is hidden: the name is taken", group, point.name, point)
            continue
        found[point.name] = point
    return found


def _provider(group: str, name: str) -> str:
    if name in BUILT_IN[group]:
        return "dcp"
    distribution = _plugins(group)[name].dist
    return distribution.name if distribution else _plugins(group)[name].module


def _elsewhere(name: str) -> str:
    """How to ask for what makes plans and has this name in another group; nothing for no such."""
    for group in ("partitioners", "schedulers", "baselines"):
        if name in names(group):
            kind = group[:-1]
            return f'; {name!r} is a {kind}: ask for {kind}="{name}" or --{kind} {name}'
    return ""


def _configured(backend: Any, name: str, options: dict[str, str]) -> Any:
    fields = [field.name for field in dataclasses.fields(backend)]
    unknown = [key for key in options if key not in fields]
    if unknown:
        legal = ", ".join(fields) or "none"
        raise SpecError(f"{name!r} has no option {unknown[0]!r}; legal: {legal}")
    try:
        return msgspec.convert(options, backend, strict=False)
    except msgspec.ValidationError as error:
        raise SpecError(f"options of {name!r}: {error}") from error
