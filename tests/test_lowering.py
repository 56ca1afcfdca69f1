"""Programs: what every rank does, in which order, and with how few slots."""

import numpy as np
import pytest

import dcp
from dcp import lowering
from dcp.instructions import (
    ACCUMULATOR,
    ARENAS,
    Attention,
    Buffer,
    CommLaunch,
    CommWait,
    Copy,
    Reduce,
)

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8)


def ring_plan(devices=4, lengths=(32,), mask=None, block_size=8):
    cluster = dcp.Cluster(devices_per_node=devices)
    batch = dcp.Batch(list(lengths), mask=mask or dcp.masks.full())
    return dcp.plan(batch, SPEC, cluster, baseline="ring", block_size=block_size)


def names(program):
    return [type(instruction).__name__ for instruction in program.instructions]


def test_one_rank_needs_no_communication_and_no_received_slots():
    plan = ring_plan(devices=1)
    for program in (plan.ranks[0].forward, plan.ranks[0].backward):
        assert names(program) == ["Attention", "Copy"]
        arenas = {Buffer(buffer) for buffer in np.flatnonzero(program.arena_rows)}
        assert arenas <= set(ACCUMULATOR.values())


def test_programs_do_not_depend_on_how_many_items_are_made_at_a_time(monkeypatch):
    digest = ring_plan().digest
    monkeypatch.setattr(lowering, "_ITEMS_AT_A_TIME", 1)
    assert ring_plan().digest == digest


def test_sending_starts_before_the_work_that_hides_it():
    kinds = names(ring_plan().ranks[0].forward)
    assert kinds[:5] == ["CommLaunch", "Attention", "CommWait", "CommLaunch", "Attention"]
    assert kinds[-1] == "Copy"


def test_partial_gradients_are_merged_before_they_travel_on():
    program = ring_plan().ranks[0].backward
    kinds = names(program)
    for index, kind in enumerate(kinds):
        if kind == "Reduce":
            assert kinds[index - 1] == "CommWait"
            assert kinds[index + 1] in ("CommLaunch", "Copy")


def test_a_ring_needs_two_received_chunks_however_long_it_is():
    """A chunk is dead once it has been used and forwarded, and its slot is free again."""
    rows = [
        int(
            ring_plan(devices=devices, lengths=(8 * devices,))
            .ranks[0]
            .forward.arena_rows[Buffer.KV_IN]
        )
        for devices in (4, 8, 16)
    ]
    assert rows == [2 * 8 * 2] * 3


def test_every_home_block_has_a_slot_a_group_in_the_callers_tensors():
    plan = ring_plan(lengths=(20, 9))
    for rank in plan.ranks:
        slots = rank.forward.slots
        mine = slots[slots["buffer"] == Buffer.Q]
        lengths = plan.blocks.token_length[rank.home_blocks]
        assert mine["size"].tolist() == np.repeat(lengths, 2).tolist()
        assert mine["group"].tolist() == [0, 1] * len(lengths)
        assert mine["offset"].tolist() == np.repeat(np.cumsum(lengths) - lengths, 2).tolist()


def test_slots_of_an_arena_never_overlap():
    for rank in ring_plan(lengths=(33, 21, 5)).ranks:
        for program in (rank.forward, rank.backward):
            for buffer in ARENAS:
                slots = program.slots[program.slots["buffer"] == buffer]
                ends = np.cumsum(slots["size"])
                assert slots["offset"].tolist() == (ends - slots["size"]).tolist()
                assert program.arena_rows[buffer] == slots["size"].sum()


def test_only_the_first_write_of_a_sum_is_fresh():
    for rank in ring_plan(lengths=(33, 21)).ranks:
        for instruction in rank.forward.instructions:
            assert not isinstance(instruction, Reduce)  # a ring's outputs never leave home
        items = [i.items for i in rank.forward.instructions if isinstance(i, Attention)]
        items = np.concatenate(items)
        fresh = items[items["fresh"] == 1]
        assert len(np.unique(fresh["out"])) == len(fresh) == len(np.unique(items["out"]))


def test_both_ends_list_a_message_in_the_same_order():
    plan = ring_plan(lengths=(33, 21), mask=dcp.masks.causal())
    sent, received = {}, {}
    for rank in plan.ranks:
        for launch in rank.backward.instructions:
            if isinstance(launch, CommLaunch):
                for item in launch.sends:
                    key = (rank.rank, int(item["peer"]), launch.step)
                    sent.setdefault(key, []).append((int(item["block"]), int(item["group"])))
                for item in launch.receives:
                    key = (int(item["peer"]), rank.rank, launch.step)
                    received.setdefault(key, []).append((int(item["block"]), int(item["group"])))
    assert sent == received
    assert sent


def test_every_wait_follows_its_launch():
    for rank in ring_plan(mask=dcp.masks.causal()).ranks:
        launched = set()
        for instruction in rank.backward.instructions:
            if isinstance(instruction, CommLaunch):
                launched.add(instruction.step)
            if isinstance(instruction, CommWait):
                assert instruction.step in launched


def test_a_rank_without_tokens_and_work_has_nothing_to_do():
    plan = ring_plan(devices=8, lengths=(3,), mask=dcp.masks.causal())
    idle = [rank for rank in plan.ranks if not len(rank.home_blocks)]
    assert idle
    for rank in idle:
        assert not any(isinstance(i, (Attention, Copy)) for i in rank.forward.instructions)


@pytest.mark.parametrize("devices", [2, 4])
def test_a_rank_keeps_only_the_masks_it_uses(devices):
    plan = ring_plan(devices=devices, mask=dcp.masks.causal())
    for rank in plan.ranks:
        program = rank.forward
        used = {
            int(mask)
            for instruction in program.instructions
            if isinstance(instruction, Attention)
            for mask in instruction.items["mask"]
        }
        assert used | {0} == set(range(len(program.mask_ptr) - 1))
