"""How a placement is annealed: temperatures, prices and cycles."""

from __future__ import annotations

import math

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.backends.search_kernels import (
    anneal,
    total_token_excess,
    total_work_excess,
    weighted_bytes,
)
from dcp.backends.search_state import State

_STAGES = 48
_COLDEST = 0.06
_PRICE = 60.0
_LOTTERY = np.array([round(-math.log((i + 0.5) / 1024) * 2**20) / 2**20 for i in range(1024)])


def shares(users: float) -> IntArray:
    """Cumulated shares of the kinds of move out of 256: computation, line, home (with lines), [3].

    Args:
        users: Computations of a net on average; moves of long lines are tried less often.
    """
    lines = round(28 * min(1.0, 12.0 / max(users, 1.0)))
    return np.array([226 - 2 * lines, 226 - lines, 256 - lines])


def unit_bytes(state: State) -> float:
    """What temperatures are measured in: the bytes of a usual net of keys."""
    keys = state.nets["size"][len(state.nets) // 2 :]
    return float(np.median(keys[keys > 0])) if (keys > 0).any() else 1.0


def temperatures(unit: float, hottest: float) -> FloatArray:
    """A geometric fall, in whole bytes so that it is the same on every machine, [stages]."""
    fall = (_COLDEST / hottest) ** (np.arange(_STAGES) / (_STAGES - 1))
    return np.round(unit * hottest * fall)


def prices(state: State) -> tuple[float, float]:
    """Weighted bytes for a unit of work and for a token over the limits."""
    block = _PRICE * unit_bytes(state) * float(state.rules["groups"][0])
    block *= 1 + float(state.rules["farther"][0] + state.rules["entry"][0])
    work = float(state.comps["work"].max(initial=1))
    return block / work, block / max(float(np.median(state.tokens["tokens"])), 1.0)


def score(state: State) -> float:
    """Weighted bytes and the price of what is over the limits; less is better."""
    work_price, token_price = prices(state)
    excess = work_price * total_work_excess(state) + token_price * total_token_excess(state)
    return float(weighted_bytes(state) + excess)


def improved(state: State, heats: list[float], steps: int, seed: int) -> State:
    """Anneal again and again from the best placement so far; the best one.

    Args:
        state: Where to start; changed.
        heats: Hottest temperature of every cycle, in units of `unit_bytes`.
        steps: Moves tried a cycle.
        seed: Any integer.
    """
    best, best_score = state.copy(), score(state)
    unit = unit_bytes(state)
    work_price, token_price = prices(state)
    moves = shares(2 * len(state.comps) / max(len(state.nets), 1))
    for cycle, heat in enumerate(heats):
        anneal(
            state,
            temperatures(unit, heat),
            work_price,
            token_price,
            max(1, steps // _STAGES),
            moves,
            _LOTTERY,
            _seed_of(seed, cycle),
        )
        new = score(state)
        if new < best_score:
            best, best_score = state.copy(), new
        elif cycle + 1 < len(heats):
            state = best.copy()
    return best


def _seed_of(seed: int, cycle: int) -> np.uint64:
    """A start of the generator, never 0 (splitmix64, Steele et al. 2014)."""
    x = ((seed * 1000 + cycle + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return np.uint64((x ^ (x >> 31)) | 1)
