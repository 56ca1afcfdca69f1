"""Masks by name, as the command line asks for them: `name` or `name:option=value,...`."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable

import msgspec

from dcp import masks, registry
from dcp.errors import MaskError, SpecError

# Masks that fit every sequence of a batch; `documents` and the converters are bound to lengths.
CONSTRUCTORS: dict[str, Callable[..., masks.Mask]] = {
    "causal": masks.causal,
    "full": masks.full,
    "sliding_window": masks.sliding_window,
    "lambda": masks.lambda_mask,
    "causal_blockwise": masks.causal_blockwise,
    "shared_question": masks.shared_question,
    "prefix_lm": masks.prefix_lm,
}


def make_mask(request: str) -> masks.Mask:
    """Make a mask from `name` or `name:option=value,...`; options are the constructor's arguments.

    Raises:
        MaskError: an unknown name or option, one that is missing, or an illegal value; lists
            what is legal.
    """
    try:
        name, given = registry.parse_request(request)
    except SpecError as error:
        raise MaskError(str(error)) from error
    if name not in CONSTRUCTORS:
        raise MaskError(f"no mask is named {name!r}; there are: {', '.join(forms())}")
    legal = _options(CONSTRUCTORS[name])
    values = {}
    for option, text in given.items():
        if option not in legal:
            raise MaskError(f"{name!r} has no option {option!r}; write {_form(name)}")
        values[option] = _convert(f"{option} of {name!r}", text, legal[option])
    missing = [option for option in _required(CONSTRUCTORS[name]) if option not in values]
    if missing:
        raise MaskError(f"{name!r} needs {', '.join(missing)}; write {_form(name)}")
    return CONSTRUCTORS[name](**values)


def forms() -> list[str]:
    """How each mask is asked for, e.g. `sliding_window:window=INT`."""
    return [_form(name) for name in CONSTRUCTORS]


def _form(name: str) -> str:
    constructor = CONSTRUCTORS[name]
    shown = [
        f"{option}={_number(kind).__name__.upper()}"
        for option, kind in _options(constructor).items()
        if option != "offset"  # only of use where queries and keys differ
    ]
    return f"{name}:{','.join(shown)}" if shown else name


def _options(constructor: Callable[..., masks.Mask]) -> dict[str, type]:
    """Arguments that are one number each, with their types."""
    hints = typing.get_type_hints(constructor)
    return {
        name: hints[name]
        for name in inspect.signature(constructor).parameters
        if _number(hints[name]) in (int, float)
    }


def _required(constructor: Callable[..., masks.Mask]) -> list[str]:
    parameters = inspect.signature(constructor).parameters.values()
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


def _number(kind: type) -> type:
    """The type itself, or X of `X | None`."""
    if isinstance(kind, types.UnionType):
        (kind,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
    return kind


def _convert(what: str, text: str, kind: type) -> object:
    try:
        return msgspec.convert(text, _number(kind), strict=False)
    except msgspec.ValidationError as error:
        raise MaskError(
            f"{what} is {text!r}; give {'a whole' if _number(kind) is int else 'a'} number"
        ) from error
