"""Selection tables: which strategy wins for which kind of workload, for `auto` to start from."""

import logging

import pytest

import dcp
from dcp.comparison import Setting, compare, selection, strategies
from dcp.errors import SpecError
from dcp.selection import SelectionTable, Winner, WorkloadKind

HEADS = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=16)
CLUSTER = dcp.Cluster(nodes=2, devices_per_node=2)


def kind(lengths, mask=None, cluster=CLUSTER):
    return WorkloadKind.of(dcp.Batch(lengths, mask=mask), cluster)


def table_of(workload, **strategy):
    return SelectionTable(winners=(Winner(kind=workload, batches=1, lead=1.5, **strategy),))


def test_kinds_tell_long_from_mixed_from_short():
    assert kind([600, 100]).lengths == "long"
    assert kind([400, 300, 200, 100]).lengths == "mixed"
    assert kind([10] * 20).lengths == "short"
    assert kind([]).lengths == "long"


def test_kinds_tell_sparse_from_dense_masks():
    assert kind([500]).mask == "dense"
    assert kind([500], dcp.masks.sliding_window(50)).mask == "sparse"
    assert kind([500], cluster=dcp.Cluster(devices_per_node=4)).network == "one node"


def test_auto_starts_from_the_winner_of_the_batchs_kind():
    batch = dcp.Batch([300, 200, 150, 90])
    table = table_of(kind([300, 200, 150, 90]), partitioner="greedy", scheduler="sequential")
    chosen = dcp.plan(batch, HEADS, CLUSTER, block_size=32, selection=table)
    assert chosen.origin.scheduler == "sequential" or chosen.origin.baseline
    other = dcp.Batch([10] * 30)
    chosen = dcp.plan(other, HEADS, CLUSTER, block_size=32, selection=table)
    assert chosen.origin.scheduler == "overlap"


def test_a_named_backend_overrules_the_table():
    table = table_of(kind([300, 90]), partitioner="no-such", scheduler="no-such")
    chosen = dcp.plan(
        dcp.Batch([300, 90]),
        HEADS,
        CLUSTER,
        block_size=32,
        partitioner="greedy",
        scheduler="paper",
        selection=table,
    )
    assert str(chosen.origin) == "greedy + paper"


def test_the_table_names_the_fastest_strategy_of_every_kind(caplog):
    setting = Setting(
        batches=(dcp.Batch([600, 30]), dcp.Batch([15] * 40)),
        spec=HEADS,
        cluster=CLUSTER,
        block_size=32,
        limits=dcp.Limits(),
        seed=0,
        budget=1.0,
        keep_bytes=0,
    )
    wanted = strategies(["ring", "zigzag"], ["greedy"], ["overlap", "sequential"])
    with caplog.at_level(logging.WARNING):
        comparison = compare(setting, wanted, lambda strategy, batch: None)
    table = selection(setting, comparison)
    assert [winner.kind.lengths for winner in table.winners] == ["long", "short"]
    for index, winner in enumerate(table.winners):
        times = {
            str(row.plans[index].origin): row.reports[index].forward_s
            + row.reports[index].backward_s
            for row in comparison.rows
        }
        title = winner.baseline or f"{winner.partitioner} + {winner.scheduler}"
        assert times[title] == min(times.values())
        assert winner.lead >= 1


def test_a_table_survives_its_file(tmp_path):
    table = table_of(kind([300, 90]), baseline="zigzag")
    table.save(tmp_path / "selection.json")
    assert SelectionTable.load(tmp_path / "selection.json") == table


@pytest.mark.parametrize("content", [b"", b"[]", b'{"winners": [{"kind": 3}]}'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "selection.json").write_bytes(content)
    with pytest.raises(SpecError, match="not a selection table"):
        SelectionTable.load(tmp_path / "selection.json")


def test_a_table_of_another_version_is_refused(tmp_path):
    (tmp_path / "selection.json").write_bytes(b'{"version": 9, "winners": []}')
    with pytest.raises(SpecError, match="version 9, this dcp reads 1"):
        SelectionTable.load(tmp_path / "selection.json")
