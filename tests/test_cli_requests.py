"""What is asked of the `dcp` command: masks, clusters, heads and limits, and bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import BROKEN, SMALL, run

import dcp
from dcp.cli.mask_requests import CONSTRUCTORS, make_mask
from dcp.cli.options import read_cluster, read_heads, read_limits
from dcp.errors import MaskError, SpecError

LONG_NUMBER = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mask", "causl"], "no mask is named 'causl'; there are: causal, full"),
        (["--mask", "lambda:sink=4"], "'lambda' needs window"),
        (["--cluster", "2by4"], "write NODESxDEVICES"),
        (["--cluster", "0x4"], "nodes is 0"),
        (["--cluster", "cray:4"], "preset is 'cray'; legal: p4de"),
        (["--heads", "8:2"], "write QUERY/KEY"),
        (["--heads", "8/3"], "must be a multiple"),
        (["--head-dim", "0"], "head_dim is 0"),
        (["--dtype", "int8"], "dtype is 'int8'; legal: float64"),
        (["--block-size", "0"], "block_size is 0"),
        (["--block-size", "many"], "write a whole number or auto"),
        (["--limits", "intra=0.1"], "legal: inter_node, intra_node, device, tokens"),
        (["--limits", "intra_node"], "limit 'intra_node' cannot be read; write NAME=FRACTION"),
        (["--limits", "device=0.1,device=0.2"], "each name once"),
        (["--limits", "tokens=1e308"], "limit tokens is 1e+308"),
        (["--limits", "intra_node=-1"], "must be finite and 0 or more"),
        (["--limits", "intra_node=much"], "cannot be read"),
        (["--budget", "nan"], "budget is nan"),
        (["--keep-bytes", LONG_NUMBER], "a number has 5000 digits; it must fit 64 bits"),
        (["--cluster", f"2x{LONG_NUMBER}"], "a number has 5000 digits; it must fit 64 bits"),
        (["--heads", LONG_NUMBER], "a number has 5000 digits; it must fit 64 bits"),
        (["--keep-bytes", "-1"], "write a whole number or all"),
        (["--keep-bytes", "1MB"], "write a whole number or all"),
        (["--tokens", "0"], "0 tokens a batch"),
        (["--batches", "0"], "0 batches"),
        (["--partitioner", "metis"], "no partitioner is named 'metis'; there are: "),
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


@pytest.mark.parametrize(
    "arguments",
    [("plan", "--out"), ("compare", "--select"), ("simulate", "--trace"), ("profile", "--trace")],
    ids=lambda arguments: arguments[0],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(
    arguments: tuple[str, str], tmp_path: Path
) -> None:
    nothing = ("--lengths", "nowhere.txt")
    result = run(*arguments, tmp_path / "no" / "file", *nothing)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: cannot write {tmp_path}/no/file: there is no folder {tmp_path}/no; give a file "
        "in a folder that is there and that you may write to\n"
    )
    result = run(*arguments, tmp_path, *nothing)
    assert f"cannot write {tmp_path}: it is a folder" in result.stderr


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_may_not_be_written_is_refused_before_anything_is_read(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root everything may be written, so what the system says is made up."""
    file = tmp_path / "plan"
    if there:
        file.touch()
    denied = file if there else tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK and path == denied))
    result = run("plan", "--out", file, "--lengths", "nowhere.txt")
    assert result.exit_code == 2
    assert f"cannot write {file}: permission is denied" in result.stderr


def test_a_file_that_holds_no_plan_is_named(lengths: Path) -> None:
    result = run("simulate", lengths)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {lengths}: not a plan")


def test_a_fault_is_one_line_and_exit_code_1(lengths: Path, partitioners: dict[str, str]) -> None:
    partitioners["broken"] = BROKEN
    result = run("plan", "--lengths", lengths, *SMALL, "--partitioner", "broken")
    assert result.exit_code == 1
    assert result.stderr == "error: the solver crashed\n"


def test_unknown_options_are_refused() -> None:
    assert run("compare", "--colour").exit_code == 2


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
    assert read_limits("") == read_limits(" ") == dcp.Limits()
    assert read_limits(" device = 0.1, tokens=0 ,") == dcp.Limits(device=0.1, tokens=0)
    every = "inter_node=0.3,intra_node=0.2,device=0.1,tokens=0.05"
    assert read_limits(every) == dcp.Limits(inter_node=0.3, intra_node=0.2, device=0.1, tokens=0.05)
    with pytest.raises(SpecError):
        read_cluster("p4de")
