"""The `dcp` command: what each command prints, and how it ends on bad input and on faults."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from plan_damage import instructions_of, with_items, without
from typer.testing import CliRunner, Result

import dcp
from dcp import registry
from dcp.backend import Availability
from dcp.cli import app
from dcp.cli.options import read_cluster, read_heads, read_limits
from dcp.errors import BackendError, MaskError, SpecError
from dcp.instructions import CommLaunch
from dcp.mask_requests import CONSTRUCTORS, make_mask
from dcp.placement import Assignment, Partitioner, PlacementProblem

STATIC = {"ring", "zigzag", "ulysses", "usp"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Absent(Partitioner):
    name: ClassVar[str] = "absent"

    @classmethod
    def availability(cls) -> Availability:
        return Availability(False, "run pip install absent")

    def place(self, problem: PlacementProblem) -> Assignment:
        raise AssertionError("cannot run")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Broken(Partitioner):
    name: ClassVar[str] = "broken"
    expected: bool = True

    def place(self, problem: PlacementProblem) -> Assignment:
        raise BackendError("the solver crashed") if self.expected else ZeroDivisionError("surprise")


@pytest.fixture
def partitioners(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The table of partitioners: greedy, and what a test adds."""
    table = {"greedy": registry.BUILT_IN["partitioners"]["greedy"]}
    monkeypatch.setitem(registry.BUILT_IN, "partitioners", table)
    return table


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.txt"
    path.write_text("300\n70\n41\n5\n")
    return path


def run(*arguments: object, columns: int = 80) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": str(columns)})


def run_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


SMALL = ("--cluster", "2x2", "--block-size", "64", "--head-dim", "16")
FEW = ("--baseline", "zigzag", "--partitioner", "greedy")


# Start


def test_the_command_starts_without_torch() -> None:
    code = "import sys, dcp.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "command", ["compare", "plan", "check", "fuzz", "profile", "simulate", "backends"]
)
def test_every_command_has_help(command: str) -> None:
    assert command in run("--help").stdout
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


# compare


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
    partitioners["absent"] = f"{__name__}:_Absent"
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
    partitioners["absent"] = f"{__name__}:_Absent"
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


# What cannot be planned


def test_a_missing_backend_is_a_row_that_says_what_to_install(
    lengths: Path, partitioners: dict[str, str]
) -> None:
    partitioners["absent"] = f"{__name__}:_Absent"
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
    partitioners["broken"] = f"{__name__}:_Broken"
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mask", "causl"], "no mask is named 'causl'; there are: causal, full"),
        (["--mask", "lambda:sink=4"], "'lambda' needs window"),
        (["--cluster", "2by4"], "write NODESxDEVICES"),
        (["--cluster", "0x4"], "nodes is 0"),
        (["--cluster", "cray:4"], "no preset 'cray'; legal: p4de"),
        (["--heads", "8:2"], "write QUERY/KEY"),
        (["--heads", "8/3"], "must be a multiple"),
        (["--head-dim", "0"], "head_dim is 0"),
        (["--dtype", "int8"], "dtype 'int8' is unknown; legal: float64"),
        (["--block-size", "0"], "block_size is 0"),
        (["--block-size", "many"], "write a whole number or auto"),
        (["--limits", "intra=0.1"], "legal: inter_node, intra_node"),
        (["--limits", "intra_node=-1"], "must be finite and 0 or more"),
        (["--limits", "intra_node=much"], "cannot be read"),
        (["--budget", "nan"], "budget is nan"),
        (["--tokens", "0"], "0 tokens a batch"),
        (["--batches", "0"], "0 batches"),
        (["--partitioner", "metis"], "no partitioner is named 'metis'; there are: greedy"),
        (["--partitioner", "greedy:depth=3"], "no option 'depth'"),
        (["--baseline", "usp:degree"], "write name:option=value"),
        (["--scheduler", "late"], "no scheduler is named 'late'"),
        (["--partitioner", "none", "--baseline", "none"], "no strategy is left"),
        (["--lengths", "nowhere.txt"], "cannot read nowhere.txt"),
        (["--text", "nowhere"], "nowhere is not a folder"),
        (["--json", "--csv"], "give one of them"),
        (["--run", "--cluster", "4x8"], "at most 16 devices"),
        (["--run", "--lengths", "LONG"], "dense attention, which takes"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    long = tmp_path / "long.json"
    long.write_text(json.dumps([[2**24]]))
    arguments = [str(long) if one == "LONG" else one for one in arguments]
    result = run("compare", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout


def test_a_fault_is_one_line_and_exit_code_1(lengths: Path, partitioners: dict[str, str]) -> None:
    partitioners["broken"] = f"{__name__}:_Broken"
    result = run("plan", "--lengths", lengths, *SMALL, "--partitioner", "broken")
    assert result.exit_code == 1
    assert result.stderr == "error: the solver crashed\n"


def test_unknown_options_are_refused() -> None:
    assert run("compare", "--colour").exit_code == 2


# plan and check


@pytest.fixture
def plan_file(lengths: Path, tmp_path: Path) -> Path:
    path = tmp_path / "p.plan"
    asked = ("--lengths", lengths, *SMALL, "--mask", "lambda:sink=4,window=32")
    result = run("plan", *asked, "--partitioner", "greedy", "--out", path)
    assert result.exit_code == 0, result.output
    assert f"saved to {path}" in result.stdout.replace("\n", "")
    return path


def test_a_plan_is_saved_and_proven(plan_file: Path) -> None:
    plan = dcp.ExecutionPlan.load(plan_file)
    assert plan.cluster.num_devices == 4
    assert plan.origin.partitioner == "greedy"
    result = run("check", plan_file)
    assert result.exit_code == 0, result.output
    assert "proven (greedy + " in result.stdout
    (found,) = run_json("check", plan_file)
    assert found["proven"]
    assert found["digest"] == plan.digest


def test_the_plan_report_shows_every_figure(lengths: Path) -> None:
    asked = ("plan", "--lengths", lengths, *SMALL, "--baseline", "zigzag")
    found = run_json(*asked)
    assert found["plan"]["baseline"] == "zigzag"
    assert found["file"] is None
    report = dcp.plan(
        dcp.Batch([300, 70, 41, 5]),
        read_heads("8/2", 16, "bfloat16"),
        read_cluster("2x2"),
        block_size=64,
        baseline="zigzag",
    ).report()
    assert found["plan"]["comm_bytes"] == report.comm_bytes
    text = run(*asked).stdout
    for name in ("digest", "compute imbalance", "feasible", "planning", "lower bound"):
        assert name in text


def test_check_names_the_fault_and_shows_the_other_plans(plan_file: Path, tmp_path: Path) -> None:
    plan = dcp.ExecutionPlan.load(plan_file)
    damaged, cut_off = tmp_path / "damaged.plan", tmp_path / "cut_off.plan"
    cut_off.write_bytes(plan_file.read_bytes()[:-9])
    rank, index = next(
        (rank, index)
        for rank, index, one in instructions_of(plan, "forward", CommLaunch)
        if len(one.receives)
    )
    with_items(
        plan, rank, "forward", index, lambda items: without(items, 0), field="receives"
    ).save(damaged)
    result = run("check", damaged, plan_file, cut_off, "--json")
    assert result.exit_code == 1
    first, second, third = json.loads(result.stdout)
    assert not first["proven"]
    assert "rank" in first["fault"]
    assert second["proven"]
    assert not third["proven"]
    assert "NOT PROVEN" in run("check", damaged).stdout


def test_check_and_plan_refuse_bad_paths(tmp_path: Path, lengths: Path) -> None:
    assert run("check", tmp_path / "none.plan").exit_code == 2
    result = run("plan", "--lengths", lengths, *SMALL, "--out", tmp_path / "no" / "p.plan")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    asked = ("--baseline", "ring", "--scheduler", "paper")
    assert "brings its own" in run("plan", "--lengths", lengths, *SMALL, *asked).stderr


# fuzz


def test_fuzzing_counts_the_requests_that_hold() -> None:
    found = run_json("fuzz", "--examples", "3")
    assert found == {"held": 3, "fault": None, "request": None}


def test_fuzzing_shows_the_request_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from dcp.verification import fuzz

    request: Any = "a request"
    failed = fuzz.FuzzResult(examples=7, case=request, error=ValueError("wrong"))
    monkeypatch.setattr(fuzz, "fuzz", lambda **_: failed)
    result = run("fuzz", "--examples", "9")
    assert result.exit_code == 1
    assert result.stdout == "ValueError: wrong\nrequest: 'a request'\n7 requests held before it\n"


def test_fuzzing_without_hypothesis_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    result = run("fuzz")
    assert result.exit_code == 2
    assert "dynamic-context-parallel[dev]" in result.stderr


def test_illegal_fuzzing_is_refused() -> None:
    for arguments in (("--seconds", "0"), ("--examples", "0"), ("--dtype", "int8")):
        assert run("fuzz", *arguments).exit_code == 2


# backends


def test_backends_are_listed_with_options_and_what_to_install(
    partitioners: dict[str, str],
) -> None:
    partitioners["absent"] = f"{__name__}:_Absent"
    partitioners["lost"] = "dcp.no_such_module:Lost"
    found = run_json("backends")
    assert set(found) == set(registry.BUILT_IN)
    listed = {entry["name"]: entry for entry in found["partitioners"]}
    assert listed["greedy"]["available"]
    assert listed["absent"]["reason"] == "run pip install absent"
    assert "No module named 'dcp.no_such_module'" in listed["lost"]["reason"]
    assert listed["lost"]["options"] == {}
    (usp,) = (entry for entry in found["baselines"] if entry["name"] == "usp")
    assert "layout" in usp["options"]
    text = run("backends").stdout
    assert "absent: run pip install absent" in text
    assert max(map(len, text.splitlines())) <= 80


# Reading options


@pytest.mark.parametrize(
    ("request_text", "mask"),
    [
        ("causal", dcp.masks.causal()),
        ("full", dcp.masks.full()),
        ("sliding_window:window=7", dcp.masks.sliding_window(7)),
        ("lambda:sink=2,window=5", dcp.masks.lambda_mask(2, 5)),
        ("causal_blockwise:block=4,local=1", dcp.masks.causal_blockwise(4, 1)),
        (
            "shared_question:question_fraction=0.2,answers=4",
            dcp.masks.shared_question(question_fraction=0.2, answers=4),
        ),
        ("prefix_lm:prefix=3", dcp.masks.prefix_lm(3)),
    ],
)
def test_every_mask_is_made_by_its_name(request_text: str, mask: dcp.masks.Mask) -> None:
    assert make_mask(request_text) == mask
    assert request_text.partition(":")[0] in CONSTRUCTORS


@pytest.mark.parametrize(
    ("request_text", "message"),
    [
        ("diagonal", "there are: causal, full, sliding_window:window=INT"),
        ("lambda:sink=2,width=5", "no option 'width'; write lambda:sink=INT,window=INT"),
        ("lambda:sink=2,window=x", "window of 'lambda' is 'x'; give a whole number"),
        ("lambda", "needs sink, window"),
        ("sliding_window:window=0", "window is 0"),
        ("full:dense", "write name:option=value"),
        ("shared_question:answers=2", "question_fraction"),
        ("shared_question:question_fraction=x,answers=2", "give a number"),
    ],
)
def test_illegal_masks_say_what_is_legal(request_text: str, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        make_mask(request_text)


def test_clusters_heads_and_limits_are_read() -> None:
    assert read_cluster("2x4").num_devices == 8
    assert read_cluster("p4de:4") == dcp.Cluster.preset("p4de", nodes=4)
    assert read_cluster("p4de:4x2").devices_per_node == 2
    assert read_heads("8", 64, "float32").num_kv_heads == 8
    assert read_limits("intra_node=0.2") == dcp.Limits(intra_node=0.2)
    with pytest.raises(SpecError):
        read_cluster("p4de")


# Executing


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
