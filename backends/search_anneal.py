"""How a placement is annealed: temperatures, prices and cycles."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.backends.search_kernels import ROUND, anneal
from dcp.backends.search_random import scattered
from dcp.backends.search_state import State

_STAGES = 48
_COLDEST = 0.06
_PRICE = 60.0

_FIRST_PRICE = 0.005
_AFTER = np.arange(1, _STAGES + 1) / _STAGES
_RISING = np.round(_FIRST_PRICE ** (1 - _AFTER) * 2**20) / 2**20
_FULL = np.ones(_STAGES)
"""Parts of the price of work over a limit: in the first cycle they rise from stage to stage.

What starts over a limit then leaves it where that takes few bytes, rather than by the first move
that does.
"""

_FEW_USERS = 6.0
_LOTTERY = np.array([round(-math.log((i + 0.5) / 1024) * 2**20) / 2**20 for i in range(1024)])


def shares(users: float, *, by_runs: bool) -> IntArray:
    """Where in a round moves of the next kind begin: lines, homes, homes with lines, [3].

    The first are single computations.

    Args:
        users: Computations of a net on average; moves of long lines are tried less often.
        by_runs: Whether neighbouring token blocks may move together, which is tried more often.
    """
    if by_runs and users < _FEW_USERS:
        return np.array([30, 45, 80])
    lines = round(28 * min(1.0, 12.0 / max(users, 1.0)))
    return np.array([226 - 2 * lines, 226 - lines, 256 - lines])


def temperatures(unit: float, hottest: float) -> FloatArray:
    """A geometric fall, in whole bytes so that it is the same on every machine, [stages]."""
    fall = (_COLDEST / hottest) ** (np.arange(_STAGES) / (_STAGES - 1))
    return np.round(unit * hottest * fall)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What bytes, and what is over the limits, cost.

    Attributes:
        unit: What temperatures are measured in: the bytes of a usual net of keys.
        work, token: Weighted bytes for a unit of work and for a token over the limits.
    """

    unit: float
    work: float
    token: float

    @classmethod
    def of(cls, state: State) -> Prices:
        """Prices at which no limit is broken to save bytes."""
        rules, work = state.rules[0], float(state.comps["work"].max(initial=1))
        unit, links = float(rules["usual_bytes"]), 1 + float(rules["entry"])
        block = _PRICE * unit * float(rules["groups"]) * links
        return cls(
            unit=unit, work=block / work, token=block / max(float(rules["usual_tokens"]), 1.0)
        )

    def score(self, state: State) -> float:
        """Weighted bytes and the price of what is over the limits; less is better."""
        over = state.devices["tokens"] - state.rules["token_limit"]
        tokens = np.where(over > 0, over + state.rules["least_token_excess"], 0).sum()
        excess = self.work * float(state.nodes["excess"].sum()) + self.token * float(tokens)
        return weighted_bytes(state) + excess


def weighted_bytes(state: State) -> float:
    """Bytes of a placement, weighted by the links they cross."""
    rules, nets = state.rules[0], state.nets
    home = state.tokens["home"][nets["token"]]
    each = np.arange(len(nets))
    node = state.devices["node"][home]
    near, used = state.near, state.used[each, home] > 0
    links = (near.sum(axis=1, dtype=np.int64) - used).astype(np.float64)
    links += ((near > 0).sum(axis=1) - (near[each, node] > 0)) * rules["entry"]
    return float(nets["size"] @ links)


def improved(state: State, heats: list[float], steps: int, seed: int) -> State:
    """Anneal again and again from the best placement so far; the best one.

    Args:
        state: Where to start; changed.
        heats: Hottest temperature of every cycle, in units of `Prices.unit`.
        steps: Moves tried a cycle, in whole rounds for each stage.
        seed: Any integer.
    """
    prices = Prices.of(state)
    users = 2 * len(state.comps) / max(len(state.nets), 1)
    moves = shares(users, by_runs=bool(state.rules["longest"][0] > 1))
    best, best_score = state.copy(), prices.score(state)
    for cycle, heat in enumerate(heats):
        anneal(
            state,
            temperatures(prices.unit, heat),
            prices.work,
            prices.token,
            _RISING if cycle == 0 else _FULL,
            max(1, round(steps / (_STAGES * ROUND))),
            moves,
            _LOTTERY,
            _seed_of(seed, cycle),
        )
        new = prices.score(state)
        if new < best_score:
            best.assign(state)
            best_score = new
        elif cycle + 1 < len(heats):
            state.assign(best)
    return best


def score(state: State) -> float:
    """See `Prices.score`."""
    return Prices.of(state).score(state)


def _seed_of(seed: int, cycle: int) -> np.uint64:
    """A start of the generator, never 0."""
    return np.uint64(scattered(seed * 1000 + cycle + 1, 1)[0] | np.uint64(1))
