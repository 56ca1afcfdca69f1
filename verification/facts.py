"""What a plan has to compute and move, derived from lengths, masks and heads alone.

Nothing that the planner decided is used: computation blocks come from the sequences' mask slices
and are compared with what the plan claims.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcp import slices as slice_ops
from dcp.arrays import BoolArray, IntArray
from dcp.batch import DTYPE_BYTES, AttentionSpec
from dcp.blocks import BlockGraph, HeadGroups, Kind, Side
from dcp.errors import PlanCheckError
from dcp.runs import expand_runs

KEY_KINDS = (Kind.KV, Kind.DKV)


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """Facts of a batch in token blocks; P counts (query block, key block) with an allowed pair.

    Attributes:
        num_blocks, num_groups: Token blocks T and head groups G.
        has_q, has_kv: Whether a token block carries queries, keys, [T].
        length: Tokens of each block, [T].
        pair_q, pair_kv: Token blocks of each pair, ordered by (q, kv), [P].
        pair_area: Allowed (query, key) positions, a head, [P].
        piece_ptr, piece_slices: The allowed region in canonical block-local slices: those of pair
            p are piece_slices[piece_ptr[p]:piece_ptr[p + 1]].
        place_in_row, place_in_column: Number of the pair among those of its query block, of its
            key block, [P].
        row_size, column_size: Pairs of each query block, of each key block, [T].
        slot_rows: Rows that a data block needs, [kinds, T, G].
        wire_bytes: Bytes of a data block when sent, [kinds, T, G].
    """

    num_blocks: int
    num_groups: int
    has_q: BoolArray
    has_kv: BoolArray
    length: IntArray
    pair_q: IntArray
    pair_kv: IntArray
    pair_area: IntArray
    piece_ptr: IntArray
    piece_slices: IntArray
    place_in_row: IntArray
    place_in_column: IntArray
    row_size: IntArray
    column_size: IntArray
    slot_rows: IntArray
    wire_bytes: IntArray

    def find_pairs(self, q: IntArray, kv: IntArray) -> IntArray:
        """Pair of each (query block, key block), [n]; -1 where nothing is allowed."""
        keys = self.pair_q * self.num_blocks + self.pair_kv
        wanted = q * self.num_blocks + kv
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        if not len(keys):
            return np.full(len(wanted), -1, dtype=np.int64)
        return np.where(keys[at] == wanted, at, -1)

    def data_code(
        self, kind: IntArray | Kind, block: IntArray | int, group: IntArray | int
    ) -> IntArray:
        """One number for each data block; broadcasts."""
        kind = np.asarray(kind, dtype=np.int64)
        return np.asarray((kind * self.num_blocks + block) * self.num_groups + group)

    def split_code(self, code: int) -> tuple[Kind, int, int]:
        """Kind, block and group of a data block's code."""
        rest, group = divmod(code, self.num_groups)
        kind, block = divmod(rest, self.num_blocks)
        return Kind(kind), block, group

    def name_of(self, code: int) -> str:
        """A data block in words."""
        kind, block, group = self.split_code(code)
        return f"{kind.name} of block {block} group {group}"

    def contributions(self, kind: Kind, block: int) -> int:
        """Number of contributions to a result of this block."""
        return int((self.column_size if kind in KEY_KINDS else self.row_size)[block])

    def contribution(self, kind: Kind, block: int, place: int) -> int:
        """Pair that makes the contribution of this place."""
        mine = self.pair_kv if kind in KEY_KINDS else self.pair_q
        return int(np.flatnonzero(mine == block)[place])


def derive_facts(blocks: BlockGraph) -> Facts:
    """Facts of the plan's batch.

    Raises:
        PlanCheckError: token blocks, head groups or computation blocks do not fit the batch.
    """
    _check_shapes(blocks)
    q_line = _line("query", blocks, Side.KEY, blocks.q_lengths)
    kv_line = _line("key", blocks, Side.QUERY, blocks.kv_lengths)
    _check_head_groups(blocks.spec, blocks.groups)
    slices = _slices_on_lines(blocks)
    length = blocks.token_length
    has_q, has_kv = blocks.token_side != Side.KEY, blocks.token_side != Side.QUERY

    q, kv, rows, area = _pieces(q_line, kv_line, slices)
    key = q * len(length) + kv
    order = np.argsort(key, kind="stable")
    pair_key, starts = np.unique(key[order], return_index=True)
    pair_q, pair_kv = np.divmod(pair_key, max(len(length), 1))
    pair_area = np.add.reduceat(area[order], starts) if len(starts) else area
    facts = Facts(
        num_blocks=len(length),
        num_groups=len(blocks.groups),
        has_q=has_q,
        has_kv=has_kv,
        length=length,
        pair_q=pair_q,
        pair_kv=pair_kv,
        pair_area=pair_area,
        piece_ptr=np.append(starts, len(order)),
        piece_slices=rows[order],
        place_in_row=_place_among_equals(pair_q),
        place_in_column=_place_among_equals(pair_kv),
        row_size=np.bincount(pair_q, minlength=len(length)),
        column_size=np.bincount(pair_kv, minlength=len(length)),
        slot_rows=_slot_rows(blocks, has_q, has_kv),
        wire_bytes=_wire_bytes(blocks, has_q, has_kv),
    )
    _check_claims(blocks, facts)
    return facts


_SAME_LENGTH = (
    ("q_lengths", "kv_lengths"),
    ("token_seq", "token_start", "token_length", "token_side", "token_whole"),
    ("comp_q", "comp_kv", "comp_group", "comp_pairs", "comp_mask"),
)


def _check_shapes(blocks: BlockGraph) -> None:
    """Arrays that describe the same things have the same length."""
    for names in _SAME_LENGTH:
        shapes = {name: getattr(blocks, name).shape for name in names}
        if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
            raise PlanCheckError(f"arrays that belong together have shapes {shapes}")
    if blocks.sequence_slices.shape != (len(blocks.slice_sequence), 6):
        raise PlanCheckError(
            f"sequence_slices have shape {blocks.sequence_slices.shape} for "
            f"{len(blocks.slice_sequence)} slices"
        )
    if min(blocks.q_lengths.min(initial=0), blocks.kv_lengths.min(initial=0)) < 0:
        raise PlanCheckError("a sequence has a negative length")
    if not set(blocks.token_side.tolist()) <= set(Side):
        raise PlanCheckError(f"token_side is none of {[int(side) for side in Side]}")
    sequence = blocks.slice_sequence
    if ((sequence < 0) | (sequence >= len(blocks.q_lengths))).any():
        raise PlanCheckError(f"a mask slice names a sequence beyond {len(blocks.q_lengths)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Line:
    """Token blocks of one side in packed order: their numbers, and where they begin and end."""

    block: IntArray
    begin: IntArray
    end: IntArray


def _line(name: str, blocks: BlockGraph, other: Side, lengths: IntArray) -> _Line:
    """Token blocks of a side; they must tile the packed sequences in order."""
    block = np.flatnonzero(blocks.token_side != other)
    seq, start = blocks.token_seq[block], blocks.token_start[block]
    size = blocks.token_length[block]
    base = np.cumsum(lengths) - lengths
    end = np.cumsum(size)
    if ((seq < 0) | (seq >= len(lengths))).any():
        raise PlanCheckError(f"a {name} token block names a sequence beyond {len(lengths)}")
    wrong = (size < 1) | (size > blocks.block_size) | (base[seq] + start != end - size)
    wrong |= (start < 0) | (start + size > lengths[seq])
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise PlanCheckError(
            f"block {block[first]}: {name} tokens {start[first]} … {start[first] + size[first]} "
            f"of sequence {seq[first]} leave a gap, overlap or are out of order"
        )
    if size.sum() != lengths.sum():
        raise PlanCheckError(
            f"the token blocks hold {size.sum()} {name} tokens, the sequences {lengths.sum()}"
        )
    return _Line(block=block, begin=end - size, end=end)


def _check_head_groups(spec: AttentionSpec, groups: HeadGroups) -> None:
    ratio = spec.num_q_heads // spec.num_kv_heads
    heads = np.concatenate(
        [np.arange(s, s + n) for s, n in zip(groups.q_start, groups.q_count, strict=True)]
    )
    kv_heads = np.repeat(groups.kv_head, groups.q_count)
    if not np.array_equal(np.sort(heads), np.arange(spec.num_q_heads)):
        raise PlanCheckError(
            f"the head groups hold query heads {sorted(heads.tolist())}; "
            f"each of {spec.num_q_heads} must be in exactly one"
        )
    if not np.array_equal(kv_heads, heads // ratio):
        raise PlanCheckError("a head group holds query heads that read another key head")


def _slices_on_lines(blocks: BlockGraph) -> IntArray:
    """Mask slices of all sequences in packed coordinates; they must be disjoint and inside."""
    seq, rows = blocks.slice_sequence, blocks.sequence_slices
    q_length, kv_length = blocks.q_lengths[seq], blocks.kv_lengths[seq]
    inside = (rows[:, 0] >= 0) & (rows[:, 1] <= q_length)
    inside &= (rows[:, 2] >= 0) & (rows[:, 3] <= kv_length)
    if not inside.all():
        first = int(np.flatnonzero(~inside)[0])
        raise PlanCheckError(f"mask slice {rows[first].tolist()} leaves sequence {seq[first]}")
    q_base = (np.cumsum(blocks.q_lengths) - blocks.q_lengths)[seq]
    k_base = (np.cumsum(blocks.kv_lengths) - blocks.kv_lengths)[seq]
    packed = _moved(rows, q_base, k_base)
    clash = slice_ops.overlapping(packed)
    if clash is not None:
        raise PlanCheckError(
            f"mask slices {rows[clash[0]].tolist()} and {rows[clash[1]].tolist()} "
            f"of sequence {seq[clash[0]]} overlap"
        )
    return packed


def _moved(rows: IntArray, dq: IntArray, dk: IntArray) -> IntArray:
    return rows + np.stack([dq, dq, dk, dk, dk - dq, dk - dq], axis=1)


def _pieces(
    q_line: _Line, kv_line: _Line, slices: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Every slice inside every rectangle of blocks that it meets: q, kv, local slice, area."""
    slices = slice_ops.normalize(slices)
    row, i = _runs(q_line, slices[:, 0], slices[:, 1])
    parts = slices[row]
    np.maximum(parts[:, 0], q_line.begin[i], out=parts[:, 0])
    np.minimum(parts[:, 1], q_line.end[i], out=parts[:, 1])
    parts, some = slice_ops.tighten(parts)
    parts, i = parts[some], i[some]
    row, j = _runs(kv_line, parts[:, 2], parts[:, 3])
    parts, i = parts[row], i[row]
    np.maximum(parts[:, 2], kv_line.begin[j], out=parts[:, 2])
    np.minimum(parts[:, 3], kv_line.end[j], out=parts[:, 3])
    parts, some = slice_ops.tighten(parts)
    parts, i, j = parts[some], i[some], j[some]
    local = _moved(parts, -q_line.begin[i], -kv_line.begin[j])
    return q_line.block[i], kv_line.block[j], local, slice_ops.size(local)


def _runs(line: _Line, begin: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """(index of the range, position on the line) for every block that a range [begin, end) meets.

    No range is empty.
    """
    first = np.searchsorted(line.end, begin, side="right")
    count = np.searchsorted(line.begin, end, side="left") - first
    return expand_runs(first, count)


def _place_among_equals(values: IntArray) -> IntArray:
    """How many equal values stand before each, [n]."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return place


def _slot_rows(blocks: BlockGraph, has_q: BoolArray, has_kv: BoolArray) -> IntArray:
    query = np.outer(blocks.token_length * has_q, blocks.groups.q_count)
    key = np.outer(blocks.token_length * has_kv, np.ones(len(blocks.groups), dtype=np.int64))
    return np.stack([key if kind in KEY_KINDS else query for kind in Kind])


def _wire_bytes(blocks: BlockGraph, has_q: BoolArray, has_kv: BoolArray) -> IntArray:
    """Bytes of data blocks: rows × what one row (a token and head) carries of each kind."""
    spec = blocks.spec
    element, statistic = DTYPE_BYTES[spec.dtype], DTYPE_BYTES[spec.accumulator_dtype]
    partial = DTYPE_BYTES[spec.wire_partial_dtype]
    row_bytes = {
        Kind.Q: spec.head_dim * element,
        Kind.KV: 2 * spec.head_dim * element,
        Kind.O: spec.head_dim * partial + statistic,
        Kind.DO: spec.head_dim * element + 2 * statistic,
        Kind.DQ: spec.head_dim * partial,
        Kind.DKV: 2 * spec.head_dim * partial,
    }
    of_kind = np.array([row_bytes[kind] for kind in Kind], dtype=np.int64)
    return _slot_rows(blocks, has_q, has_kv) * of_kind[:, None, None]


def _check_claims(blocks: BlockGraph, facts: Facts) -> None:
    """The plan's computation blocks must be those of the mask, each with its exact count."""
    groups = facts.num_groups
    group = np.tile(np.arange(groups), len(facts.pair_q))
    q, kv, area = (np.repeat(x, groups) for x in (facts.pair_q, facts.pair_kv, facts.pair_area))
    expected = np.stack([q, kv, group, area])
    claimed = np.stack([blocks.comp_q, blocks.comp_kv, blocks.comp_group, blocks.comp_pairs])
    shared = min(expected.shape[1], claimed.shape[1])
    wrong = np.flatnonzero((expected[:, :shared] != claimed[:, :shared]).any(axis=0))
    if len(wrong) or expected.shape != claimed.shape:
        first = int(wrong[0]) if len(wrong) else shared
        raise PlanCheckError(
            f"computation block {first} is {_comp_name(claimed, first)}, but the masks ask for "
            f"{_comp_name(expected, first)}"
        )


def _comp_name(table: IntArray, index: int) -> str:
    if index >= table.shape[1]:
        return "absent"
    return "(q {}, kv {}, group {}) with {} pairs".format(*table[:, index])
