"""`block_size="auto"`: finer for small batches, coarser for long sequences."""

import pytest

import dcp
from dcp.block_size import LARGEST, SMALLEST, choose_block_size
from dcp.cutting import cut

HEADS = dcp.AttentionSpec(num_q_heads=2, num_kv_heads=1, head_dim=8)


def size(lengths, devices, mask=None):
    return choose_block_size(dcp.Batch(lengths, mask=mask), dcp.Cluster(devices_per_node=devices))


def test_a_device_gets_a_handful_of_blocks():
    assert size([131072], 16) == 1024
    assert size([131072], 8) == 2048
    assert size([2000] * 64, 16) == 1024


def test_long_sequences_get_coarser_blocks():
    assert size([1 << 20], 128) > size([1 << 15] * 32, 128)


def test_sparse_masks_keep_fine_blocks():
    window = dcp.masks.sliding_window(4096)
    assert size([1 << 20], 128, window) < size([1 << 20], 128)


@pytest.mark.parametrize("lengths", [[], [0], [1], [5, 3], [1 << 22]])
def test_it_is_a_power_of_two_in_the_legal_range(lengths):
    chosen = size(lengths, 64)
    assert SMALLEST <= chosen <= LARGEST
    assert chosen & (chosen - 1) == 0


@pytest.mark.parametrize("lengths", [[1 << 22], [1 << 20] * 4, [13] * 10_000, [131072]])
def test_the_number_of_computation_blocks_stays_bounded(lengths):
    batch = dcp.Batch(lengths)
    chosen = choose_block_size(batch, dcp.Cluster(devices_per_node=512))
    assert len(cut(batch, HEADS, chosen).comp_q) < 200_000


def test_plan_takes_auto():
    plan = dcp.plan(
        dcp.Batch([3000, 500]), HEADS, dcp.Cluster(devices_per_node=2), block_size="auto"
    )
    assert plan.blocks.block_size == 256
