"""What launches the instructions of a program become: kernels, tensors and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dcp.blocks import BlockGraph, Kind
from dcp.instructions import (
    KIND_OF,
    Attention,
    Buffer,
    CommLaunch,
    Copy,
    Program,
    Reduce,
)
from dcp.kernels import triton_copies, triton_drafts
from dcp.kernels.triton_copies import Moves
from dcp.kernels.triton_places import Places, Plane
from dcp.kernels.triton_tables import Draft
from dcp.kernels.triton_tiling import (
    COPY,
    MERGE,
    Tiling,
    attention_constants,
    copy_constants,
    merge_constants,
)
from dcp.runtime.buffers import Buffers, has_replicas
from dcp.runtime.messages import ProgramMessages

_FORWARD_INPUTS = ((Kind.Q, 0), (Kind.KV, 0), (Kind.KV, 1))
_BACKWARD_INPUTS = (*_FORWARD_INPUTS, (Kind.DO, 0), (Kind.DO, 1), (Kind.DO, 2))

Key = tuple[str, int]  # "run", "pack" or "unpack", and the identity of an instruction


@dataclass(frozen=True, kw_only=True, eq=False)
class Launch:
    """One launch of a program, all but the table on the device and the tensors of a run.

    Attributes:
        name: The kernel.
        arguments: What it is given: planes, and tuples of planes as one argument.
        tile: Its warps and stages.
        more: Numbers and compile-time constants, by name.
    """

    name: str
    arguments: tuple[Plane | tuple[Plane, ...], ...]
    tile: Tiling
    more: dict[str, float]


Drafted: TypeAlias = tuple[Launch, Draft]
"""A launch and its table on the host, which nobody needs once it is on the device."""


class Drafter:
    """Makes launches of the instructions of one program.

    Args:
        blocks, program, buffers: As for `Kernel.bind`.
        forward, backward: Tiles of the attention kernels.
    """

    def __init__(
        self,
        blocks: BlockGraph,
        program: Program,
        buffers: Buffers,
        forward: Tiling,
        backward: Tiling,
    ) -> None:
        self._spec = blocks.spec
        self._program = program
        self._places = Places(blocks, program, buffers)
        self._masks = triton_drafts.Masks(self._places, program)
        self._messages = ProgramMessages.of(blocks, program)
        self._adds_to_home = has_replicas(blocks.groups)
        self._tiles = forward, backward

    def launches(self) -> Iterator[tuple[Key, list[Drafted]]]:
        """Every instruction's launches and their tables."""
        for one in self._program.instructions:
            if isinstance(one, Attention):
                yield ("run", id(one)), self._attention(one)
            elif isinstance(one, Reduce):
                yield ("run", id(one)), self._reduction(one)
            elif isinstance(one, Copy):
                yield ("run", id(one)), self._copy(one)
            elif isinstance(one, CommLaunch):
                sent, received = map(self._messages.of_items, (one.sends, one.receives))
                packing = triton_copies.packing(self._places, sent)
                yield ("pack", id(one)), _copies(packing)
                unpacking = triton_copies.unpacking(self._places, received)
                yield ("unpack", id(one)), _copies(unpacking)

    def _attention(self, one: Attention) -> list[Drafted]:
        if "dout" in (one.items.dtype.names or ()):
            return self._backward(one)
        tile, accumulator = self._tiles[0], self._places.accumulator
        outputs = accumulator(Kind.O, 0), accumulator(Kind.O, 1)
        launch = Launch(
            name="forward",
            arguments=(*self._inputs(_FORWARD_INPUTS), *outputs),
            tile=tile,
            more=self._constants(tile),
        )
        table = triton_drafts.forward(self._places, self._masks, one.items, tile.queries)
        return [(launch, table)]

    def _backward(self, one: Attention) -> list[Drafted]:
        tile, accumulator = self._tiles[1], self._places.accumulator
        inputs = self._inputs(_BACKWARD_INPUTS)
        more = {"scale": self._spec.scale, **self._constants(tile)}
        of_queries = Launch(
            name="backward_dq",
            arguments=(*inputs, accumulator(Kind.DQ, 0)),
            tile=tile,
            more=more,
        )
        of_keys = Launch(
            name="backward_dkv",
            arguments=(*inputs, accumulator(Kind.DKV, 0), accumulator(Kind.DKV, 1)),
            tile=tile,
            more=more,
        )
        source = self._places, self._masks, one.items
        return [
            (of_queries, triton_drafts.backward_dq(*source, tile.queries)),
            (of_keys, triton_drafts.backward_dkv(*source, tile.keys)),
        ]

    def _reduction(self, one: Reduce) -> list[Drafted]:
        kinds = {KIND_OF[Buffer(each)] for each in self._places.buffers_of(one.items["dst"])}
        if Kind.O not in kinds:
            fresh = np.not_equal(one.items["fresh"], 0)
            return _copies(triton_copies.of_rows(self._places, one.items, fresh), adds=True)
        planes = [self._places.accumulator(Kind.O, plane) for plane in (0, 1)]
        planes += [self._places.plane(Buffer.O_PART, plane) for plane in (0, 1)]
        launch = Launch(
            name="merge",
            arguments=tuple(planes),
            tile=MERGE,
            more=merge_constants(self._spec.head_dim),
        )
        return [(launch, triton_drafts.merge(self._places, one.items, MERGE.queries))]

    def _copy(self, one: Copy) -> list[Drafted]:
        """Copies; but gradients of a key head that several head groups share add up at home."""
        to_keys = self._places.buffers_of(one.items["dst"]) == Buffer.DKV
        added = to_keys & self._adds_to_home
        copied, summed = one.items[~added], one.items[added]
        moves = triton_copies.of_rows(self._places, copied, np.ones(len(copied), dtype=np.bool_))
        sums = triton_copies.of_rows(self._places, summed, np.zeros(len(summed), dtype=np.bool_))
        return [*_copies(moves), *_copies(sums, adds=True)]

    def _inputs(self, what: tuple[tuple[Kind, int], ...]) -> list[Plane]:
        return [plane for kind, number in what for plane in self._places.pair(kind, number)]

    def _constants(self, tile: Tiling) -> dict[str, float]:
        return attention_constants(tile, self._spec.head_dim, self._spec.scale)


def _copies(moves: Iterable[Moves], *, adds: bool = False) -> list[Drafted]:
    drafted = []
    for one in triton_copies.launches(moves, COPY.queries, adds=adds):
        launch = Launch(
            name="copy",
            arguments=(one.targets, one.sources),
            tile=COPY,
            more=copy_constants(one.columns),
        )
        drafted.append((launch, one.draft))
    return drafted
