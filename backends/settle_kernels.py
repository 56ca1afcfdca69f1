"""Moves of computations between places under a limit of work, compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dcp.arrays import FloatArray, Int32Array, IntArray
from dcp.compiled import compiled, inner

# A plain −1 or 0 that is handed on would have what takes it compiled for that number, too.
_NONE: Any = np.int64(-1)
_ZERO: Any = np.int64(0)

_MOST_PARTNERS = 200
"""Computations that one is tried to be exchanged for."""


class Tables(NamedTuple):
    """Where computations are and which data blocks they touch; moves keep it up to date.

    Attributes:
        q_row, kv_row: Data block of each computation's queries and keys, [C].
        flops: Work of each computation, [C].
        where: Place of each computation, [C].
        size, home: Bytes and home place of each data block, [rows].
        users: Computations at each data block and place, [rows, places].
        loads: Work of each place, [places].
    """

    q_row: IntArray
    kv_row: IntArray
    flops: IntArray
    where: IntArray
    size: IntArray
    home: IntArray
    users: Int32Array
    loads: IntArray


class Scratch(NamedTuple):
    """Room to work in: [C] each."""

    mine: IntArray
    target: IntArray
    cost: FloatArray

    @classmethod
    def of(cls, computations: int) -> Scratch:
        """Room for so many computations."""
        places = np.empty((2, computations), dtype=np.int64)
        return cls(places[0], places[1], np.empty(computations))


@compiled
def put(tables: Tables, comps: IntArray, places: IntArray) -> None:
    """Compute each of some blocks, [n], at its own place, [n]."""
    for index in range(len(comps)):
        _move(tables, comps[index], places[index])


@compiled
def follow(tables: Tables, node_of: IntArray, node: IntArray) -> None:
    """Give what changed nodes a device there: the cheapest, then the emptiest."""
    for comp in range(len(node)):
        if node_of[tables.where[comp]] == node[comp]:
            continue
        best, best_cost = _NONE, 0
        for device in range(len(node_of)):
            if node_of[device] != node[comp]:
                continue
            cost = _cost(tables, comp, device)
            emptier = best < 0 or tables.loads[device] < tables.loads[best]
            if best < 0 or cost < best_cost or (cost == best_cost and emptier):
                best, best_cost = device, cost
        _move(tables, comp, best)


@compiled
def relieve(
    tables: Tables, comps: IntArray, places: IntArray, limit: float, scratch: Scratch
) -> bool:
    """Move these computations between places until none is over the limit; False where stuck."""
    while True:
        full = places[0]
        for place in places:
            if tables.loads[place] > tables.loads[full]:
                full = place
        if tables.loads[full] <= limit:
            return True
        count = _ZERO
        for comp in comps:
            if tables.where[comp] == full:
                scratch.mine[count] = comp
                count += 1
        if not _drain(tables, places, limit, full, count, scratch):
            return False


@compiled
def refill(
    tables: Tables,
    falling: IntArray,
    places: IntArray,
    kept: float,
    cap: float,
    scratch: Scratch,
    room: IntArray,
) -> None:
    """Empty places down to some work and fill them again, large computations first.

    Where nothing is kept and the cap is 0, this is the packing longest first.

    Args:
        tables: See there.
        falling: Computations in falling order of work, [n].
        places: Where they may go.
        kept: Work of a place up to which computations stay, whatever their turn.
        cap: Work of a place up to which bytes decide who comes; then the emptiest is next.
        scratch: Room.
        room: Room, [3, places].
    """
    mine, filled = scratch.mine, room[0]
    for place in places:
        filled[place] = 0
    count = _ZERO
    for comp in falling:
        here, work = tables.where[comp], tables.flops[comp]
        if filled[here] + work <= kept:
            filled[here] += work
        else:
            mine[count] = comp
            count += 1
    first = _ZERO
    while first < count:
        last = first + 1
        while last < count and tables.flops[mine[last]] == tables.flops[mine[first]]:
            last += 1
        left = _fill_by_bytes(tables, mine[first:last], places, cap, filled)
        _fill_evenly(tables, mine[first : first + left], places, room)
        first = last


@compiled
def fill_savings(tables: Tables, comps: IntArray, places: IntArray, saved: IntArray) -> None:
    """Bytes that the best move of each of these computations adds, 0 or less, [n]."""
    for index in range(len(comps)):
        _, cost = _cheapest(tables, comps[index], places, tables.loads, np.inf)
        saved[index] = min(cost, 0)


@compiled
def save(tables: Tables, comps: IntArray, places: IntArray, limit: float) -> int:
    """Take moves that save bytes within the limit, in the order of these computations.

    Returns:
        The number of moves.
    """
    moved = 0
    for comp in comps:
        place, cost = _cheapest(tables, comp, places, tables.loads, limit)
        if cost < 0:
            _move(tables, comp, place)
            moved += 1
    return moved


@compiled
def exchange(
    tables: Tables, comps: IntArray, falling: IntArray, places: IntArray, limit: float
) -> int:
    """Exchange computations between places while that saves bytes within the limit.

    Args:
        tables: See there.
        comps: Computations to move where they save most, in this order, [m].
        falling: Those to come back, in falling order of work, [n]. Of many that keep the limit
            some are tried, evenly spread.
        places: Where they may go.
        limit: Most work of a place.
    Returns:
        The number of exchanges.
    """
    exchanged = 0
    for comp in comps:
        here, work = tables.where[comp], tables.flops[comp]
        there, added = _cheapest(tables, comp, places, tables.loads, np.inf)
        if added >= 0:
            continue
        first = _first_below(tables, falling, work + np.floor(limit) - tables.loads[here] + 1)
        last = _first_below(tables, falling, work - (limit - tables.loads[there]))
        stride = 1 + max(last - first, 0) // _MOST_PARTNERS
        _move(tables, comp, there)
        best, best_added = _NONE, -added
        for index in range(first + comp % stride, last, stride):
            other = falling[index]
            if tables.where[other] == there and other != comp:
                cost = _cost(tables, other, here)
                if cost < best_added:
                    best, best_added = other, cost
        if best >= 0:
            _move(tables, best, here)
            exchanged += 1
        else:
            _move(tables, comp, here)
    return exchanged


@inner
def _first_below(tables: Tables, falling: IntArray, work: float) -> int:
    """Where in falling order the computations of less work begin."""
    low, high = 0, len(falling)
    while low < high:
        middle = (low + high) // 2
        if tables.flops[falling[middle]] < work:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def _cost(tables: Tables, comp: int, place: int) -> int:
    """Bytes that a move adds."""
    here, added = tables.where[comp], 0
    if here == place:
        return 0
    for row in (tables.q_row[comp], tables.kv_row[comp]):
        home = tables.home[row]
        if tables.users[row, place] == 0 and home != place:
            added += tables.size[row]
        if tables.users[row, here] == 1 and home != here:
            added -= tables.size[row]
    return added


@inner
def _cheapest(
    tables: Tables, comp: int, places: IntArray, loads: IntArray, limit: float
) -> tuple[int, int]:
    """Where a computation adds fewest bytes within a limit of loads, -1 for nowhere; the bytes."""
    best, best_cost = _NONE, _ZERO
    for place in places:
        if loads[place] + tables.flops[comp] <= limit:
            cost = _cost(tables, comp, place)
            if best < 0 or cost < best_cost:
                best, best_cost = place, cost
    return best, best_cost


@inner
def _move(tables: Tables, comp: int, place: int) -> None:
    here = tables.where[comp]
    for row in (tables.q_row[comp], tables.kv_row[comp]):
        tables.users[row, here] -= 1
        tables.users[row, place] += 1
    tables.loads[here] -= tables.flops[comp]
    tables.loads[place] += tables.flops[comp]
    tables.where[comp] = place


@inner
def _drain(
    tables: Tables, places: IntArray, limit: float, full: int, count: int, scratch: Scratch
) -> bool:
    """Move computations out of a full place, most excess for a byte first; False if none moved."""
    mine, cost, target = scratch.mine, scratch.cost, scratch.target
    for index in range(count):
        _find_room(tables, places, limit, index, scratch)
    moved = False
    while tables.loads[full] > limit:
        excess = tables.loads[full] - limit
        best, best_cost, best_useful = _NONE, np.inf, 1.0
        for index in range(count):
            work = tables.flops[mine[index]]
            useful = min(work, excess)
            if useful <= 0 or cost[index] * best_useful >= best_cost * useful:
                continue
            # Places only fill up here, so costs only rise until looked at again.
            if tables.loads[target[index]] + work > limit:
                _find_room(tables, places, limit, index, scratch)
            if cost[index] * best_useful < best_cost * useful:
                best, best_cost, best_useful = index, cost[index], useful
        if best < 0:
            break
        chosen = mine[best]
        _move(tables, chosen, target[best])
        moved = True
        for index in range(count):
            comp = mine[index]
            if tables.where[comp] != full:
                cost[index] = np.inf
            elif (
                tables.q_row[comp] == tables.q_row[chosen]
                or tables.kv_row[comp] == tables.kv_row[chosen]
            ):
                _find_room(tables, places, limit, index, scratch)
    return moved


@inner
def _find_room(
    tables: Tables, places: IntArray, limit: float, index: int, scratch: Scratch
) -> None:
    """Where a computation moves at fewest bytes within the limit, and the bytes; inf: nowhere."""
    comp = scratch.mine[index]
    place, cost = _cheapest(tables, comp, places, tables.loads, limit)
    scratch.target[index] = place if place >= 0 else places[0]
    scratch.cost[index] = cost if place >= 0 else np.inf


@inner
def _fill_by_bytes(
    tables: Tables, equals: IntArray, places: IntArray, cap: float, filled: IntArray
) -> int:
    """Give computations of equal work places below a cap: their own, or else the cheapest.

    Returns:
        How many found none; these stand first among the equals then.
    """
    count, work = _ZERO, tables.flops[equals[0]]
    for comp in equals:
        here = tables.where[comp]
        if filled[here] + work <= cap:
            filled[here] += work
        else:
            equals[count] = comp
            count += 1
    left: int = _ZERO
    for index in range(count):
        comp = equals[index]
        place, _ = _cheapest(tables, comp, places, filled, cap)
        if place < 0:
            equals[left] = comp
            left += 1
        else:
            filled[place] += work
            _move(tables, comp, place)
    return left


@inner
def _fill_evenly(tables: Tables, equals: IntArray, places: IntArray, room: IntArray) -> None:
    """Give computations of equal work to the emptiest places, most of them to their own."""
    if len(equals) == 0:
        return
    filled, quota, here = room[0], room[1], room[2]
    for place in places:
        quota[place] = 0
        here[place] = 0
    for comp in equals:
        here[tables.where[comp]] += 1
    for _ in range(len(equals)):
        next_one = places[0]
        for place in places:
            more = filled[next_one] - filled[place]
            stays = here[place] - quota[place] > here[next_one] - quota[next_one]
            if more > 0 or (more == 0 and stays):
                next_one = place
        quota[next_one] += 1
        filled[next_one] += tables.flops[equals[0]]
    leaving = _ZERO
    for comp in equals:
        if quota[tables.where[comp]] > 0:
            quota[tables.where[comp]] -= 1
        else:
            equals[leaving] = comp
            leaving += 1
    for comp in equals[:leaving]:
        best, best_cost = _NONE, 0
        for place in places:
            cost = _cost(tables, comp, place)
            if quota[place] > 0 and (best < 0 or cost < best_cost):
                best, best_cost = place, cost
        quota[best] -= 1
        _move(tables, comp, best)
