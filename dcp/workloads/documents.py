"""Lengths of documents, before they are packed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Lengths of documents in tokens, with what was read and how tokens were counted."""

    lengths: tuple[int, ...]
    source: str
    token_rule: str
    notes: tuple[str, ...] = ()

    def shuffled(self, seed: int) -> Documents:
        """The same documents in an order that depends on the seed only."""
        order = random.Random(seed).sample(self.lengths, len(self.lengths))
        return replace(self, lengths=tuple(order))
