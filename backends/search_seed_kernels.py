"""Compiled parts of the search's starting points."""

from __future__ import annotations

from typing import Any

import numpy as np

from dcp.backends.search_compile import compiled, inlined
from dcp.backends.search_state import State


@compiled
def count_users(comps: Any, devices: Any, count: Any, near: Any) -> None:
    """Fill `State.count` and `State.near`, which come all 0."""
    for comp in range(comps.shape[0]):
        device = comps[comp].device
        for side in range(2):
            net = comps[comp].row if side == 0 else comps[comp].column
            if count[net, device] == 0:
                near[net, devices[device].node] += 1
            count[net, device] += 1


@compiled
def fill_pins(comps: Any, nets: Any, pins: Any) -> None:
    """List the computations of every net; `nets.first` is set, `nets.users` comes all 0."""
    for comp in range(comps.shape[0]):
        for side in range(2):
            net = comps[comp].row if side == 0 else comps[comp].column
            pins[nets[net].first + nets[net].users] = comp
            nets[net].users += 1


@inlined
def home_cost(s: State, token: Any, device: Any) -> Any:
    """Weighted bytes of a token block's nets, up to a constant, with this home."""
    groups, farther = s.rules[0].groups, s.rules[0].farther
    node = s.devices[device].node
    cost = 0.0
    for side in range(2):
        first = (side * s.tokens.shape[0] + token) * groups
        for net in range(first, first + groups):
            links = farther * s.near[net, node]
            if s.count[net, device] > 0:
                links += 1.0
            cost -= s.nets[net].size * links
    return cost


@compiled
def home_regret(s: State, regret: Any) -> None:
    """Weighted bytes between the best and the second-best home of every token block, [T]."""
    for token in range(s.tokens.shape[0]):
        best = second = 0.0
        for device in range(s.devices.shape[0]):
            cost = home_cost(s, token, device)
            if cost < best:
                best, second = cost, best
            elif cost < second:
                second = cost
        regret[token] = second - best


@compiled
def home_savings(s: State, saving: Any) -> None:
    """Weighted bytes that each home of each token block saves, whole, [T, D]."""
    for token in range(s.tokens.shape[0]):
        for device in range(s.devices.shape[0]):
            saving[token, device] = np.int64(-home_cost(s, token, device))


@compiled
def choose_homes(s: State, order: Any, room: Any, home: Any) -> None:
    """Give token blocks in this order to the cheapest device with room, or the emptiest one.

    Args:
        s: State whose counts are right; its homes are not read.
        order: Token blocks, [T].
        room: Tokens that each device may still take, [D]; changed in place.
        home: Receives the homes, [T].
    """
    for index in range(order.shape[0]):
        token = order[index]
        size = s.tokens[token].tokens
        best, best_cost, emptiest = -1, 0.0, 0
        for device in range(s.devices.shape[0]):
            if room[device] > room[emptiest]:
                emptiest = device
            if room[device] < size:
                continue
            cost = home_cost(s, token, device)
            if best < 0 or cost < best_cost:
                best, best_cost = device, cost
        if best < 0:
            best = emptiest
        home[token] = best
        room[best] -= size


@compiled
def bisect(
    comps: Any,
    nets: Any,
    orders: Any,
    parts: Any,
    per_node: Any,
    anchor: Any,
    farther: Any,
    stamp: Any,
    left: Any,
    scratch: Any,
) -> None:
    """Cut parts of the computations in two until every device has its share of the work.

    A cut runs along the order in which it cuts fewest bytes. Nodes are parted from one another
    before a node is cut.

    Args:
        comps: Receives the devices.
        nets: Their sizes weigh the cuts.
        orders: Computations in some orders, [orders, C]; each part is one range of all of them.
        parts: A stack of (begin, end, first device, device after the last), [D + parts, 4];
            it starts with the rows up to the first whose last entry is 0.
        per_node: Devices a node.
        anchor: Node of the home of every net, or −1, [nets]; elsewhere its bytes weigh
            `farther` more.
        farther: See `State.rules`.
        stamp: Zeros, int64 [nets].
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
                comps[orders[0, index]].device = first
            continue
        unit = per_node if last - first > per_node else 1
        middle = first + (last - first) // unit // 2 * unit
        work = 0.0
        for index in range(begin, end):
            work += comps[orders[0, index]].work
        target = work * (middle - first) / (last - first)
        best, best_cut, best_bytes = 0, begin, 0.0
        for axis in range(orders.shape[0]):
            tag += 2
            cut, done = begin, 0.0
            while cut < end:
                comp = orders[axis, cut]
                if done + 0.5 * comps[comp].work > target:
                    break
                done += comps[comp].work
                stamp[comps[comp].row] = tag
                stamp[comps[comp].column] = tag
                cut += 1
            cut_bytes = 0.0
            for index in range(cut, end):
                comp = orders[axis, index]
                for side in range(2):
                    net = comps[comp].row if side == 0 else comps[comp].column
                    if stamp[net] == tag:
                        stamp[net] = tag + 1
                        weight = 1.0
                        if anchor[net] >= 0 and anchor[net] != first // per_node:
                            weight += farther
                        cut_bytes += weight * nets[net].size
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


@compiled
def tally_traffic(s: State, traffic: Any) -> None:
    """Bytes between every two devices, both directions together, [D, D], which comes all 0."""
    for net in range(s.nets.shape[0]):
        home = s.tokens[s.nets[net].token].home
        for device in range(s.devices.shape[0]):
            if device != home and s.count[net, device] > 0:
                traffic[home, device] += s.nets[net].size
                traffic[device, home] += s.nets[net].size


@inlined
def fits(s: State, members: Any, node: Any, leaving: Any, joining: Any) -> Any:
    """Whether a node holds its limits of work with one device exchanged for another."""
    total, most = s.devices[joining].work, s.devices[joining].work
    for index in range(members.shape[1]):
        device = members[node, index]
        if device != leaving:
            total += s.devices[device].work
            most = max(most, s.devices[device].work)
    limit = min(s.rules[0].device_limit, s.rules[0].inside_factor * total / members.shape[1])
    return total <= s.rules[0].node_limit and most <= limit


@compiled
def exchange_devices(s: State, traffic: Any, with_node: Any, node: Any, members: Any) -> None:
    """Exchange devices of different nodes as long as that saves bytes between nodes.

    Args:
        s: For the work of the devices and its limits.
        traffic: Bytes between every two devices, [D, D].
        with_node: Bytes between every device and every node, [D, nodes]; kept up to date.
        node: Node of every device, [D]; changed in place.
        members: Devices of every node, [nodes, per node]; changed in place.
    """
    count = traffic.shape[0]
    changed = True
    while changed:
        changed = False
        for a in range(count):
            for b in range(a + 1, count):
                node_a, node_b = node[a], node[b]
                if node_a == node_b:
                    continue
                saved = with_node[a, node_b] + with_node[b, node_a]
                saved -= with_node[a, node_a] + with_node[b, node_b] + 2 * traffic[a, b]
                if saved <= 0:
                    continue
                if not (fits(s, members, node_a, a, b) and fits(s, members, node_b, b, a)):
                    continue
                for index in range(members.shape[1]):
                    if members[node_a, index] == a:
                        members[node_a, index] = b
                    if members[node_b, index] == b:
                        members[node_b, index] = a
                node[a], node[b] = node_b, node_a
                for other in range(count):
                    with_node[other, node_a] += traffic[other, b] - traffic[other, a]
                    with_node[other, node_b] += traffic[other, a] - traffic[other, b]
                changed = True
