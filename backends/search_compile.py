"""How the search compiles its hot loops."""

from __future__ import annotations

from typing import Any

from dcp import compiled as kept_code
from dcp.compiled import F, njit

# Without its runtime numba does not count references to arrays, which costs several times what
# a move costs; so compiled functions take arrays and allocate none. A division by zero gives
# infinity, as in numpy, rather than a branch to an exception. Nobody calls them from C.
_OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True}


def compiled(function: F) -> F:
    """As `dcp.compiled.compiled`, for what Python calls."""
    return kept_code.compiled(function, **_OPTIONS)


def inner(function: F) -> F:
    """Compile for compiled functions only: Python cannot call it, which halves the time."""
    result: F = njit(no_cpython_wrapper=True, **_OPTIONS)(function)
    return result


def inlined(function: F) -> F:
    """As `inner`, and always inlined."""
    result: F = njit(no_cpython_wrapper=True, forceinline=True, **_OPTIONS)(function)
    return result
