"""Homes of token blocks: most bytes saved under an exact limit of tokens a device.

With the computations placed, every home of a token block saves a known number of bytes, so this
is a generalised assignment problem. The limit is the load of one packing of whole blocks and
leaves one to three per cent of slack, less than a block: exchanges of blocks matter as much
as moves.
"""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.search_packing import repacked
from dcp.packing import loads

_MAX_PASSES = 8

_MOST_EXCHANGES = 400_000
"""Pairs of blocks compared for one exchange; of more, some evenly spread, if any of these helps."""

_Step = tuple[int, int, int | None]
"""A token block, the device it moves to, and the block that comes back, if any."""


def settle_homes(saving: IntArray, tokens: IntArray, limit: int, wanted: IntArray) -> IntArray:
    """Homes within the limit that save as many bytes as moves and exchanges can find.

    Args:
        saving: Bytes that each home of each token block saves, [T, D].
        tokens: Tokens of each block, [T].
        limit: Most tokens a device, at least those of the longest-first packing.
        wanted: Homes to start from, [T]; kept where they are within the limit and best.
    Returns:
        Home of every token block, [T].
    """
    home = relieve(saving, tokens, limit, wanted)
    if home is None:
        home = repacked(wanted, saving, tokens, limit)
    return improve(saving, tokens, limit, home)


def relieve(saving: IntArray, tokens: IntArray, limit: int, home: IntArray) -> IntArray | None:
    """Bring overfull devices within the limit at few bytes; None where moves get stuck.

    Every step moves a block out of the fullest device, alone or in exchange for a smaller one,
    to a device that stays within the limit, so the excess falls with every step.
    """
    home = home.copy()
    held = loads(home, tokens, saving.shape[1])
    while int(held.max()) > limit:
        full = int(held.argmax())
        excess = int(held[full]) - limit
        mine = np.flatnonzero(home == full)
        step = _best_move(saving, tokens, limit - held, mine, full, excess)
        if step is None:
            step = _best_exchange(saving, tokens, limit - held, home, mine, full, excess)
        if step is None:
            return None
        block, device, other = step
        _apply(home, held, tokens, block, device, other)
    return home


def improve(saving: IntArray, tokens: IntArray, limit: int, home: IntArray) -> IntArray:
    """Move and exchange blocks while that saves bytes; never leaves the limit."""
    home = home.copy()
    held = loads(home, tokens, saving.shape[1])
    each = np.arange(len(tokens))
    for _ in range(_MAX_PASSES):
        regret = saving.max(axis=1) - saving[each, home]
        order = np.argsort(-regret, kind="stable")[: np.count_nonzero(regret)]
        changed = False
        for block in order.tolist():
            changed |= _improve_one(saving, tokens, limit, home, held, block)
        if not changed:
            break
    return home


def _improve_one(
    saving: IntArray, tokens: IntArray, limit: int, home: IntArray, held: IntArray, block: int
) -> bool:
    """Take the best move or exchange of one block, if any saves bytes."""
    here, size, room = home[block], tokens[block], limit - held
    gain = saving[block] - saving[block, here]
    alone = np.where(room >= size, gain, 0)
    returned = saving[:, here] - saving[np.arange(len(home)), home]
    fits = (room[home] + tokens >= size) & (room[here] + size >= tokens)
    exchange = np.where(fits, gain[home] + returned, 0)
    device, other = int(alone.argmax()), int(exchange.argmax())
    if max(alone[device], exchange[other]) <= 0:
        return False
    if alone[device] >= exchange[other]:
        _apply(home, held, tokens, block, device, None)
    else:
        _apply(home, held, tokens, block, int(home[other]), other)
    return True


def _apply(
    home: IntArray, held: IntArray, tokens: IntArray, block: int, device: int, other: int | None
) -> None:
    """Move a block to a device; what it is exchanged for goes the other way."""
    here = home[block]
    home[block] = device
    balance = tokens[block]
    if other is not None:
        home[other] = here
        balance = balance - tokens[other]
    held[here] -= balance
    held[device] += balance


def _best_move(
    saving: IntArray, tokens: IntArray, room: IntArray, mine: IntArray, full: int, excess: int
) -> _Step | None:
    size = tokens[mine]
    useful = np.minimum(size, excess)
    price = (saving[mine, full][:, None] - saving[mine]) / np.maximum(useful, 1)[:, None]
    legal = (room[None, :] >= size[:, None]) & (useful > 0)[:, None]
    price = np.where(legal, price, np.inf)
    if not legal.any():
        return None
    index, device = np.unravel_index(int(price.argmin()), price.shape)
    return int(mine[index]), int(device), None


def _best_exchange(
    saving: IntArray,
    tokens: IntArray,
    room: IntArray,
    home: IntArray,
    mine: IntArray,
    full: int,
    excess: int,
) -> _Step | None:
    others = np.flatnonzero(home != full)
    stride = 1 + len(mine) * len(others) // _MOST_EXCHANGES
    for tried in (others[::stride], others) if stride > 1 else (others,):
        shed = tokens[mine][:, None] - tokens[tried][None, :]
        legal = (shed > 0) & (room[home[tried]][None, :] >= shed)
        if legal.any():
            break
    else:
        return None
    loss = (saving[mine, full][:, None] - saving[mine][:, home[tried]]) + (
        saving[tried, home[tried]] - saving[tried, full]
    )[None, :]
    price = np.where(legal, loss / np.maximum(np.minimum(shed, excess), 1), np.inf)
    index, other = np.unravel_index(int(price.argmin()), price.shape)
    return int(mine[index]), int(home[tried[other]]), int(tried[other])
