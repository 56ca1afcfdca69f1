"""Items merged into kernel calls: the same work, in fewer and larger calls, compiled once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp import slices as slice_ops
from dcp.execution_plan import ExecutionPlan
from dcp.instructions import Attention, Program
from dcp.kernel_interface import BlockMask
from dcp.kernels.torch_pieces import Piece, Tuning, pieces
from dcp.runtime.attention_calls import AttentionCall, ProgramCalls

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16, dtype="float32")
MASKS = {
    "causal": dcp.masks.causal(),
    "full": dcp.masks.full(),
    "window": dcp.masks.sliding_window(20),
    "lambda": dcp.masks.lambda_mask(3, 25),
    "blockwise": dcp.masks.causal_blockwise(10, 1),
    "question": dcp.masks.shared_question(question_fraction=0.3, answers=3),
}


def plan_of(mask: dcp.masks.Mask, **how: str) -> ExecutionPlan:
    batch = dcp.Batch([120, 0, 33, 1], mask=mask)
    how = how or {"baseline": "zigzag"}
    return dcp.plan(batch, SPEC, dcp.Cluster(devices_per_node=2), block_size=16, **how)


def programs(plan: ExecutionPlan) -> list[Program]:
    return [program for mine in plan.ranks for program in (mine.forward, mine.backward)]


def compiled(plan: ExecutionPlan, program: Program) -> list[tuple[Attention, list[AttentionCall]]]:
    calls = ProgramCalls.of(plan.blocks, program)
    return [
        (instruction, calls.calls(instruction.items))
        for instruction in program.instructions
        if isinstance(instruction, Attention)
    ]


def tokens(spans: tuple) -> int:
    return sum(span.tokens for span in spans)


def pairs(call: AttentionCall) -> int:
    if call.mask is None:
        return tokens(call.q) * tokens(call.kv)
    return int(slice_ops.size(call.mask.slices).sum())


@pytest.mark.parametrize("name", MASKS)
def test_calls_allow_as_many_pairs_as_their_items(name: str) -> None:
    plan = plan_of(MASKS[name])
    blocks = plan.blocks
    of = {
        key: int(count)
        for key, count in zip(
            zip(
                blocks.comp_q.tolist(),
                blocks.comp_kv.tolist(),
                blocks.comp_group.tolist(),
                strict=True,
            ),
            blocks.comp_pairs,
            strict=True,
        )
    }
    for program in programs(plan):
        for instruction, calls in compiled(plan, program):
            wanted: Counter[int] = Counter()
            for row in instruction.items:
                group = int(row["group"])
                wanted[group] += of[int(row["q_block"]), int(row["kv_block"]), group]
            found: Counter[int] = Counter()
            for call in calls:
                found[call.group] += pairs(call)
            assert found == wanted


@pytest.mark.parametrize("name", MASKS)
def test_an_accumulator_is_begun_once_and_targets_cover_the_call(name: str) -> None:
    plan = plan_of(MASKS[name])
    for program in programs(plan):
        for instruction, calls in compiled(plan, program):
            items = instruction.items
            fresh = ("fresh",) if "fresh" in items.dtype.names else ("fresh_dq", "fresh_dkv")
            slots = ("out",) if "out" in items.dtype.names else ("dq", "dkv")
            begun = [
                {int(slot) for slot in items[slot_name][items[flag] != 0]}
                for slot_name, flag in zip(slots, fresh, strict=True)
            ]
            for side, count in enumerate(map(len, begun)):
                targets = [
                    target
                    for call in calls
                    for target in (call.query_targets, call.key_targets)[side]
                ]
                starts = [target.span for target in targets if target.fresh]
                assert len(set(starts)) == len(starts) <= count
            for call in calls:
                assert call.query_targets[0].begin == 0
                assert call.query_targets[-1].end == tokens(call.q)


def test_a_causal_sequence_on_one_rank_is_one_call_a_head_group() -> None:
    plan = dcp.plan(
        dcp.Batch([160]),
        SPEC,
        dcp.Cluster(devices_per_node=1),
        block_size=16,
        partitioner="greedy",
        scheduler="sequential",
    )
    for program in programs(plan):
        ((_, calls),) = compiled(plan, program)
        assert [call.group for call in calls] == [0, 1]
        for call in calls:
            assert len(call.q) == len(call.kv) == 1  # neighbours in memory: views, no copies
            assert call.mask is not None
            assert call.mask.is_causal_square(160, 160)


def test_a_program_is_compiled_once() -> None:
    plan = plan_of(MASKS["causal"])
    program = plan.ranks[0].forward
    first, second = compiled(plan, program), compiled(plan, program)
    assert all(one[1] is two[1] for one, two in zip(first, second, strict=True))


def test_a_mask_that_would_be_shredded_stays_with_its_blocks() -> None:
    random = np.random.default_rng(3).random((64, 64)) < 0.5
    batch = dcp.Batch([64], mask=dcp.masks.from_dense(random))
    plan = dcp.plan(batch, SPEC, dcp.Cluster(devices_per_node=1), block_size=16, baseline="ring")
    for program in programs(plan):
        for instruction, calls in compiled(plan, program):
            assert len(calls) == len(instruction.items)


def corners(piece: Piece) -> list[tuple[int, int]]:
    """First query and first key of each of a piece's rectangles."""
    return [
        (piece.q + number * piece.q_step, piece.k + number * piece.k_step)
        for number in range(piece.repeats)
    ]


class TestPieces:
    """Rectangles that a mask is cut into."""

    @pytest.mark.property
    @settings(deadline=None)
    @given(
        name=st.sampled_from(sorted(MASKS)),
        length=st.integers(1, 90),
        heads=st.sampled_from([1, 4]),
        half=st.booleans(),
        causal=st.booleans(),
        strip=st.sampled_from([2, 8]),
        most_rows=st.sampled_from([0, 5]),
    )
    def test_are_disjoint_and_allow_what_the_mask_does(
        self,
        name: str,
        length: int,
        heads: int,
        half: bool,
        causal: bool,
        strip: int,
        most_rows: int,
    ) -> None:
        mask = BlockMask.of(MASKS[name].slices(length, length))
        allowed = np.zeros((length, length), dtype=np.bool_)
        queries: set[int] = set()
        tuning = Tuning(heads=heads, half=half, causal=causal, strip=strip, most_rows=most_rows)
        for piece in pieces(mask, length, length, tuning):
            assert piece.rows <= (most_rows or length)
            rows: set[int] = set()
            for q, k in corners(piece):
                part = allowed[q : q + piece.rows, k : k + piece.keys]
                assert part.shape == (piece.rows, piece.keys)
                assert not part.any()
                part[:] = True if piece.mask is None else piece.mask.dense(*part.shape)
                assert not rows & set(range(q, q + piece.rows))
                rows |= set(range(q, q + piece.rows))
            assert piece.fresh == (not rows & queries)
            queries |= rows
        assert (allowed == mask.dense(length, length)).all()

    def test_of_one_size_are_one_call(self) -> None:
        """A causal square: triangles on the diagonal, and squares of every size below it."""
        tuning = Tuning(heads=4, half=False, causal=False, strip=128, most_rows=0)
        found = pieces(BlockMask(((0, 2048, 0, 2048, -2047, 0),)), 2048, 2048, tuning)
        sizes = [(piece.repeats, piece.rows, piece.keys, piece.mask is None) for piece in found]
        assert sizes == [
            (16, 128, 128, False),
            (8, 128, 128, True),
            (4, 256, 256, True),
            (2, 512, 512, True),
            (1, 1024, 1024, True),
        ]

    def test_in_half_precision_have_many_rows_rather_than_little_waste(self) -> None:
        tuning = Tuning(heads=4, half=True, causal=False, strip=96, most_rows=0)
        found = pieces(BlockMask(((0, 1024, 0, 1024, -1023, 0),)), 1024, 1024, tuning)
        sizes = [(piece.repeats, piece.rows, piece.keys, piece.mask is None) for piece in found]
        assert sizes == [(4, 256, 256, False), (2, 256, 256, True), (1, 512, 512, True)]

    def test_follow_the_steps_of_a_mask(self) -> None:
        """Keys that half of the queries see stay together, beside those that all see."""
        mask = BlockMask(((0, 1024, 0, 512, -1023, 511), (0, 512, 512, 1024, 1, 1023)))
        tuning = Tuning(heads=4, half=False, causal=False, strip=96, most_rows=0)
        found = pieces(mask, 1024, 1024, tuning)
        assert [(piece.rows, piece.keys) for piece in found] == [(1024, 512), (512, 512)]

    def test_leave_causal_squares_whole_where_they_cost_no_more(self) -> None:
        tuning = Tuning(heads=1, half=False, causal=True, strip=128, most_rows=0)
        found = pieces(BlockMask(((0, 2048, 0, 4096, -2047, 2048),)), 2048, 4096, tuning)
        assert [(piece.k, piece.keys) for piece in found] == [(0, 2048), (2048, 2048)]
        assert found[1].mask is not None
        assert found[1].mask.is_causal_square(2048, 2048)

    @pytest.mark.parametrize(
        ("mask", "most"),
        [
            (dcp.masks.causal(), 1.05),
            (dcp.masks.lambda_mask(64, 1024), 1.2),
            (dcp.masks.causal_blockwise(256, 2), 1.2),
            (dcp.masks.shared_question(question_fraction=0.2, answers=4), 1.1),
        ],
        ids=["causal", "lambda", "blockwise", "question"],
    )
    def test_compute_little_in_vain(self, mask: dcp.masks.Mask, most: float) -> None:
        rows = mask.slices(4096, 4096)
        tuning = Tuning(heads=4, half=False, causal=False, strip=96, most_rows=0)
        found = pieces(BlockMask.of(rows), 4096, 4096, tuning)
        cells = sum(one.repeats * one.rows * one.keys for one in found)
        assert cells <= most * slice_ops.size(rows).sum()


def test_results_do_not_depend_on_compiling_before() -> None:
    plan = plan_of(MASKS["lambda"], partitioner="greedy", scheduler="overlap")
    tensors = [torch.randn(154, heads, 16) for heads in (4, 2, 2)]
    first = dcp.run_local(plan, *tensors)
    again = dcp.run_local(ExecutionPlan.from_bytes(plan.to_bytes()), *tensors)
    assert torch.equal(first, again)
    assert torch.equal(first, dcp.run_local(plan, *tensors))
