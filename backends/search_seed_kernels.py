"""Compiled parts of the search's starting points."""

from __future__ import annotations

from typing import Any

from dcp.compiled import compiled


@compiled
def fill_pins(rows: Any, columns: Any, filled: Any, pins: Any) -> None:
    """List the computations of every net.

    Args:
        rows, columns: Nets of every computation, [C].
        filled: Where the list of every net begins, [nets]; ends where it ends.
        pins: Receives the computations, [2·C].
    """
    for comp in range(rows.shape[0]):
        pins[filled[rows[comp]]] = comp
        filled[rows[comp]] += 1
        pins[filled[columns[comp]]] = comp
        filled[columns[comp]] += 1


@compiled
def count_users(rows: Any, columns: Any, device: Any, used: Any) -> None:
    """Count the computations with each net on each device.

    Args:
        rows, columns: Nets of every computation, [C].
        device: Device of every computation, [C].
        used: Zeros, [nets, D].
    """
    for comp in range(rows.shape[0]):
        used[rows[comp], device[comp]] += 1
        used[columns[comp], device[comp]] += 1


@compiled
def choose_homes(
    order: Any, tokens: Any, saving: Any, first: Any, last: Any, room: Any, home: Any
) -> None:
    """Give token blocks in this order to the device with room that saves most, or the emptiest.

    Args:
        order: Token blocks, [T].
        tokens: Tokens of each, [T].
        saving: What each home of each token block saves, [T, D].
        first, last: Devices first … last - 1 may be the home of each token block, [T].
        room: Tokens that each device may still take, [D]; changed in place.
        home: Receives the homes, [T].
    """
    for index in range(order.shape[0]):
        token = order[index]
        best, emptiest = -1, first[token]
        for device in range(first[token], last[token]):
            if room[device] > room[emptiest]:
                emptiest = device
            fits = room[device] >= tokens[token]
            if fits and (best < 0 or saving[token, device] > saving[token, best]):
                best = device
        if best < 0:
            best = emptiest
        home[token] = best
        room[best] -= tokens[token]


@compiled
def ease(saving: Any, tokens: Any, home: Any, held: Any, limit: Any) -> Any:
    """Move homes, alone or in exchange, until no device holds too many tokens, few bytes first.

    Every step takes from the fullest device and lessens the excess of all together. Of many
    token blocks only some, evenly spread, are tried in exchange.

    Args:
        saving: What each home of each token block saves, [T, D].
        tokens: Tokens of each token block, [T].
        home, held: Homes, [T], and tokens of every device, [D]; changed in place.
        limit: Most tokens of a device.
    Returns:
        Whether no device holds too many; otherwise exchanges got stuck.
    """
    count = tokens.shape[0]
    stride = 1 + count // 512
    while True:
        full = 0
        for device in range(held.shape[0]):
            if held[device] > held[full]:
                full = device
        excess = held[full] - limit
        if excess <= 0:
            return True
        best_price, best_token, best_target, best_other = 0.0, -1, -1, -1
        for token in range(count):
            if home[token] != full:
                continue
            # The first numbers are devices, for moves that exchange nothing.
            for number in range(held.shape[0] + count // stride):
                shed, target, loss, other = tokens[token], number, saving[token, full], -1
                if number >= held.shape[0]:
                    other = (number - held.shape[0]) * stride + token % stride
                    target = home[other]
                    shed -= tokens[other]
                    loss += saving[other, target] - saving[other, full]
                if target == full or shed <= 0:
                    continue
                relief = min(shed, excess) - max(held[target] + shed - limit, 0)
                relief += max(held[target] - limit, 0)
                if relief <= 0:
                    continue
                price = (loss - saving[token, target]) / relief
                if best_token < 0 or price < best_price:
                    best_price, best_token = price, token
                    best_target, best_other = target, other
        if best_token < 0:
            return False
        shed = tokens[best_token]
        home[best_token] = best_target
        if best_other >= 0:
            home[best_other] = full
            shed -= tokens[best_other]
        held[full] -= shed
        held[best_target] += shed


@compiled
def bisect(
    rows: Any,
    columns: Any,
    work: Any,
    size: Any,
    orders: Any,
    parts: Any,
    per_node: Any,
    device: Any,
    stamp: Any,
    left: Any,
    scratch: Any,
) -> None:
    """Cut parts of the computations in two until every device has its share of the work.

    A cut runs along the order in which it cuts fewest bytes. Nodes are parted from one another
    before a node is cut.

    Args:
        rows, columns, work: Of every computation, [C].
        size: Bytes of every net, [nets].
        orders: Computations in some orders, [orders, C]; each part is one range of all of them.
        parts: A stack of (begin, end, first device, device after the last), [D + parts, 4];
            it starts with the rows up to the first whose last entry is 0.
        per_node: Devices a node.
        device: Receives the devices, [C].
        stamp: Zeros, [nets].
        left, scratch: Room, [C].
    """
    top = 0
    while parts[top, 3] > 0:
        top += 1
    tag = 0
    while top > 0:
        top -= 1
        begin, end, first, last = parts[top, 0], parts[top, 1], parts[top, 2], parts[top, 3]
        if last - first <= 1 or end - begin == 0:
            for index in range(begin, end):
                device[orders[0, index]] = first
            continue
        unit = per_node if last - first > per_node else 1
        middle = first + (last - first) // unit // 2 * unit
        total = 0.0
        for index in range(begin, end):
            total += work[orders[0, index]]
        target = total * (middle - first) / (last - first)
        best, best_cut, best_bytes = 0, begin, 0.0
        for axis in range(orders.shape[0]):
            tag += 2
            cut, done = begin, 0.0
            while cut < end:
                comp = orders[axis, cut]
                if done + 0.5 * work[comp] > target:
                    break
                done += work[comp]
                stamp[rows[comp]] = tag
                stamp[columns[comp]] = tag
                cut += 1
            cut_bytes = 0.0
            for index in range(cut, end):
                comp = orders[axis, index]
                for side in range(2):
                    net = rows[comp] if side == 0 else columns[comp]
                    if stamp[net] == tag:
                        stamp[net] = tag + 1
                        cut_bytes += size[net]
            if axis == 0 or cut_bytes < best_bytes:
                best, best_cut, best_bytes = axis, cut, cut_bytes
        for index in range(begin, end):
            left[orders[best, index]] = index < best_cut
        for axis in range(orders.shape[0]):
            filled, kept = begin, 0
            for index in range(begin, end):
                comp = orders[axis, index]
                if left[comp]:
                    orders[axis, filled] = comp
                    filled += 1
                else:
                    scratch[kept] = comp
                    kept += 1
            for index in range(kept):
                orders[axis, filled + index] = scratch[index]
        parts[top, 0], parts[top, 1], parts[top, 2], parts[top, 3] = begin, best_cut, first, middle
        parts[top + 1, 0], parts[top + 1, 1] = best_cut, end
        parts[top + 1, 2], parts[top + 1, 3] = middle, last
        top += 2
