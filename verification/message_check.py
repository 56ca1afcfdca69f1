"""Proof that every send meets its receive: same ranks, same step, same data in the same order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp.arrays import IntArray
from dcp.cluster import Cluster
from dcp.errors import PlanCheckError
from dcp.instructions import CommLaunch, CommWait
from dcp.verification.facts import Facts
from dcp.verification.faults import Site
from dcp.verification.program_check import CheckedProgram, Gathered


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the messages of one phase carry.

    Attributes:
        transfers: Data blocks sent.
        messages: (source, destination, step) with at least one of them.
        total_bytes, inter_node_bytes: Bytes sent, and those of them that cross nodes.
    """

    transfers: int
    messages: int
    total_bytes: int
    inter_node_bytes: int


def check_messages(facts: Facts, cluster: Cluster, programs: list[CheckedProgram]) -> Traffic:
    """Match the sends of all ranks with their receives in one phase.

    Raises:
        PlanCheckError: a wait for nothing, a peer that cannot be, or an end without its other.
    """
    for program in programs:
        _check_waits(program.site)
    sends = [_ends(facts, one, one.sends, len(programs), sending=True) for one in programs]
    receives = [_ends(facts, one, one.receives, len(programs), sending=False) for one in programs]
    sent, received = _in_order(sends), _in_order(receives)
    _match(facts, programs, sent, received)
    size = facts.wire_bytes.reshape(-1)[sent[:, _DATA]]
    node = cluster.device_node
    crosses = node[sent[:, _SRC]] != node[sent[:, _DST]]
    return Traffic(
        transfers=len(sent),
        messages=len(np.unique(sent[:, : _STEP + 1], axis=0)),
        total_bytes=int(size.sum()),
        inter_node_bytes=int(size[crosses].sum()),
    )


_SRC, _DST, _STEP, _DATA, _INDEX = range(5)


def _check_waits(site: Site) -> None:
    """No step is launched twice, and every wait is for a step that is on its way."""
    waited: dict[int, bool] = {}
    for index, instruction in enumerate(site.instructions):
        if isinstance(instruction, CommLaunch):
            if instruction.step in waited:
                raise site.fault(f"launches step {instruction.step} again", index=index)
            waited[instruction.step] = len(instruction.receives) == 0
        elif isinstance(instruction, CommWait):
            if waited.get(instruction.step, True):
                raise site.fault(
                    f"waits for step {instruction.step}, of which nothing is on its way",
                    index=index,
                )
            waited[instruction.step] = True


def check_launch_order(site: Site) -> None:
    """Launches come in the order of their steps.

    Transports match the messages of two ranks by their order, and with sends that wait for their
    receives ranks that launch crosswise would block each other.
    """
    before = -1
    for index, instruction in enumerate(site.instructions):
        if isinstance(instruction, CommLaunch):
            if instruction.step <= before:
                raise site.fault(
                    f"launches step {instruction.step} after step {before}", index=index
                )
            before = instruction.step


def _ends(
    facts: Facts, program: CheckedProgram, table: Gathered, ranks: int, *, sending: bool
) -> IntArray:
    """Rows (source, destination, step, data block, instruction), [n, 5], in program order."""
    site, items = program.site, table.items
    peer = items["peer"]
    wrong = (peer < 0) | (peer >= ranks) | (peer == site.rank)
    if wrong.any():
        first = int(wrong.argmax())
        raise site.fault(
            f"peer is {peer[first]}; legal: another rank of 0 … {ranks - 1}",
            index=int(table.index[first]),
            block=int(items["block"][first]),
            group=int(items["group"][first]),
        )
    step_of = np.array([getattr(one, "step", 0) for one in site.instructions], dtype=np.int64)
    kind = program.slot_kind[items["slot"]]
    data = facts.data_code(kind, items["block"], items["group"])
    mine = np.full(len(items), site.rank, dtype=np.int64)
    source, destination = (mine, peer) if sending else (peer, mine)
    step = step_of[table.index] if len(items) else mine
    return np.stack([source, destination, step, data, table.index], axis=1).astype(np.int64)


def _in_order(ends: list[IntArray]) -> IntArray:
    rows = np.concatenate(ends)
    return rows[np.lexsort((rows[:, _STEP], rows[:, _DST], rows[:, _SRC]))]


def _match(
    facts: Facts, programs: list[CheckedProgram], sent: IntArray, received: IntArray
) -> None:
    shared = min(len(sent), len(received))
    same = (sent[:shared, :_INDEX] == received[:shared, :_INDEX]).all(axis=1)
    if same.all() and len(sent) == len(received):
        return
    first = shared if same.all() else int(same.argmin())
    send = sent[first] if first < len(sent) else None
    receive = received[first] if first < len(received) else None
    if send is None or receive is None:
        raise _alone(facts, programs, send, receive)
    message, expected = tuple(send[:_DATA].tolist()), tuple(receive[:_DATA].tolist())
    if message != expected:
        alone = (send, None) if message < expected else (None, receive)
        raise _alone(facts, programs, *alone)
    raise _fault(
        facts, programs[send[_SRC]].site, send,
        f"sends it to rank {send[_DST]} in step {send[_STEP]}, where rank {send[_DST]} expects "
        f"{facts.name_of(int(receive[_DATA]))} at instruction {receive[_INDEX]}",
    )  # fmt: skip


def _alone(
    facts: Facts, programs: list[CheckedProgram], send: IntArray | None, receive: IntArray | None
) -> PlanCheckError:
    if send is not None:
        text = f"sends it to rank {send[_DST]} in step {send[_STEP]}, which does not receive it"
        return _fault(facts, programs[send[_SRC]].site, send, text)
    assert receive is not None
    text = f"receives it from rank {receive[_SRC]} in step {receive[_STEP]}, which does not send it"
    return _fault(facts, programs[receive[_DST]].site, receive, text)


def _fault(facts: Facts, site: Site, end: IntArray, text: str) -> PlanCheckError:
    kind, block, group = facts.split_code(int(end[_DATA]))
    return site.fault(f"{kind.name}: {text}", index=int(end[_INDEX]), block=block, group=group)
