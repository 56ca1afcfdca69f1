"""Homes within a token limit that exchanges of blocks could not reach: a packing, fitted."""

from __future__ import annotations

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.packing import pack_longest_first, pack_within


def repacked(home: IntArray, saving: IntArray, tokens: IntArray, limit: int) -> IntArray:
    """A packing within a limit if one is found, arranged so that most blocks keep their homes.

    Blocks of the commonest size are interchangeable in it, so only how many a device holds is
    taken from the packing; the others go where their bin goes.

    Args:
        home: Homes to stay close to, [T].
        saving: Weighted bytes that each home of each token block saves, [T, D].
        tokens: Tokens of each block, [T].
        limit: Most tokens a device; where no packing is found, the longest-first one is taken.

    Returns:
        Home of every token block, [T].
    """
    devices = saving.shape[1]
    bins = pack_within(tokens, devices, limit)
    if bins is None:
        bins = pack_longest_first(tokens, devices)
    sizes, counts = np.unique(tokens, return_counts=True)
    size = int(sizes[counts.argmax()])
    common = tokens == size
    wanted = np.bincount(bins[common], minlength=devices)
    held = np.bincount(home[common], minlength=devices)
    kept = np.minimum(wanted[:, None], held[None, :]) * size
    np.add.at(kept, (bins[~common], home[~common]), tokens[~common])
    device_of = _matched(kept)
    new = device_of[bins]
    quota = np.zeros(devices, dtype=np.int64)
    quota[device_of] = wanted
    _deal(new, home, saving, common, quota)
    return new


def _matched(worth: IntArray) -> IntArray:
    """A device for every bin, the pairs of most worth first, [D]."""
    worth = worth.copy()
    device_of = np.zeros(len(worth), dtype=np.int64)
    for _ in range(len(worth)):
        index, device = np.unravel_index(int(worth.argmax()), worth.shape)
        device_of[index] = device
        worth[index, :] = -1
        worth[:, device] = -1
    return device_of


def _deal(
    new: IntArray, home: IntArray, saving: IntArray, common: BoolArray, quota: IntArray
) -> None:
    """Give the interchangeable blocks to devices up to their quotas: who is there stays first."""
    blocks = np.flatnonzero(common)
    loss = saving[blocks].max(axis=1) - saving[blocks, home[blocks]]
    movers = []
    for block in blocks[np.argsort(loss, kind="stable")].tolist():
        if quota[home[block]] > 0:
            quota[home[block]] -= 1
            new[block] = home[block]
        else:
            movers.append(block)
    for block in movers:
        device = int(np.where(quota > 0, saving[block], -1).argmax())
        quota[device] -= 1
        new[block] = device
