"""The annealing loop and the moves that it tries, compiled by numba.

A move is priced exactly: the bytes it adds, weighted by the links they cross, and a price on
work and tokens over the limits. Only +, −, ×, ÷ and comparisons touch floats and the random
numbers are our own, so that a seed gives one answer on every machine.

An array is passed on as seven numbers or more, a record as its address. Each call has to be
compiled with all of them, so short functions take what they need of the state, and `rules` is one
record inside.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dcp.backends.search_state import State
from dcp.compiled import compiled, inlined, inner

U4, U8 = np.uint32, np.uint64
_MULTIPLIER = U8(2685821657736338717)

# Moves of a round, in which every kind of move has its share.
ROUND = 256

# Computations with the queries of neighbouring token blocks that move together, at most.
_MOST_USERS = 32


@inlined
def scrambled(x: Any) -> Any:
    """The next state of an xorshift64* generator (Vigna 2016)."""
    x ^= x >> U8(12)
    x ^= x << U8(25)
    x ^= x >> U8(27)
    return x


@inlined
def pick(bits: Any, choices: Any) -> Any:
    """A number below `choices` from 32 random bits."""
    return U4((bits * choices) >> U8(32))


@inlined
def random_user(s: State, net: Any, bits: Any) -> Any:
    """Device of a random user of a net that has some."""
    return s.comps[s.pins[s.nets[net].first + pick(bits, U8(s.nets[net].users))]].device


@inlined
def user_change(s: State, net: Any, a: Any, b: Any, leaves: Any) -> Any:
    """Weighted bytes added when users of a net go from device a to device b.

    Args:
        s: State before the move.
        net: The net; a computes with it.
        a, b: Two devices.
        leaves: Whether a has no other user afterwards.
    """
    home = s.tokens[s.nets[net].token].home
    node, node_a, node_b = s.devices[home].node, s.devices[a].node, s.devices[b].node
    links = 0.0
    if leaves and a != home:
        links -= 1.0
        if node_a != node and node_a != node_b and s.near[net, node_a] == 1:
            links -= s.rules.entry
    if b != home and s.used[net, b] == 0:
        links += 1.0
        if node_b != node and node_a != node_b and s.near[net, node_b] == 0:
            links += s.rules.entry
    return s.nets[net].size * links


@inlined
def place(s: State, comp: Any, b: Any) -> Any:
    """Compute a block on device b; returns the weighted bytes added. Leaves `excess` as it is."""
    a = s.comps[comp].device
    node_a, node_b = s.devices[a].node, s.devices[b].node
    change = 0.0
    for side in range(2):
        net = s.comps[comp].row if side == 0 else s.comps[comp].column
        change += user_change(s, net, a, b, s.used[net, a] == 1)
        s.used[net, a] -= 1
        if s.used[net, a] == 0:
            s.near[net, node_a] -= 1
        if s.used[net, b] == 0:
            s.near[net, node_b] += 1
        s.used[net, b] += 1
    work = s.comps[comp].work
    s.devices[a].work -= work
    s.devices[b].work += work
    s.nodes[node_a].work -= work
    s.nodes[node_b].work += work
    s.comps[comp].device = b
    return change


@inner
def place_all(s: State, begin: Any, end: Any, b: Any) -> Any:
    """Compute a part of the journal's blocks on device b; returns the weighted bytes added.

    All moves end here, so that `place` is compiled once.
    """
    change = 0.0
    for index in range(begin, end):
        change += place(s, s.journal[index], b)
    return change


@inner
def node_excess(devices: Any, nodes: Any, rules: Any, node: Any, a: Any, b: Any, work: Any) -> Any:
    """Work over the limits of a node and of its devices if work goes from device a to b.

    Any excess counts a least amount.
    """
    per_node, total = rules.per_node, nodes[node].work
    if devices[a].node == node:
        total -= work
    if devices[b].node == node:
        total += work
    limit = min(rules.device_limit, rules.inside_factor * total / per_node)
    excess = 0.0
    if total > rules.node_limit:
        excess += total - rules.node_limit + rules.least_work_excess
    first = node * per_node
    for device in range(first, first + per_node):
        over = devices[device].work - limit
        if device == a:
            over -= work
        if device == b:
            over += work
        if over > 0.0:
            excess += over + rules.least_work_excess
    return excess


@inlined
def known_excess(devices: Any, nodes: Any, a: Any, b: Any) -> Any:
    """Excess of the nodes of two devices, as last recorded."""
    node_a, node_b = devices[a].node, devices[b].node
    excess = nodes[node_a].excess
    if node_a != node_b:
        excess += nodes[node_b].excess
    return excess


@inner
def excess_after(devices: Any, nodes: Any, rules: Any, a: Any, b: Any, work: Any) -> Any:
    """Excess of the nodes of two devices if work goes from a to b."""
    node_a, node_b = devices[a].node, devices[b].node
    excess = node_excess(devices, nodes, rules, node_a, a, b, work)
    if node_a != node_b:
        excess += node_excess(devices, nodes, rules, node_b, a, b, work)
    return excess


@inner
def record_excess(devices: Any, nodes: Any, rules: Any, a: Any, b: Any) -> None:
    """Bring the recorded excess of two devices' nodes up to date."""
    for device in (a, b):
        node = devices[device].node
        nodes[node].excess = node_excess(devices, nodes, rules, node, a, b, np.int64(0))


@inlined
def token_excess(rules: Any, held: Any) -> Any:
    """Tokens over the limit, at least the least amount where there is any."""
    over = held - rules.token_limit
    return over + rules.least_token_excess if over > 0 else np.int64(0)


@inner
def home_change(s: State, token: Any, a: Any, b: Any) -> Any:
    """Weighted bytes added when the home of a token block goes from device a to device b."""
    groups = s.rules.groups
    node_a, node_b = s.devices[a].node, s.devices[b].node
    change = 0.0
    for side in range(2):
        first = (side * s.tokens.shape[0] + token) * groups
        for net in range(first, first + groups):
            links = 0.0
            if node_a != node_b:
                if s.near[net, node_a] > 0:
                    links += s.rules.entry
                if s.near[net, node_b] > 0:
                    links -= s.rules.entry
            if s.used[net, a] > 0:
                links += 1.0
            if s.used[net, b] > 0:
                links -= 1.0
            change += s.nets[net].size * links
    return change


@inlined
def try_computation(s: State, r: Any, r2: Any, bar: Any, work_price: Any) -> None:
    """One computation to its queries' or keys' home, or to another user of either."""
    comp = pick(r >> U8(32), U8(s.comps.shape[0]))
    a, row, column = s.comps[comp].device, s.comps[comp].row, s.comps[comp].column
    net = row if r2 & U8(1) else column
    b = s.tokens[s.nets[net].token].home if r2 & U8(2) else random_user(s, net, r2 >> U8(32))
    if a == b:
        return
    change = user_change(s, row, a, b, s.used[row, a] == 1)
    change += user_change(s, column, a, b, s.used[column, a] == 1)
    change -= work_price * known_excess(s.devices, s.nodes, a, b)
    if change > bar:
        return
    change += work_price * excess_after(s.devices, s.nodes, s.rules, a, b, s.comps[comp].work)
    if change <= bar:
        s.journal[0] = comp
        place_all(s, np.int64(0), np.int64(1), b)
        record_excess(s.devices, s.nodes, s.rules, a, b)


@inlined
def try_line(s: State, r: Any, r2: Any, bar: Any, work_price: Any) -> None:
    """All users of a net on one device to its home or to where another user is."""
    comp = pick(r >> U8(32), U8(s.comps.shape[0]))
    a = s.comps[comp].device
    along_row = (r2 & U8(1)) == U8(1)
    net = s.comps[comp].row if along_row else s.comps[comp].column
    b = s.tokens[s.nets[net].token].home if r2 & U8(2) else random_user(s, net, r2 >> U8(32))
    if a != b:
        move_line(s, net, along_row, a, b, bar, work_price)


@inner
def move_line(
    s: State, net: Any, along_row: Any, a: Any, b: Any, bar: Any, work_price: Any
) -> None:
    """All users of a net on device a to device b, if that passes."""
    change, work = user_change(s, net, a, b, np.bool_(True)), np.int64(0)
    moved, first = np.int64(0), s.nets[net].first
    for pin in range(first, first + s.nets[net].users):
        other = s.pins[pin]
        if s.comps[other].device == a:
            across = s.comps[other].column if along_row else s.comps[other].row
            change += user_change(s, across, a, b, s.used[across, a] == 1)
            work += s.comps[other].work
            s.journal[moved] = other
            moved += 1
    change -= work_price * known_excess(s.devices, s.nodes, a, b)
    if change > bar:
        return
    change += work_price * excess_after(s.devices, s.nodes, s.rules, a, b, work)
    if change <= bar:
        place_all(s, np.int64(0), moved, b)
        record_excess(s.devices, s.nodes, s.rules, a, b)


@inlined
def list_lines(s: State, token: Any, sides: Any, device: Any, listed: Any) -> Any:
    """Add to the journal what a device computes with a token block's queries (2 sides: and keys).

    What it computes with both stands there twice, which moves it once. Returns the length of the
    journal.
    """
    groups = s.rules.groups
    for side in range(sides):
        line = (side * s.tokens.shape[0] + token) * groups
        for net in range(line, line + groups):
            for pin in range(s.nets[net].first, s.nets[net].first + s.nets[net].users):
                comp = s.pins[pin]
                if s.comps[comp].device == device:
                    s.journal[listed] = comp
                    listed += 1
    return listed


@inner
def span(tokens: Any, nets: Any, rules: Any, token: Any, longest: Any, most_tokens: Any) -> Any:
    """Neighbours from a token block on that share its home: how many, and their tokens.

    Args:
        tokens, nets, rules: See `State`.
        token: The first of them.
        longest: How many at most.
        most_tokens: No further block is added to so many tokens.
    """
    groups, home, run = rules.groups, tokens[token].home, tokens[token].run
    blocks, held = np.int64(1), tokens[token].tokens
    users = nets[token * groups].users
    for other in range(token + 1, min(token + longest, tokens.shape[0])):
        users += nets[other * groups].users
        apart = tokens[other].home != home or tokens[other].run != run
        if apart or held >= most_tokens or users > _MOST_USERS:
            break
        held += tokens[other].tokens
        blocks += 1
    return blocks, held


@inner
def set_homes(tokens: Any, devices: Any, token: Any, blocks: Any, b: Any) -> None:
    """Give neighbouring token blocks to device b."""
    for each in range(token, token + blocks):
        a = tokens[each].home
        after, before = tokens[each].next, tokens[each].previous
        tokens[before].next = after
        tokens[after].previous = before
        if devices[a].a_token == each:
            devices[a].a_token = after
        after, before = each, each
        if devices[b].blocks > 0:
            after = devices[b].a_token
            before = tokens[after].previous
        tokens[each].next = after
        tokens[each].previous = before
        tokens[before].next = each
        tokens[after].previous = each
        devices[b].a_token = each
        devices[a].blocks -= 1
        devices[b].blocks += 1
        devices[a].tokens -= tokens[each].tokens
        devices[b].tokens += tokens[each].tokens
        tokens[each].home = b


@inlined
def other_home(s: State, token: Any, r2: Any) -> Any:
    """Another device for a token block, mostly one that uses it."""
    groups = s.rules.groups
    net = U4(token * groups + pick((r2 >> U8(8)) & U8(0xFFFFFFFF), U8(groups)))
    if r2 & U8(1):
        net = U4(net + s.tokens.shape[0] * groups)
    if s.nets[net].users > 0 and (r2 >> U8(16)) & U8(7) > U8(0):
        return random_user(s, net, r2 >> U8(32))
    return pick(r2 >> U8(32), U8(s.devices.shape[0]))


@inlined
def try_homes(
    s: State, r: Any, r2: Any, bar: Any, work_price: Any, token_price: Any, with_lines: Any
) -> None:
    """A token block to another device, mostly in exchange for one from there."""
    token = pick(r >> U8(32), U8(s.tokens.shape[0]))
    a, b = s.tokens[token].home, other_home(s, token, r2)
    if a != b:
        exchange_homes(s, token, a, b, r2, bar, work_price, token_price, with_lines)


@inner
def exchange_homes(
    s: State,
    token: Any,
    a: Any,
    b: Any,
    r2: Any,
    bar: Any,
    work_price: Any,
    token_price: Any,
    with_lines: Any,
) -> None:
    """A token block from device a to device b, mostly in exchange, if that passes.

    If it does not pass by itself, what the old homes compute with the blocks' queries
    (sometimes their keys too) may go with them. Then neighbours may go together, too.
    """
    longest = np.int64(1)
    if with_lines:
        longest = min(np.int64(1) << np.int64((r2 >> U8(19)) & U8(3)), s.rules.longest)
    blocks, moving = span(s.tokens, s.nets, s.rules, token, longest, s.devices[a].tokens)
    other, other_blocks = token, np.int64(0)
    if (r2 >> U8(1)) & U8(7) > U8(0) and s.devices[b].blocks > 0:
        other = s.devices[b].a_token
        for _ in range((r2 >> U8(4)) & U8(7)):
            other = s.tokens[other].next
        s.devices[b].a_token = other
        other_blocks, back = span(s.tokens, s.nets, s.rules, other, 2 * longest - 1, moving)
        moving -= back
    held_a, held_b = s.devices[a].tokens, s.devices[b].tokens
    over = token_excess(s.rules, held_a - moving) + token_excess(s.rules, held_b + moving)
    over -= token_excess(s.rules, held_a) + token_excess(s.rules, held_b)
    change = token_price * over
    if change > bar:
        return
    for each in range(token, token + blocks):
        change += home_change(s, U4(each), a, b)
    for each in range(other, other + other_blocks):
        change += home_change(s, U4(each), b, a)
    passes = change <= bar
    if not (passes or with_lines):
        return
    set_homes(s.tokens, s.devices, token, blocks, b)
    set_homes(s.tokens, s.devices, other, other_blocks, a)
    if passes:
        return
    sides, moved = _sides(r2 >> U8(12)), np.int64(0)
    for each in range(token, token + blocks):
        begin, moved = moved, list_lines(s, each, sides, a, moved)
        change += place_all(s, begin, moved, b)
    sides, moved_first = _sides(r2 >> U8(14)), moved
    for each in range(other, other + other_blocks):
        begin, moved = moved, list_lines(s, each, sides, b, moved)
        change += place_all(s, begin, moved, a)
    change -= work_price * known_excess(s.devices, s.nodes, a, b)
    change += work_price * excess_after(s.devices, s.nodes, s.rules, a, b, np.int64(0))
    if change <= bar:
        record_excess(s.devices, s.nodes, s.rules, a, b)
        return
    place_all(s, moved_first, moved, b)
    place_all(s, np.int64(0), moved_first, a)
    set_homes(s.tokens, s.devices, token, blocks, a)
    set_homes(s.tokens, s.devices, other, other_blocks, b)


@inlined
def _sides(bits: Any) -> Any:
    """Queries alone, 1, or sometimes keys too, 2."""
    return 2 if bits & U8(3) == U8(0) else 1


@compiled
def anneal(
    s: State,
    temperatures: Any,
    work_price: Any,
    token_price: Any,
    work_parts: Any,
    rounds: Any,
    shares: Any,
    lottery: Any,
    seed: Any,
) -> None:
    """Simulated annealing (Kirkpatrick et al. 1983); changes the state in place.

    Args:
        s: Placement to improve.
        temperatures: Weighted bytes, one a stage, float64 [stages].
        work_price, token_price: Weighted bytes for a unit over a limit.
        work_parts: Parts of the price of work, one a stage, float64 [stages].
        rounds: Rounds of moves tried in each stage.
        shares: Moves of a round before those of each next kind, int64 [3]. Kinds follow one
            another rather than at random, which the processor foresees.
        lottery: −ln of evenly spread numbers in (0, 1), float64 [1024]: a move passes that
            adds no more than the temperature times one of them.
        seed: uint64, not 0.
    """
    s = State(
        s.comps, s.nets, s.pins, s.tokens, s.devices, s.nodes, s.used, s.near, s.rules[0], s.journal
    )
    x = U8(seed)
    for stage in range(temperatures.shape[0]):
        price = work_price * work_parts[stage]
        for _ in range(rounds):
            for kind in range(ROUND):
                x = scrambled(x)
                r = x * _MULTIPLIER
                x = scrambled(x)
                r2 = x * _MULTIPLIER
                bar = temperatures[stage] * lottery[r & U8(1023)]
                if kind < shares[0]:
                    try_computation(s, r, r2, bar, price)
                elif kind < shares[1]:
                    try_line(s, r, r2, bar, price)
                else:
                    with_lines = kind >= shares[2]
                    try_homes(s, r, r2, bar, price, token_price, with_lines)
