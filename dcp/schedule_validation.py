"""Whether a schedule can be executed: every source holds what it sends, every sum gets home.

No simulation: each rule of `dcp.scheduling` is one comparison over all transfers at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import BoolArray, IntArray
from dcp.blocks import BlockGraph, Kind
from dcp.errors import ScheduleError
from dcp.ordering import distinct, row_order
from dcp.scheduling import (
    KEY_INPUT,
    KEY_RESULT,
    QUERY_INPUTS,
    QUERY_RESULT,
    Phase,
    Schedule,
    Transfers,
)

NEVER = np.iinfo(np.int64).max


def validate_schedule(
    blocks: BlockGraph,
    token_home: IntArray,
    comp_device: IntArray,
    num_devices: int,
    schedule: Schedule,
) -> None:
    """Check a schedule against the rules of `dcp.scheduling`.

    Args:
        blocks: The blocks.
        token_home: Device of every token block, [T].
        comp_device: Device of every computation block, [C].
        num_devices: Number of devices.
        schedule: What to check.
    Raises:
        ScheduleError: names the first fault with its kind, block, group, rank and step.
    """
    _check_form(blocks, num_devices, schedule)
    ground = _Ground(
        blocks=blocks,
        token_home=np.asarray(token_home),
        comp_device=np.asarray(comp_device),
        num_devices=num_devices,
        phase=schedule.phase,
    )
    _check_inputs(ground, schedule)
    _check_results(ground, schedule, QUERY_RESULT[schedule.phase], blocks.comp_q)
    if schedule.phase == "backward":
        _check_results(ground, schedule, KEY_RESULT, blocks.comp_kv)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ground:
    """What the schedule is checked against."""

    blocks: BlockGraph
    token_home: IntArray
    comp_device: IntArray
    num_devices: int
    phase: Phase

    def key(
        self, kind: IntArray | Kind, block: IntArray, group: IntArray, rank: IntArray
    ) -> IntArray:
        """One number for (kind, block, group, rank)."""
        data = np.asarray(kind, dtype=np.int64) * len(self.token_home) + block
        return (data * len(self.blocks.groups) + group) * self.num_devices + rank

    def name(self, key: int) -> tuple[str, int]:
        """The data block of a key in words, and its rank."""
        data, rank = divmod(key, self.num_devices)
        data, group = divmod(data, len(self.blocks.groups))
        kind, block = divmod(data, len(self.token_home))
        return f"{Kind(kind).name} of block {block}, group {group}", rank

    def home(self, key: IntArray) -> IntArray:
        """Home of the block of every key."""
        data = key // (self.num_devices * len(self.blocks.groups))
        return self.token_home[data % len(self.token_home)]


def _fault(transfers: Transfers, index: int, why: str) -> ScheduleError:
    kind = int(transfers.kind[index])
    name = Kind(kind).name if kind in list(Kind) else f"kind {kind}"
    return ScheduleError(
        f"step {transfers.step[index]}: rank {transfers.src[index]} sends {name} of block "
        f"{transfers.block[index]}, group {transfers.group[index]}, to rank "
        f"{transfers.dst[index]}, {why}"
    )


def _refuse(transfers: Transfers, bad: BoolArray, why: str) -> None:
    """Raise for the first transfer that is marked, [n]."""
    if bad.any():
        raise _fault(transfers, int(bad.argmax()), why)


def _check_form(blocks: BlockGraph, num_devices: int, schedule: Schedule) -> None:
    """Shapes and ranges."""
    count, transfers = schedule.num_divisions, schedule.transfers
    if schedule.phase not in QUERY_INPUTS:
        raise ScheduleError(f"phase is {schedule.phase!r}; legal: {', '.join(QUERY_INPUTS)}")
    if count < 1:
        raise ScheduleError(f"num_divisions is {count}; there is at least division 0")
    _check_array("comp_division", schedule.comp_division, len(blocks.comp_q))
    outside = (schedule.comp_division < 0) | (schedule.comp_division >= count)
    if outside.any():
        comp = int(outside.argmax())
        raise ScheduleError(
            f"computation block {comp} runs in division {schedule.comp_division[comp]}; "
            f"legal: 0 … {count - 1}"
        )
    for column in ("kind", "block", "group", "src", "dst", "step"):
        _check_array(f"transfers.{column}", getattr(transfers, column), len(transfers))
    if len(transfers):
        _check_ranges(blocks, num_devices, schedule.phase, transfers)


def _check_array(name: str, values: IntArray, count: int) -> None:
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ScheduleError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; "
            f"it must be integers of shape ({count},)"
        )


def _check_ranges(blocks: BlockGraph, num_devices: int, phase: Phase, transfers: Transfers) -> None:
    query_kinds = (*QUERY_INPUTS[phase], QUERY_RESULT[phase])
    key_kinds = (KEY_INPUT, KEY_RESULT) if phase == "backward" else (KEY_INPUT,)
    legal = ", ".join(kind.name for kind in (*query_kinds, *key_kinds))
    is_key = np.isin(transfers.kind, key_kinds)
    _refuse(
        transfers,
        ~is_key & ~np.isin(transfers.kind, query_kinds),
        f"which does not move {phase}; what does: {legal}",
    )
    for name, values, count in (
        ("block", transfers.block, blocks.num_token_blocks),
        ("group", transfers.group, len(blocks.groups)),
        ("src", transfers.src, num_devices),
        ("dst", transfers.dst, num_devices),
    ):
        _refuse(transfers, (values < 0) | (values >= count), f"but {name} must be 0 … {count - 1}")
    carries = np.where(is_key, blocks.has_kv[transfers.block], blocks.has_q[transfers.block])
    _refuse(transfers, ~carries, "which that block does not carry")
    _refuse(transfers, transfers.step < 1, "but steps start at 1")
    _refuse(transfers, transfers.src == transfers.dst, "which is itself")
    _refuse(transfers, ~_in_order(transfers), "out of order; build transfers with Transfers.of")


def _in_order(transfers: Transfers) -> BoolArray:
    """Whether no transfer stands behind one that it should precede, [n]."""
    behind = np.zeros(len(transfers), dtype=bool)
    tied = np.ones(len(transfers) - 1, dtype=bool)
    columns = (transfers.step, transfers.src, transfers.dst)
    for column in (*columns, transfers.kind, transfers.block, transfers.group):
        before, after = column[:-1], column[1:]
        behind[1:] |= tied & (after < before)
        tied &= after == before
    return ~behind


@dataclass(frozen=True, kw_only=True, eq=False)
class _Arrivals:
    """Steps at which ranks receive inputs, by key, ascending."""

    key: IntArray
    step: IntArray

    def at(self, key: IntArray) -> IntArray:
        """Step of arrival of every key; NEVER where it does not arrive."""
        position = np.searchsorted(self.key, key)
        found = np.append(self.key, -1)[position] == key
        return np.where(found, np.append(self.step, NEVER)[position], NEVER)


def _check_inputs(ground: _Ground, schedule: Schedule) -> None:
    """Inputs: held where they are sent from, received once, and there before they are used."""
    moves = schedule.transfers.chosen(~schedule.transfers.is_result)
    _refuse(moves, moves.dst == ground.token_home[moves.block], "which is its home")
    received = ground.key(moves.kind, moves.block, moves.group, moves.dst)
    order = row_order(received)
    again = np.zeros(len(moves), dtype=bool)
    again[order[1:]] = np.diff(received[order]) == 0
    _refuse(moves, again, "which has received it before")
    arrivals = _Arrivals(key=received[order], step=moves.step[order])

    held = arrivals.at(ground.key(moves.kind, moves.block, moves.group, moves.src)) < moves.step
    held |= moves.src == ground.token_home[moves.block]
    _refuse(moves, ~held, "but is not its home and has not received it in an earlier step")
    for kind in QUERY_INPUTS[schedule.phase]:
        _check_use(ground, schedule, arrivals, kind, ground.blocks.comp_q)
    _check_use(ground, schedule, arrivals, KEY_INPUT, ground.blocks.comp_kv)


def _check_use(
    ground: _Ground, schedule: Schedule, arrivals: _Arrivals, kind: Kind, block: IntArray
) -> None:
    """Each computation block finds its input of this kind."""
    away = np.flatnonzero(ground.comp_device != ground.token_home[block])
    key = ground.key(kind, block[away], ground.blocks.comp_group[away], ground.comp_device[away])
    division = schedule.comp_division[away]
    late = arrivals.at(key) > division
    if late.any():
        worst = int(np.where(late, division, schedule.num_divisions).argmin())
        name, rank = ground.name(int(key[worst]))
        raise ScheduleError(
            f"division {division[worst]}: rank {rank} computes block {away[worst]} but has not "
            f"received {name}, by step {division[worst]}"
        )


def _check_results(ground: _Ground, schedule: Schedule, kind: Kind, block: IntArray) -> None:
    """Partial results of a kind: none is sent empty, and all end at their homes.

    A deposit is a contribution computed (ready one step after its division) or a partial
    received (ready at its step). A send of step s takes the deposits ready by step s - 1 that no
    earlier send of that rank has taken. Steps only grow along the way, so all deposits get home
    if each one that is not there is taken by a send.
    """
    moves = schedule.transfers.chosen(schedule.transfers.kind == kind)
    span = int(max(moves.step.max(initial=0), schedule.num_divisions)) + 2
    computed = ground.key(kind, block, ground.blocks.comp_group, ground.comp_device)
    received = ground.key(moves.kind, moves.block, moves.group, moves.dst)
    deposits = distinct(
        np.concatenate([computed * span + schedule.comp_division + 1, received * span + moves.step])
    )
    sent_key = ground.key(moves.kind, moves.block, moves.group, moves.src)
    sends = sent_key * span + moves.step
    order = row_order(sends)
    sends = sends[order]

    same_key = np.diff(sends // span, prepend=-1) == 0
    previous = np.where(same_key, np.roll(sends, 1), sends // span * span)
    twice, empty = np.zeros((2, len(moves)), dtype=bool)
    twice[order] = sends == previous
    _refuse(moves, twice, "which it also sends elsewhere in this step")
    empty[order] = np.searchsorted(deposits, previous) == np.searchsorted(deposits, sends)
    _refuse(moves, empty, "but has nothing to send: no contribution since its last send")

    after = np.append(sends, -1)[np.searchsorted(sends, deposits + 1)]
    stays = after // span != deposits // span
    lost = stays & (ground.home(deposits // span) != deposits // span % ground.num_devices)
    if lost.any():
        first = int(np.where(lost, deposits % span, span).argmin())
        name, rank = ground.name(int(deposits[first] // span))
        raise ScheduleError(
            f"step {deposits[first] % span}: rank {rank} holds a partial {name}, which it does "
            "not send on; every contribution must end at the home"
        )
