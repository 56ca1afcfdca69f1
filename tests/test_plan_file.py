"""Plans on disk: typed, versioned, identified by their digest, never executable."""

import msgspec
import numpy as np
import pytest

import dcp
from dcp import plan_file
from dcp.errors import PlanFormatError

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8)
CLUSTER = dcp.Cluster(nodes=1, devices_per_node=3)


def plan_of(lengths=(20, 7), **options):
    options = {"baseline": "zigzag", "block_size": 4} | options
    return dcp.plan(dcp.Batch(list(lengths)), SPEC, CLUSTER, **options)


def repacked(plan, **changes):
    """A plan file whose envelope was changed."""
    envelope = msgspec.msgpack.decode(plan.to_bytes()) | changes
    return msgspec.msgpack.encode(envelope)


def test_a_plan_survives_its_file(tmp_path):
    plan = plan_of()
    plan.save(tmp_path / "p.plan")
    loaded = dcp.ExecutionPlan.load(tmp_path / "p.plan")
    assert loaded.digest == plan.digest
    assert loaded.report() == plan.report()
    assert loaded.spec == plan.spec
    assert loaded.cluster == plan.cluster
    assert loaded.origin == plan.origin
    assert np.array_equal(loaded.blocks.comp_pairs, plan.blocks.comp_pairs)
    assert np.array_equal(loaded.placement.token_home, plan.placement.token_home)
    assert plan_file.encode(loaded.ranks) == plan_file.encode(plan.ranks)


def test_a_digest_survives_the_file_whatever_numbers_were_given():
    plan = plan_of(limits=dcp.Limits(inter_node=0, intra_node=1))
    assert dcp.ExecutionPlan.from_bytes(plan.to_bytes()).digest == plan.digest


def test_equal_requests_give_equal_digests_and_others_do_not():
    assert plan_of().digest == plan_of().digest
    assert plan_of().digest != plan_of(lengths=(20, 8)).digest
    assert plan_of().digest != plan_of(baseline="ring").digest


def test_a_newer_version_is_refused_with_both_versions():
    with pytest.raises(PlanFormatError, match="version 4, this dcp reads version 3"):
        dcp.ExecutionPlan.from_bytes(repacked(plan_of(), version=4, new_field=[1]))


@pytest.mark.parametrize(
    "data",
    [b"", b"not a plan", b"\x80", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode({"a": 1})],
)
def test_other_files_are_refused(data):
    with pytest.raises(PlanFormatError):
        dcp.ExecutionPlan.from_bytes(data)


def test_every_damaged_byte_of_the_content_is_noticed():
    plan = plan_of()
    data = bytearray(plan.to_bytes())
    begin = len(data) - len(plan_file.encode(plan.content))
    for position in np.linspace(begin, len(data) - 1, 40).astype(int).tolist():
        damaged = data.copy()
        damaged[position] ^= 0x40
        with pytest.raises(PlanFormatError):
            dcp.ExecutionPlan.from_bytes(bytes(damaged))


def test_a_truncated_file_is_refused():
    data = plan_of().to_bytes()
    for size in range(0, len(data), max(len(data) // 20, 1)):
        with pytest.raises(PlanFormatError):
            dcp.ExecutionPlan.from_bytes(data[:size])


@pytest.mark.parametrize(
    "array",
    [
        ["<i4", [3], b"12345678"],
        ["<i4", [-1], b""],
        ["O", [1], b"12345678"],
        ["forward", [1], b"12345678"],
        ["<i4", "x", b""],
        17,
    ],
)
def test_arrays_that_contradict_themselves_are_refused_even_with_a_fitting_digest(array):
    plan = plan_of()
    content = msgspec.msgpack.decode(plan_file.encode(plan.content))
    content["blocks"]["comp_pairs"] = array
    notes = plan_file.unseal(plan.to_bytes()).notes
    data = plan_file.seal(msgspec.msgpack.encode(content), notes)
    with pytest.raises(PlanFormatError):
        dcp.ExecutionPlan.from_bytes(data)


def test_loaded_arrays_cannot_be_changed_behind_the_digest():
    loaded = dcp.ExecutionPlan.from_bytes(plan_of().to_bytes())
    with pytest.raises(ValueError, match="read-only"):
        loaded.blocks.comp_pairs[0] = 1
