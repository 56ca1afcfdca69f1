"""Hot loops compiled by numba, with the machine code kept on disk; importing this loads numba."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba

logger = logging.getLogger("dcp")

F = TypeVar("F", bound=Callable[..., Any])

njit: Any = numba.njit  # its type hints know some of the options only

# Without its runtime numba does not count references to arrays, which costs several times what
# a step of a search costs, and leaves less to compile; so compiled functions take arrays and
# allocate none. A division by zero gives infinity, as in numpy, rather than a branch to an
# exception. Nobody calls them from C.
_OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True}


def compiled(function: F) -> F:
    """Compile on first call; later processes load the result from disk.

    numba keeps it beside the package, or else in the user's cache directory, or where
    NUMBA_CACHE_DIR says. Where none can be written, every process compiles for itself.
    numba takes what it has kept for out of date when the function's own file has changed, so
    the inner functions that it calls stand in that file.
    """
    try:
        result: F = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError as error:  # numba finds no directory that it may write to
        logger.info("compiled code is not kept: %s", error)
        result = njit(**_OPTIONS)(function)
    return result


def inner(function: F) -> F:
    """Compile for compiled functions only: Python cannot call it, which halves the time."""
    result: F = njit(no_cpython_wrapper=True, **_OPTIONS)(function)
    return result


def inlined(function: F) -> F:
    """As `inner`, and always inlined."""
    result: F = njit(no_cpython_wrapper=True, forceinline=True, **_OPTIONS)(function)
    return result
