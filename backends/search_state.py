"""The arrays that the compiled search works on.

A record an item rather than an array an attribute: what a move reads of one computation or one
data block then lies in one cache line. Indices are unsigned, which spares numba the test for
negative ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[np.void]
UIntArray = npt.NDArray[np.uint32]

# `row` and `column` are the nets of its queries and of its keys. A net is a data block side of
# one head group: Q with O, or KV.
COMPUTATION = np.dtype(
    [("work", "i8"), ("row", "u4"), ("column", "u4"), ("device", "u4"), ("unused", "u4")]
)
# The users of a net are pins[first : first + users].
NET = np.dtype(
    [("size", "f8"), ("first", "u4"), ("users", "u4"), ("token", "u4"), ("unused", "u4")]
)
# The token blocks of a device form a ring through `next` and `previous`. Those of a `run` are
# neighbours in a sequence.
TOKEN = np.dtype(
    [("tokens", "i8"), ("home", "u4"), ("next", "u4"), ("previous", "u4"), ("run", "u4")]
)
DEVICE = np.dtype(
    [("work", "i8"), ("tokens", "i8"), ("node", "u4"), ("a_token", "u4"), ("blocks", "i8")]
)
NODE = np.dtype([("work", "i8"), ("excess", "f8")])
# A byte weighs 1 for each device that needs it away from its home, and `entry` more for each other
# node that does. Up to `longest` neighbouring token blocks move together. `usual` are medians, of
# the nets of keys and of the token blocks.
RULES = np.dtype(
    [
        ("entry", "f8"),
        ("device_limit", "f8"),
        ("inside_factor", "f8"),
        ("node_limit", "f8"),
        ("least_work_excess", "f8"),
        ("token_limit", "i8"),
        ("least_token_excess", "i8"),
        ("per_node", "i8"),
        ("groups", "i8"),
        ("longest", "i8"),
        ("usual_bytes", "f8"),
        ("usual_tokens", "f8"),
    ]
)


class State(NamedTuple):
    """A placement under search, with everything that makes a move cheap to price.

    Attributes:
        comps: [C] of COMPUTATION.
        nets: [2·T·G] of NET by (side, token block, head group), queries before keys.
        pins: Computations by net, [2·C].
        tokens: [T] of TOKEN.
        devices: [D] of DEVICE.
        nodes: [nodes] of NODE.
        used: Computations with each net on each device, [nets, D].
        near: Devices of each node that compute with a net, [nets, nodes].
        rules: [1] of RULES; compiled code hands the one record on.
        journal: Room for the computations of a move that may be undone, [2·C].
    """

    comps: Records
    nets: Records
    pins: UIntArray
    tokens: Records
    devices: Records
    nodes: Records
    used: npt.NDArray[np.int16]
    near: npt.NDArray[np.int16]
    rules: Any
    journal: UIntArray

    def copy(self) -> State:
        """An independent copy of what moves change."""
        changed = {name: getattr(self, name).copy() for name in _CHANGED}
        return self._replace(**changed)

    def assign(self, other: State) -> None:
        """Become equal to a copy."""
        for name in _CHANGED:
            getattr(self, name)[...] = getattr(other, name)


_SHARED = ("nets", "pins", "rules", "journal")
_CHANGED = tuple(name for name in State._fields if name not in _SHARED)
