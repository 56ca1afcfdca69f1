"""Tables for copying and adding up slots: all rows of an instruction, all messages of a step.

What keeps its dtype is copied as bits, whatever the dtype, in one launch; what is cast or added
up is a launch for each pair of dtypes. Planes with head_dim elements a row are apart from those
with one, whose offsets would keep the others from wide loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dcp.arrays import BoolArray, IntArray
from dcp.instructions import Buffer, Items
from dcp.kernels.triton_places import Places, Plane
from dcp.kernels.triton_tables import Draft, Records, no_views, tiles_of, views
from dcp.runtime.messages import StepMessages

_BITS = torch.int16  # a word that every dtype of the kernels is a multiple of


class CopyLaunch(NamedTuple):
    """One launch of `copy_kernel`: its tensors, its table, and the most elements of a row."""

    targets: tuple[Plane, ...]
    sources: tuple[Plane, ...]
    draft: Draft
    columns: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Moves:
    """Blocks to bring from one tensor into another.

    Attributes:
        target, source: The tensors.
        wide: Whether rows have head_dim elements.
        into, out_of: Offset, token stride and head stride in them, [moves, 3].
        shape: Tokens, heads, and elements of a row, [moves, 3].
        fresh: Whether the target holds nothing to add to, [moves].
    """

    target: Plane
    source: Plane
    wide: bool
    into: IntArray
    out_of: IntArray
    shape: IntArray
    fresh: BoolArray

    def as_bits(self) -> Moves:
        """The same, counted in words of bits."""
        words = self.target.dtype.itemsize // _BITS.itemsize
        return Moves(
            target=self.target._replace(dtype=_BITS),
            source=self.source._replace(dtype=_BITS),
            wide=self.wide,
            into=self.into * words,
            out_of=self.out_of * words,
            shape=self.shape * np.array([1, 1, words]),
            fresh=self.fresh,
        )


def of_rows(places: Places, items: Items, fresh: BoolArray) -> Iterator[Moves]:
    """Rows of a Reduce or a Copy: slots src into slots dst."""
    into, out_of = places.buffers_of(items["dst"]), places.buffers_of(items["src"])
    for pair in sorted({*zip(into.tolist(), out_of.tolist(), strict=True)}):
        mine = (into == pair[0]) & (out_of == pair[1])
        target, source, rows = Buffer(pair[0]), Buffer(pair[1]), items[mine]
        for plane in range(places.num_planes(target)):
            yield Moves(
                target=places.plane(target, plane),
                source=places.plane(source, plane),
                wide=places.is_wide(target, plane),
                into=places.views(rows["dst"], rows["group"], plane)[:, 1:],
                out_of=places.views(rows["src"], rows["group"], plane)[:, 1:],
                shape=places.shapes(target, plane, rows["block"], rows["group"]),
                fresh=fresh[mine],
            )


def packing(places: Places, step: StepMessages) -> Iterator[Moves]:
    """Slots into the messages of a step."""
    for slots, messages, wide, shape in _ends(places, step):
        yield _fresh_moves(messages, slots, wide, shape)


def unpacking(places: Places, step: StepMessages) -> Iterator[Moves]:
    """The messages of a step into slots."""
    for slots, messages, wide, shape in _ends(places, step):
        yield _fresh_moves(slots, messages, wide, shape)


def launches(moves: Iterable[Moves], tile: int, *, adds: bool = False) -> list[CopyLaunch]:
    """As few launches as the moves can be made in.

    Args:
        moves: What to copy.
        tile: Tokens of a tile.
        adds: Whether several sources may have one target, or a target holds something already.
    """
    alike: dict[tuple[torch.dtype, torch.dtype, bool], list[Moves]] = {}
    for one in moves:
        if not adds and one.source.dtype == one.target.dtype:
            one = one.as_bits()
        alike.setdefault((one.target.dtype, one.source.dtype, one.wide), []).append(one)
    return [_launch(group, tile) for group in alike.values()]


def _launch(moves: list[Moves], tile: int) -> CopyLaunch:
    targets = tuple(dict.fromkeys(one.target for one in moves))
    sources = tuple(dict.fromkeys(one.source for one in moves))
    into = np.concatenate([_views(targets.index(one.target), one.into) for one in moves])
    out_of = np.concatenate([_views(sources.index(one.source), one.out_of) for one in moves])
    shape = np.concatenate([one.shape for one in moves])
    fresh = np.concatenate([one.fresh for one in moves])
    # Stable, so sources of a target keep their order.
    order = np.lexsort((into[:, 1], into[:, 0]))
    place = into[order, :2]
    begin = np.flatnonzero(np.append(True, (place[1:] != place[:-1]).any(axis=1)))
    end = np.append(begin[1:], len(order))
    first = order[begin]
    tokens, heads, columns = shape[first].T
    fresh = np.logical_or.reduceat(fresh[order], begin)
    draft = Draft(
        tiles=tiles_of(tokens, heads, tile),
        rows=Records(
            numbers=np.stack([tokens, fresh, begin, end, columns], axis=1).astype(np.int64),
            wide=views(into[first]),
            narrow=no_views(len(first)),
        ),
        items=Records(
            numbers=np.empty((len(order), 0), dtype=np.int64),
            wide=views(out_of[order]),
            narrow=no_views(len(order)),
        ),
        wide_loads=moves[0].wide,
    )
    return CopyLaunch(_filled(targets), _filled(sources), draft, int(columns.max()))


def _filled(planes: tuple[Plane, ...]) -> tuple[Plane, ...]:
    """As many tensors as a multiple of four, so that few kernels are compiled."""
    return planes + planes[:1] * (-len(planes) % 4)


_End = tuple[Plane, IntArray]


def _ends(places: Places, step: StepMessages) -> Iterator[tuple[_End, _End, bool, IntArray]]:
    """Planes of the contents: where in slots, where in messages, whether wide, and shapes."""
    buffers = places.buffers_of(step.items["slot"])
    for number in np.unique(buffers):
        buffer, mine = Buffer(number), buffers == number
        slots, blocks, groups = (step.items[mine][name] for name in ("slot", "block", "group"))
        for plane in range(places.num_planes(buffer)):
            held, wire = places.plane(buffer, plane), places.wire_dtype(buffer, plane)
            # A message may begin where no element could, but never within a word.
            words = wire.itemsize // _BITS.itemsize if held.dtype == wire else 1
            dtypes = (_BITS, _BITS) if held.dtype == wire else (held.dtype, wire)
            shape = places.shapes(buffer, plane, blocks, groups) * np.array([1, 1, words])
            _, heads, columns = shape.T
            first = step.begins[mine, plane] // dtypes[1].itemsize
            in_messages = [first, heads * columns, columns]
            yield (
                (held._replace(dtype=dtypes[0]), places.views(slots, groups, plane)[:, 1:] * words),
                (Plane(None, 0, dtypes[1]), np.stack(in_messages, axis=1)),
                places.is_wide(buffer, plane),
                shape,
            )


def _fresh_moves(target: _End, source: _End, wide: bool, shape: IntArray) -> Moves:
    return Moves(
        target=target[0],
        source=source[0],
        wide=wide,
        into=target[1],
        out_of=source[1],
        shape=shape,
        fresh=np.ones(len(shape), dtype=np.bool_),
    )


def _views(which: int, of: IntArray) -> IntArray:
    return np.concatenate([np.full((len(of), 1), which), of], axis=1)
