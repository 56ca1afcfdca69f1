"""How the search compiles its hot loops: numba, with the machine code kept on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba

logger = logging.getLogger("dcp")

F = TypeVar("F", bound=Callable[..., Any])

# Without its runtime numba does not count references to arrays, which costs several times what
# a move costs; so compiled functions take arrays and allocate none. A division by zero gives
# infinity, as in numpy, rather than a branch to an exception.
_OPTIONS = {"_nrt": False, "error_model": "numpy"}


def compiled(function: F) -> F:
    """Compile on first call; later processes load the result from disk.

    numba keeps it beside this package, or else in the user's cache directory, or where
    NUMBA_CACHE_DIR says. Where none can be written, every process compiles for itself.
    numba notices that a kept function is out of date by its own file only, so functions that
    call one another stand in one file.
    """
    return _compile(function, _OPTIONS)


def inlined(function: F) -> F:
    """As `compiled`, and always inlined into the compiled functions that call it."""
    return _compile(function, {**_OPTIONS, "forceinline": True})


def _compile(function: F, options: dict[str, Any]) -> F:
    try:
        result: F = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:  # numba finds no directory that it may write to
        logger.info("compiled code is not kept: %s", error)
        result = numba.njit(**options)(function)
    return result
