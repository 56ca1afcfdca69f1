"""Checks of numbers that users give: what was given, what is legal."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from dcp.errors import SpecError

MOST = 2**63 - 1


def shown(value: Any) -> str:
    """A value as a message shows it; of an integer that Python does not write out, its size."""
    try:
        return repr(value)
    except ValueError:
        if isinstance(value, Integral):
            return f"an integer of {int(value).bit_length()} bits"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(shown, value))}]"
        return f"a {type(value).__name__} with an integer too long to write out"


def check_kind(name: str, value: Any, kind: type) -> None:
    """Refuse what is not an instance of a class.

    Raises:
        SpecError: names the value.
    """
    if not isinstance(value, kind):
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        raise SpecError(f"{name} is {shown(value)}; give a {module}{kind.__qualname__}")


def check_choice(name: str, value: Any, legal: Collection[str]) -> None:
    """Refuse what is none of some words.

    Raises:
        SpecError: names the value.
    """
    if not (isinstance(value, str) and value in legal):
        raise SpecError(f"{name} is {shown(value)}; legal: {', '.join(legal)}")


def check_integer(name: str, value: Any, *, least: int = 1) -> None:
    """Refuse what is not an integer from `least` to `MOST`; booleans are no integers here.

    Raises:
        SpecError: names the value.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise SpecError(f"{name} is {shown(value)}; it must be an integer of {least} or more")
    if int(value) > MOST:
        raise SpecError(f"{name} is {shown(value)}; it must fit 64 bits")


def check_number(
    name: str, value: Any, *, positive: bool = False, least: float = 0.0, most: float | None = None
) -> None:
    """Refuse what is not a finite number from `least` to `most`, or positive where that is asked.

    Raises:
        SpecError: names the value.
    """
    legal = "positive and finite" if positive else f"finite and {least:g} or more"
    legal += "" if most is None else f", at most {most:g}"
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan
    except OverflowError:  # an integer of more than 308 digits
        number = math.inf
    too_large = not math.isfinite(number) or (most is not None and number > most)
    if too_large or number < least or (positive and number == 0):
        raise SpecError(f"{name} is {shown(value)}; it must be {legal}")
