"""`dcp backends`: what can be asked for by name, and whether it can run here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dcp import registry
from dcp.cli.output import print_json, stdout
from dcp.errors import BackendError


def backends(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List everything that can be asked for by name, and what to install for it."""
    found = {
        group: [_described(group, entry) for entry in registry.entries(group)]
        for group in registry.BUILT_IN
    }
    if json:
        print_json(found)
        return
    console = stdout()
    console.print(_table(found))
    for reason in _reasons(found):
        console.print(reason)
    console.print("Ask for one as NAME or NAME:OPTION=VALUE,OPTION=VALUE.")


def _described(group: str, entry: registry.Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "provider": entry.provider,
        "available": entry.availability.available,
        "reason": entry.availability.reason,
        "options": _options(group, entry.name),
    }


def _options(group: str, name: str) -> dict[str, Any]:
    """Options with their defaults; None where the backend chooses, or the user has to."""
    try:
        backend = registry.load(group, name)
    except (BackendError, ImportError):
        return {}  # the entry shows the reason
    fields = dataclasses.fields(backend) if dataclasses.is_dataclass(backend) else ()
    return {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in fields
    }


def _table(found: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("kind", "name", "available", "options and defaults"):
        table.add_column(column)
    for group, entries in found.items():
        for entry in entries:
            options = ", ".join(
                name if value is None else f"{name}={value}"
                for name, value in entry["options"].items()
            )
            name = entry["name"]
            if entry["provider"] != "dcp":
                name += f" ({entry['provider']})"
            table.add_row(
                group.removesuffix("s").replace("_", " "),
                name,
                "yes" if entry["available"] else "NO",
                options,
            )
    return table


def _reasons(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    for entries in found.values():
        for entry in entries:
            if not entry["available"]:
                yield f"{entry['name']}: {entry['reason']}"
