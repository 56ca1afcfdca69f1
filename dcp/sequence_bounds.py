"""Bytes that one sequence has to send, however it is placed; docs/placement.md has the proofs.

A device that owns tokens of a sequence can compute some pairs among them for nothing. For any
more it has to import queries (whose outputs go back) or keys, in each head group anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import FloatArray, IntArray

_OWNED_CELLS, _KEY_CELLS, _PRICES, _ROUNDS = 64, 32, 7, 4


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What every sequence is up against.

    Attributes:
        devices, groups: Devices and head groups.
        most_tokens: Tokens that a device may own.
        most_pairs: Pairs that it may compute, summed over head groups.
        q_bytes, kv_bytes: To import a token's query (with its output) or key, for one group.
    """

    devices: int
    groups: int
    most_tokens: int
    most_pairs: float
    q_bytes: float
    kv_bytes: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequence:
    """A sequence.

    Attributes:
        tokens: Tokens that can be owned.
        pairs: Allowed pairs of one head group.
        longest_row: Most keys that a query sees.
        row_lengths, rows_as_long: Some numbers of keys, and how many queries see as many.
        is_cross: Whether queries and keys are different tokens.
        is_causal: Whether they are the same and no query looks ahead.
    """

    tokens: int
    pairs: int
    longest_row: int
    row_lengths: IntArray
    rows_as_long: IntArray
    is_cross: bool
    is_causal: bool


def bytes_to_complete_rows(terms: Terms, sequence: Sequence) -> float:
    """A bound from what it takes that every query meets all its keys; 0 if not causal.

    Of the tokens that a device owns, the r-th sees at most r of them. So for all rows of some
    length L, or more, either keys come in, or the queries that still lack some go out.
    """
    if not sequence.is_causal:
        return 0.0
    most, lacking = terms.most_tokens, sequence.row_lengths - 1
    full, rest = divmod(sequence.tokens, most)
    starts = full * np.minimum(most, lacking) + np.minimum(rest, lacking)
    short_rows = sequence.tokens - sequence.rows_as_long
    imports = max(int((starts - short_rows).max()), 0)
    return imports * terms.groups * min(terms.q_bytes, terms.kv_bytes)


def bytes_to_balance(terms: Terms, sequence: Sequence) -> float:
    """A bound from what devices may own and compute.

    At a price for every pair that is computed, a device makes at most so much profit with what it
    owns. What all pairs earn, less the profit of all devices, is what they pay for imports.
    """
    total = sequence.pairs * terms.groups
    edges = np.linspace(0, min(terms.most_tokens, sequence.tokens), _OWNED_CELLS + 1)
    choices = _Choices.of(terms, sequence, edges[1:])
    low, high = 0.0, 2 * float(choices.excess_price[0])
    best = 0.0
    for _ in range(_ROUNDS):
        prices = np.linspace(low, high, _PRICES)
        profit = choices.profit(terms, prices[:, None])
        mean = _concave_at(edges[:-1], profit, sequence.tokens / terms.devices)
        least = prices * total - terms.devices * mean
        best = max(best, float(least.max()))
        at, step = float(prices[least.argmax()]), float(prices[1] - prices[0])
        low, high = max(at - step, 0.0), at + step
    return best


@dataclass(frozen=True, kw_only=True, eq=False)
class _Choices:
    """What a device can do that owns at most so many tokens of a sequence.

    Attributes:
        group_pairs, all_pairs: Most pairs that it may compute in one head group, and in all.
        own_pairs: Most pairs of its own tokens among themselves, in one group, [owned].
        excess_price: Least bytes for a pair beyond those, [owned].
        key_bytes: To import keys for one group, as many as a cell's first, [keys].
        key_pairs: Pairs that its own queries gain from as many as the cell's last, [owned, keys].
        row_pairs: Most pairs of an imported query then, [owned, keys].
    """

    group_pairs: float
    all_pairs: float
    own_pairs: FloatArray
    excess_price: FloatArray
    key_bytes: FloatArray
    key_pairs: FloatArray
    row_pairs: FloatArray

    @classmethod
    def of(cls, terms: Terms, sequence: Sequence, owned: FloatArray) -> _Choices:
        """For numbers of owned tokens, [owned]."""
        group_pairs = min(float(sequence.pairs), terms.most_pairs)
        all_pairs = min(float(sequence.pairs * terms.groups), terms.most_pairs)
        keys = sequence.longest_row * np.linspace(0, 1, _KEY_CELLS + 1) ** 2
        own = _pairs_with(sequence, owned[:, None], np.zeros(1))
        key_pairs = _pairs_with(sequence, owned[:, None], keys[1:]) - own
        row_pairs = np.minimum(owned[:, None] + keys[1:], sequence.longest_row)
        key_bytes = terms.kv_bytes * keys[:-1]
        # Beyond its own, a group computes at most so many, [owned, 1].
        excess = np.minimum(all_pairs - terms.groups * own, group_pairs - own)
        excess = np.maximum(excess, 1.0)
        row_bytes = terms.q_bytes * np.maximum(excess - key_pairs, 0) / row_pairs
        imports = np.maximum((key_bytes + row_bytes).min(axis=1), _rectangle(terms, owned, excess))
        seeing = owned if sequence.is_cross else np.minimum(owned, sequence.longest_row)
        return cls(
            group_pairs=group_pairs,
            all_pairs=all_pairs,
            own_pairs=own[:, 0],
            excess_price=np.minimum(imports / excess[:, 0], terms.kv_bytes / seeing),
            key_bytes=key_bytes,
            key_pairs=key_pairs,
            row_pairs=row_pairs,
        )

    def profit(self, terms: Terms, price: FloatArray) -> FloatArray:
        """A bound on price × pairs computed − bytes imported, [prices, owned] from [prices, 1]."""
        free = np.minimum(terms.groups * self.own_pairs, self.all_pairs)
        margin = np.maximum(price - self.excess_price, 0)
        together = price * free + margin * (self.all_pairs - free)
        gained = np.minimum(self.own_pairs[:, None] + self.key_pairs, self.group_pairs)
        row_margin = np.maximum(price[..., None] - terms.q_bytes / self.row_pairs, 0)
        rest = row_margin * (self.group_pairs - gained)
        apart = (price[..., None] * gained - self.key_bytes + rest).max(axis=2)
        profit: FloatArray = np.minimum(together, terms.groups * apart)
        return profit


def _rectangle(terms: Terms, owned: FloatArray, excess: FloatArray) -> FloatArray:
    """Bytes for so many pairs more of one group if rows had no limit, [owned].

    Least q_bytes·(a - owned) + kv_bytes·(b - owned) over a·b ≥ owned² + excess, a, b ≥ owned.
    """
    area = owned**2 + excess[:, 0]
    a = np.clip(np.sqrt(area * terms.kv_bytes / terms.q_bytes), owned, area / owned)
    cost: FloatArray = terms.q_bytes * (a - owned) + terms.kv_bytes * (area / a - owned)
    return cost


def _pairs_with(sequence: Sequence, owned: FloatArray, keys: FloatArray) -> FloatArray:
    """Most pairs of owned queries with owned keys and some more, in one group; broadcasts.

    Where no query looks ahead, the r-th of the owned ones sees at most r owned keys.
    """
    row = sequence.longest_row
    if sequence.is_cross:
        return owned**2 / 4 + owned * np.minimum(keys, row)
    if not sequence.is_causal:
        return owned * np.minimum(owned + keys, row)
    growing = np.clip(row - keys, 0, owned)
    return growing * (growing + 1) / 2 + growing * keys + (owned - growing) * row


def _concave_at(x: FloatArray, y: FloatArray, at: float) -> FloatArray:
    """Value at one place of the least concave, nondecreasing curve above points, [curves].

    Args:
        x: Ascending from 0, [n].
        y: Heights, at least 0, [curves, n].
        at: The place.
    """
    right = x > at
    highest: FloatArray = y[:, ~right].max(axis=1)
    if right.any():
        share = (at - x[~right][:, None]) / (x[right] - x[~right][:, None])
        chords = y[:, ~right, None] * (1 - share) + y[:, None, right] * share
        highest = np.maximum(highest, chords.max(axis=(1, 2)))
    return highest
