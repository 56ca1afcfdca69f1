"""Options that several commands share, declared once as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, get_type_hints

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose dataclass parameters stand for their fields.

    Typer makes an option of every parameter in the signature. It is shown one in which a
    parameter that is a dataclass has been replaced by the fields of that dataclass, with their
    annotations and defaults; the command itself receives the dataclass.

    Args:
        command: Takes keyword arguments; every field of its dataclasses has a default.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _fields(groups[name])
        else:
            parameters.append(parameter.replace(kind=_KEYWORD, annotation=hints[name]))

    @wraps(command)
    def run(**options: Any) -> None:
        made = {name: _taken(kind, options) for name, kind in groups.items()}
        command(**made, **options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _fields(kind: Any) -> list[inspect.Parameter]:
    hints: Mapping[str, Any] = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(field.name, _KEYWORD, default=field.default, annotation=hints[field.name])
        for field in dataclasses.fields(kind)
    ]


def _taken(kind: Any, options: dict[str, Any]) -> Any:
    """The dataclass, made of the options that are its fields, which are removed."""
    return kind(**{field.name: options.pop(field.name) for field in dataclasses.fields(kind)})
