"""Random numbers of the search, the same on every machine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_STEP = 0x9E3779B97F4A7C15


def scattered(number: int, count: int) -> npt.NDArray[np.uint64]:
    """Random bits for each of so many numbers in a row, [count] (splitmix64, Steele et al. 2014).

    Args:
        number: The first of them, any integer.
        count: How many.
    """
    x = np.arange(count, dtype=np.uint64) * np.uint64(_STEP)
    x += np.uint64(number * _STEP % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
