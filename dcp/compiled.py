"""Hot loops compiled by numba, with the machine code kept on disk; importing this loads numba."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba

logger = logging.getLogger("dcp")

F = TypeVar("F", bound=Callable[..., Any])

njit: Any = numba.njit  # its type hints know some of the options only


def compiled(function: F, **options: Any) -> F:
    """Compile on first call; later processes load the result from disk.

    numba keeps it beside the package, or else in the user's cache directory, or where
    NUMBA_CACHE_DIR says. Where none can be written, every process compiles for itself.
    numba takes what it has kept for out of date when the function's own file has changed, so
    the inner functions that it calls stand in that file.

    Args:
        function: What to compile.
        options: Of `numba.njit`.
    """
    try:
        result: F = njit(cache=True, **options)(function)
    except RuntimeError as error:  # numba finds no directory that it may write to
        logger.info("compiled code is not kept: %s", error)
        result = njit(**options)(function)
    return result
