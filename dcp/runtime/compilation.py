"""Keeping torch.compile out of functions that it cannot make faster."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def uncompiled(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Run a function as it is, also when it is called from a compiled one.

    The caller's graph breaks there. Traced, an executor would become a graph a plan. Unlike
    `torch.compiler.disable` this does not import the compiler, which takes a second, where
    nothing is compiled.
    """
    disabled: list[Callable[_Arguments, _Result]] = []

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return call
