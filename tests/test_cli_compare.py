"""`dcp compare`: rows, tables and files, what cannot be planned, and plans that are executed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import ABSENT, BROKEN, FEW, SMALL, run, run_json

import dcp

STATIC = {"ring", "zigzag", "ulysses", "usp"}


def test_every_strategy_is_a_row(lengths: Path, partitioners: dict[str, str]) -> None:
    found = run_json("compare", "--lengths", lengths, *SMALL)
    rows = {row["strategy"]: row for row in found["rows"]}
    assert STATIC | {"greedy"} <= set(rows)
    assert {rows[name]["kind"] for name in STATIC} == {"static"}
    assert rows["greedy"]["kind"] == "planned"
    for row in rows.values():
        assert row["status"] == "planned"
        assert row["comm_bytes"] >= row["inter_node_bytes"] >= 0
        assert min(row["compute_imbalance"], row["token_imbalance"]) >= 1
        assert min(row["planning_s"], row["forward_s"], row["backward_s"]) > 0
        assert row["feasible"] == (not row["violations"])
        assert [len(plan["digest"]) for plan in row["plans"]] == [64]
    assert found["workload"]["batches"] == [{"lengths": [300, 70, 41, 5], "masks": ["causal"]}]


def test_only_a_feasible_strategy_is_best(lengths: Path, partitioners: dict[str, str]) -> None:
    # One long sequence in equal runs: ring's last device computes far more than the first.
    lengths.write_text("512\n")
    found = run_json("compare", "--lengths", lengths, *SMALL)
    rows = {row["strategy"]: row for row in found["rows"]}
    assert not rows["ring"]["feasible"]
    feasible = [row for row in rows.values() if row["feasible"]]

    def time_s(row: dict[str, Any]) -> float:
        return float(row["forward_s"] + row["backward_s"])

    assert found["best"] == min(feasible, key=time_s)["strategy"]
    static = min((row for row in rows.values() if row["kind"] == "static"), key=time_s)
    assert found["best_static"] == static["strategy"]
    for row in rows.values():
        assert row["time_vs_best_static"] == pytest.approx(time_s(row) / time_s(static))
        assert row["bytes_vs_best_static"] == pytest.approx(
            row["comm_bytes"] / static["comm_bytes"]
        )


def test_an_infeasible_row_says_so_in_the_table(
    lengths: Path, partitioners: dict[str, str]
) -> None:
    lengths.write_text("512\n")
    lines = run("compare", "--lengths", lengths, *SMALL).stdout.splitlines()
    (ring,) = (line.split() for line in lines if line.split()[:1] == ["ring"] and "NO" in line)
    assert ring[5] == "NO"
    assert any(line.startswith("ring is infeasible: ") for line in lines)


def test_nothing_is_best_where_no_strategy_keeps_the_limits(lengths: Path) -> None:
    lengths.write_text("512\n")
    asked = ("compare", "--lengths", lengths, *SMALL, "--partitioner", "none")
    found = run_json(*asked, "--baseline", "ring")
    assert found["best"] is None
    assert found["best_static"] == "ring"
    text = run(*asked, "--baseline", "ring", columns=160).stdout
    assert "No strategy keeps all limits, so none is best." in text
    assert "the fastest static scheme, ring (which is infeasible)" in text


def test_the_winners_of_a_selection_stand_in_the_document_too(
    lengths: Path, tmp_path: Path
) -> None:
    file = tmp_path / "selection.json"
    asked = ("compare", "--lengths", lengths, *SMALL, *FEW)
    found = run_json(*asked, "--select", file)
    assert len(found["winners"]) == 1
    assert found["winners"] == json.loads(file.read_text())["winners"]
    assert run_json(*asked)["winners"] is None


def test_figures_of_several_batches_are_means(tmp_path: Path) -> None:
    path = tmp_path / "batches.json"
    path.write_text('{"batches": [[300, 20], [64]]}')
    found = run_json("compare", "--lengths", path, *SMALL, *FEW)
    assert len(found["workload"]["batches"]) == 2
    for row in found["rows"]:
        first, second = row["plans"]
        assert row["comm_bytes"] == (first["comm_bytes"] + second["comm_bytes"]) / 2
        imbalances = (first["compute_imbalance"], second["compute_imbalance"])
        assert row["compute_imbalance"] == max(imbalances)
    text = run("compare", "--lengths", path, *SMALL, *FEW, columns=160).stdout
    assert "2 batches, 3 sequences, 384 tokens" in text
    assert "Means over 2 batches" in text


def test_csv_has_a_line_for_every_strategy_and_batch(
    tmp_path: Path, partitioners: dict[str, str]
) -> None:
    partitioners["absent"] = ABSENT
    path = tmp_path / "batches.json"
    path.write_text("[[300, 20], [64]]")
    result = run("compare", "--lengths", path, *SMALL, "--baseline", "zigzag", "--csv")
    lines = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(line["strategy"], line["batch"]) for line in lines] == [
        ("zigzag", "0"),
        ("zigzag", "1"),
        ("greedy", "0"),
        ("greedy", "1"),
        ("absent", ""),
    ]
    assert all(int(line["comm_bytes"]) >= 0 for line in lines[:4])
    assert "pip install absent" in lines[4]["problem"]


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_tables_fit_their_width(lengths: Path, columns: int, partitioners: dict[str, str]) -> None:
    partitioners["absent"] = ABSENT
    result = run("compare", "--lengths", lengths, *SMALL, columns=columns)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in result.stdout
    assert not result.stderr  # progress is for terminals


def test_schedulers_may_be_compared(lengths: Path) -> None:
    asked = ("--partitioner", "greedy", "--scheduler", "paper", "--scheduler", "sequential")
    found = run_json("compare", "--lengths", lengths, *SMALL, "--baseline", "none", *asked)
    assert [row["strategy"] for row in found["rows"]] == [
        "greedy + paper",
        "greedy + sequential",
    ]
    assert [row["plans"][0]["scheduler"] for row in found["rows"]] == ["paper", "sequential"]
    assert found["best_static"] is None
    assert found["rows"][0]["time_vs_best_static"] is None


def test_a_text_folder_is_compared_by_the_stated_rule(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1000)
    (tmp_path / "b.txt").write_text("x" * 300)
    found = run_json("compare", "--text", tmp_path, *SMALL, *FEW)
    assert sorted(found["workload"]["batches"][0]["lengths"]) == [75, 250]
    assert found["workload"]["token_rule"] == "UTF-8 bytes / 4, rounded up"
    assert "UTF-8 bytes / 4" in run("compare", "--text", tmp_path, *SMALL, *FEW).stdout


def test_the_block_size_may_be_chosen_by_batch(lengths: Path) -> None:
    asked = ("compare", "--lengths", lengths, "--cluster", "2x2", "--block-size", "auto", *FEW)
    assert run_json(*asked)["block_size"] == "auto"
    assert "block size by batch" in run(*asked).stdout


def test_standard_library_is_the_default_input() -> None:
    found = run_json("compare", "--tokens", "4096", *FEW)
    assert "standard library" in found["workload"]["source"]


def test_a_missing_backend_is_a_row_that_says_what_to_install(
    lengths: Path, partitioners: dict[str, str]
) -> None:
    partitioners["absent"] = ABSENT
    result = run("compare", "--lengths", lengths, *SMALL, "--baseline", "zigzag")
    assert result.exit_code == 0
    assert "pip install absent" in result.stdout
    assert "missing" in result.stdout
    asked = ("--partitioner", "absent", "--partitioner", "greedy")
    assert run("compare", "--lengths", lengths, *SMALL, *asked).exit_code == 1


@pytest.mark.parametrize(
    ("request_text", "problem"),
    [("broken", "the solver crashed"), ("broken:expected=false", "ZeroDivisionError: surprise")],
)
def test_a_failing_backend_hides_no_other_row(
    request_text: str, problem: str, lengths: Path, partitioners: dict[str, str]
) -> None:
    partitioners["broken"] = BROKEN
    asked = ("--partitioner", request_text, "--partitioner", "greedy", "--baseline", "zigzag")
    result = run("compare", "--lengths", lengths, *SMALL, *asked, "--json")
    assert result.exit_code == 1
    rows = {row["strategy"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows[request_text]["status"] == "failed"
    assert rows[request_text]["problem"] == problem
    assert rows["zigzag"]["status"] == rows["greedy"]["status"] == "planned"


def test_a_scheme_that_cannot_serve_the_request_is_refused_not_failed(lengths: Path) -> None:
    asked = ("compare", "--lengths", lengths, "--cluster", "1x8", "--heads", "2/1", *SMALL[2:])
    result = run(*asked, "--partitioner", "none", "--json")
    assert result.exit_code == 0
    rows = {row["strategy"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["ulysses"]["status"] == "refused"
    assert "a Ulysses degree of 8" in rows["ulysses"]["problem"]
    asked += ("--partitioner", "none", "--baseline", "ulysses", "--baseline", "zigzag")
    assert run(*asked).exit_code == 1


@pytest.mark.distributed
def test_executed_plans_are_shown_equal_to_dense_attention(tmp_path: Path) -> None:
    path = tmp_path / "batches.json"
    path.write_text("[[90, 40, 0], [33]]")
    asked = ("--lengths", path, "--cluster", "local:1x2", "--block-size", "32", "--head-dim", "8")
    found = run_json("compare", *asked, *FEW, "--run")
    executions = [plan["execution"] for row in found["rows"] for plan in row["plans"]]
    assert len(executions) == 4
    for one in executions:
        assert one["proven"]
        assert one["equal_to_dense"]
        assert one["measured_s"] > 0
        assert one["problem"] is None
        assert set(one["errors"]) == {"out", "dq", "dk", "dv"}
        assert all(one["errors"][name] <= one["error_budgets"][name] for name in one["errors"])


@pytest.mark.distributed
def test_a_plan_that_breaks_the_group_hides_no_other(
    lengths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dcp.cli import local_run

    save = dcp.ExecutionPlan.save

    def save_damaged(plan: dcp.ExecutionPlan, path: Path) -> None:
        save(plan, path)
        if plan.origin.baseline == "zigzag":
            path.write_bytes(b"no plan")

    monkeypatch.setattr(local_run.ExecutionPlan, "save", save_damaged)
    asked = ("--lengths", lengths, *SMALL[2:], "--cluster", "local:1x2", *FEW, "--run")
    result = run("compare", *asked)
    assert result.exit_code == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert any(line[:2] == ["zigzag", "yes"] and line[-1] == "NO" for line in lines if line)
    assert any(line[:2] == ["greedy", "yes"] and line[-1] == "yes" for line in lines if line)
    assert "zigzag: dcp.errors.PlanFormatError" in result.stdout.replace("\n", " ")


@pytest.mark.distributed
def test_a_plan_with_a_fault_is_not_executed(
    lengths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dcp.cli import local_run
    from dcp.errors import PlanCheckError

    def refuse(plan: dcp.ExecutionPlan) -> None:
        raise PlanCheckError("rank 1 reads an empty slot")

    monkeypatch.setattr(local_run, "check_plan", refuse)
    asked = ("--lengths", lengths, *SMALL[2:], "--cluster", "local:1x2", *FEW, "--run")
    result = run("compare", *asked, columns=160)
    assert result.exit_code == 1
    assert "greedy: not proven, so not executed: rank 1 reads an empty slot" in result.stdout
