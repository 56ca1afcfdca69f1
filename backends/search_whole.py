"""Sequences packed whole into devices: starting points where few of them have to be cut.

Under sparse masks, what is sent is mostly a matter of which sequences are cut, and a tight limit of
tokens allows few ways to pack them. Annealing hardly comes back from a cut sequence to a whole one:
it would have to break that limit on the way.
"""

from __future__ import annotations

import numpy as np

from dcp.arrays import IntArray
from dcp.backends.search_deals import Deal
from dcp.backends.search_level import Level
from dcp.backends.search_places import Places
from dcp.packing import loads, pack_into


def packed_whole(level: Level, places: Places, node: IntArray | None = None) -> Deal | None:
    """Runs to devices, whole where they fit.

    Longer ones go to devices in a row, in few nodes. Those for which no room is left are cut where
    it ends. Devices of like work share a node.

    Args:
        level: What to place.
        places: Where.
        node: Node of every token block where that is settled already, [T].

    Returns:
        The deal, or None where the long runs take more devices than there are.
    """
    home = np.zeros(len(level.tokens), dtype=np.int64)
    if node is None:
        parts, nodes = [np.arange(len(home))], places.nodes
    else:
        parts, nodes = [np.flatnonzero(node == one) for one in range(places.nodes)], 1
    for first, blocks in enumerate(parts):
        inside = _packed(level, blocks, places.token_limit_on(level), nodes, places.per_node)
        if inside is None:
            return None
        home[blocks] = first * places.per_node + inside
    return Deal.of(level, home)


def _packed(
    level: Level, blocks: IntArray, limit: int, nodes: int, per_node: int
) -> IntArray | None:
    """Devices of some token blocks, by number among these nodes, [blocks]."""
    devices = nodes * per_node
    tokens = level.tokens["tokens"][blocks].astype(np.int64)
    portion, begin, length = _portions(level.tokens["run"][blocks], tokens, limit)
    size = loads(portion, tokens, int(length.sum()))
    long = np.flatnonzero(length > 1)
    long = long[np.argsort(-length[long], kind="stable")]
    if length[long].sum() > devices:
        return None
    rows = np.array([begin[one] + at for one in long for at in range(length[one])], dtype=np.int64)
    where = np.full(len(size), -1)
    where[rows] = _in_rows(length[long].tolist(), nodes, per_node)
    alone = begin[length == 1]
    where[alone] = _filled(size[alone], limit - loads(where[rows], size[rows], devices))
    home = _cut_to_rooms(where[portion], portion, tokens, limit, devices)
    work = loads(home, level.query_work[blocks], devices)
    return _alike(work, where[rows], nodes, per_node)[home]


def _portions(run: IntArray, tokens: IntArray, limit: int) -> tuple[IntArray, IntArray, IntArray]:
    """Each run in portions of blocks in a row that a device holds.

    Returns:
        Portion of every block, [blocks]; the first one, and how many, of every run, [runs].
    """
    portion = np.zeros(len(run), dtype=np.int64)
    begin: list[int] = []
    number, held, last = -1, 0, -1
    for block, (one, size) in enumerate(zip(run.tolist(), tokens.tolist(), strict=True)):
        if one != last or held + size > limit:
            number, held = number + 1, 0
        if one != last:
            begin.append(number)
        portion[block], held, last = number, held + size, one
    return portion, np.array(begin, dtype=np.int64), np.diff(begin, append=number + 1)


def _in_rows(lengths: list[int], nodes: int, per_node: int) -> list[int]:
    """Devices for the portions of long runs, one run after the other, each in few nodes."""
    free = np.full(nodes, per_node)
    devices: list[int] = []
    for length in lengths:
        left = length
        while left:
            enough = np.flatnonzero(free >= min(left, per_node))
            node = int(enough[free[enough].argmin()] if len(enough) else free.argmax())
            taken = min(left, int(free[node]))
            first = (node + 1) * per_node - int(free[node])
            devices += range(first, first + taken)
            free[node] -= taken
            left -= taken
    return devices


def _filled(size: IntArray, room: IntArray) -> IntArray:
    """Devices of whole runs, small rooms filled first or large ones, whichever leaves out less.

    Args:
        size: Tokens of every run, [runs].
        room: Tokens that every device still holds, [D].

    Returns:
        Device of every run, -1 for those left out, [runs].
    """
    order = np.argsort(room, kind="stable")
    tried: list[IntArray] = []
    for devices in (order, order[::-1]):
        where = pack_into(size, room[devices])
        tried.append(np.where(where < 0, -1, devices[where]))
        if (where >= 0).all():
            break
    return min(tried, key=lambda where: int(size[where < 0].sum()))


def _cut_to_rooms(
    home: IntArray, portion: IntArray, tokens: IntArray, limit: int, devices: int
) -> IntArray:
    """Homes of all blocks, [blocks]: what was left out, -1, goes where most room is, in order."""
    home, kept = home.copy(), home >= 0
    room = limit - loads(home[kept], tokens[kept], devices)
    device, last = 0, -1
    for block in np.flatnonzero(~kept).tolist():
        if portion[block] != last or room[device] < tokens[block]:
            device, last = int(room.argmax()), int(portion[block])
        home[block] = device
        room[device] -= tokens[block]
    return home


def _alike(work: IntArray, settled: IntArray, nodes: int, per_node: int) -> IntArray:
    """New number of every device: those not settled change places, so that nodes have like work.

    Args:
        work: Of every device, [D].
        settled: Devices that keep their numbers.
        nodes, per_node: Nodes, and devices in each.
    """
    number, free = np.arange(len(work)), np.ones(len(work), dtype=np.bool_)
    free[settled] = False
    left = np.flatnonzero(free)
    left = left[np.argsort(work[left], kind="stable")]
    by_node = np.arange(len(work)).reshape(nodes, per_node)
    for node in np.argsort(free[by_node].sum(axis=1), kind="stable").tolist():
        devices = by_node[node]
        slots, others = devices[free[devices]], devices[~free[devices]]
        begin = 0
        if len(others):
            begin = int(np.searchsorted(work[left], work[others].mean())) - len(slots) // 2
            begin = min(max(begin, 0), len(left) - len(slots))
        number[left[begin : begin + len(slots)]] = slots
        left = np.delete(left, slice(begin, begin + len(slots)))
    return number
