"""A program's memory on one rank: home tensors, arenas, and views of slots in them.

A slot's content has one tensor a plane (see the table of `dcp.instructions`), each a view
[tokens, heads, head_dim] or, for lse and delta, [tokens, heads].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from dcp.batch import AttentionSpec
from dcp.blocks import KEY_SIDE, BlockGraph, HeadGroups, Kind
from dcp.errors import DtypeError, ShapeError
from dcp.instructions import (
    ARENAS,
    ARRIVAL,
    HOME_BUFFERS,
    HOME_INPUT,
    HOME_OUTPUT,
    KIND_OF,
    Buffer,
    Program,
)
from dcp.runtime.allocation import allocate
from dcp.runtime.attention_calls import Span
from dcp.runtime.dtypes import DTYPES

Planes = tuple[Tensor, ...]

# Planes of each kind: those with head_dim elements a row, then those with one.
WIDE_PLANES = {Kind.Q: 1, Kind.KV: 2, Kind.O: 1, Kind.DO: 1, Kind.DQ: 1, Kind.DKV: 2}
NARROW_PLANES = {Kind.O: 1, Kind.DO: 2}


@dataclass(frozen=True, kw_only=True)
class PlaneDtypes:
    """Dtypes that a spec gives to the planes of every buffer."""

    spec: torch.dtype
    accumulator: torch.dtype
    wire_partial: torch.dtype

    @classmethod
    def of(cls, spec: AttentionSpec) -> PlaneDtypes:
        """Dtypes of a spec."""
        return cls(
            spec=DTYPES[spec.dtype],
            accumulator=DTYPES[spec.accumulator_dtype],
            wire_partial=DTYPES[spec.wire_partial_dtype],
        )

    def arena(self, buffer: Buffer) -> tuple[torch.dtype, ...]:
        """Dtype of each plane of an arena; arrival arenas hold what is on the wire."""
        kind = KIND_OF[buffer]
        if buffer != ARRIVAL[kind]:
            wide = self.accumulator
        elif kind in (Kind.Q, Kind.KV, Kind.DO):
            wide = self.spec
        else:
            wide = self.wire_partial
        narrow = (self.accumulator,) * NARROW_PLANES.get(kind, 0)
        return (wide,) * WIDE_PLANES[kind] + narrow

    def wire(self, kind: Kind) -> tuple[torch.dtype, ...]:
        """Dtype of each plane in a message."""
        return self.arena(ARRIVAL[kind])


class Buffers:
    """The memory of one program.

    Args:
        blocks: The plan's blocks.
        program: The program that will run.
        inputs: Planes of each home input, Kind.Q and Kind.KV, and Kind.DO in backward:
            [local tokens, heads, head_dim], for lse and delta [local tokens, heads].
        kept: Arenas that forward has left for backward, exactly `program.kept_buffers`.

    Raises:
        ShapeError, DtypeError: what is kept is not what the program was planned for.
    """

    def __init__(
        self,
        blocks: BlockGraph,
        program: Program,
        inputs: dict[Kind, Planes],
        kept: Mapping[Buffer, Planes] = MappingProxyType({}),
    ) -> None:
        self.dtypes = PlaneDtypes.of(blocks.spec)
        # Of each group: its slice of a home tensor's heads, or its rows a token in an arena.
        groups = range(len(blocks.groups))
        self._heads: list[list[slice | int]] = [
            [_heads(blocks.groups, buffer, group) for group in groups] for buffer in Buffer
        ]
        self._adds_to_home = has_replicas(blocks.groups)
        self._lengths: list[int] = blocks.token_length.tolist()
        self._slots: list[tuple[int, int, int, int]] = program.slots.tolist()
        self._planes: dict[int, Planes] = {
            int(HOME_INPUT[kind]): planes for kind, planes in inputs.items()
        }
        results = (Kind.DQ, Kind.DKV) if Kind.DO in inputs else (Kind.O,)
        for kind in results:
            self._planes[HOME_OUTPUT[kind]] = self._home_output(kind, inputs)
        device = inputs[Kind.Q][0].device
        if set(kept) != set(program.kept_buffers):
            raise ShapeError(
                f"got kept arenas {_names(kept)}; the program was planned with "
                f"{_names(program.kept_buffers)}; give what its forward run has left"
            )
        for buffer in ARENAS:
            rows = int(program.arena_rows[buffer])
            shapes = _arena_shapes(buffer, rows, blocks.spec.head_dim)
            if buffer in kept:
                _check_kept(buffer, kept[buffer], shapes, self.dtypes.arena(buffer))
                self._planes[buffer] = kept[buffer]
            elif rows:
                self._planes[buffer] = tuple(
                    allocate(shape, dtype, device)
                    for shape, dtype in zip(shapes, self.dtypes.arena(buffer), strict=True)
                )

    def planes(self, buffer: Buffer) -> Planes:
        """Whole tensors of a buffer; none of an arena without rows."""
        return self._planes.get(buffer, ())

    def view(self, slot: int, block: int, group: int) -> Planes:
        """What a slot holds of a data block, one view a plane."""
        buffer, offset, _, _ = self._slots[slot]
        return self.at(Span(buffer, offset, self._lengths[block]), group)

    def at(self, span: Span, group: int) -> Planes:
        """What lies in a span, one view a plane."""
        buffer, offset, tokens = span
        planes, heads = self._planes[buffer], self._heads[buffer][group]
        if isinstance(heads, slice):
            return tuple([plane[offset : offset + tokens, heads] for plane in planes])
        rows = slice(offset, offset + tokens * heads)
        return tuple([plane[rows].view(tokens, heads, *plane.shape[1:]) for plane in planes])

    def gather(self, spans: tuple[Span, ...], group: int) -> Planes:
        """What lies in several spans, one after another: a view of one, a copy of more."""
        parts = [self.at(span, group) for span in spans]
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(planes) for planes in zip(*parts, strict=True))

    def kind(self, slot: int) -> Kind:
        """Which kind of data block a slot is for."""
        return KIND_OF[Buffer(self._slots[slot][0])]

    def store(self, src: Planes, slot: int, block: int, group: int) -> None:
        """Write a final result into its home output.

        Head groups that share a key head each bring a part of its gradient, so these add up.
        """
        home = self.view(slot, block, group)
        if self._adds_to_home and self.kind(slot) == Kind.DKV:
            for target, value in zip(home, src, strict=True):
                target.add_(value)
        else:
            copy_planes(home, src)

    def output(self, kind: Kind) -> Planes:
        """Planes of a home output, in the dtypes that the caller gets."""
        wide = WIDE_PLANES[kind]
        planes = self._planes[HOME_OUTPUT[kind]]
        return (*(plane.to(self.dtypes.spec) for plane in planes[:wide]), *planes[wide:])

    def _home_output(self, kind: Kind, inputs: dict[Kind, Planes]) -> Planes:
        like = inputs[Kind.KV] if kind in KEY_SIDE else inputs[Kind.Q]
        adds = kind == Kind.DKV and self._adds_to_home
        dtype = self.dtypes.accumulator if adds else self.dtypes.spec
        wide = tuple(torch.zeros(x.shape, dtype=dtype, device=x.device) for x in like)
        if kind != Kind.O:
            return wide
        q = like[0]
        return *wide, q.new_full(q.shape[:2], -torch.inf, dtype=self.dtypes.accumulator)


def has_replicas(groups: HeadGroups) -> bool:
    """Whether several head groups share a key head."""
    return len(np.unique(groups.kv_head)) < len(groups)


def copy_planes(target: Planes, source: Planes) -> None:
    """Copy plane by plane, cast to the target's dtype."""
    for to, value in zip(target, source, strict=True):
        to.copy_(value)


def _arena_shapes(buffer: Buffer, rows: int, head_dim: int) -> list[tuple[int, ...]]:
    """Shape of each plane of an arena."""
    kind = KIND_OF[buffer]
    narrow: list[tuple[int, ...]] = [(rows,)] * NARROW_PLANES.get(kind, 0)
    return [(rows, head_dim)] * WIDE_PLANES[kind] + narrow


def _check_kept(
    buffer: Buffer,
    planes: Planes,
    shapes: list[tuple[int, ...]],
    dtypes: tuple[torch.dtype, ...],
) -> None:
    given = [tuple(plane.shape) for plane in planes]
    if given != shapes:
        raise ShapeError(
            f"kept arena {buffer.name} has planes {given}; the program was planned with {shapes}; "
            "give what its forward run has left"
        )
    if tuple(plane.dtype for plane in planes) != dtypes:
        raise DtypeError(
            f"kept arena {buffer.name} has dtypes {[plane.dtype for plane in planes]}; the "
            f"program was planned with {list(dtypes)}; give what its forward run has left"
        )


def _names(buffers: Iterable[Buffer]) -> list[str]:
    return [buffer.name for buffer in sorted(buffers)]


def _heads(groups: HeadGroups, buffer: Buffer, group: int) -> slice | int:
    """Where a group's heads are in a home tensor, or how many rows a token has in an arena."""
    if KIND_OF[buffer] in KEY_SIDE:
        start, count = int(groups.kv_head[group]), 1
    else:
        start, count = int(groups.q_start[group]), int(groups.q_count[group])
    return slice(start, start + count) if buffer in HOME_BUFFERS else count
