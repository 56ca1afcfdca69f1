"""Lengths and documents become batches: every form of input, what is refused, how it is packed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp import workloads
from dcp.errors import MissingPackageError, WorkloadError
from dcp.workloads.packing import cut, first_fit

Writer = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def write_file(content: str | bytes, name: str = "lengths.txt") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def _load(path: Path, tokens: int = 10, num_batches: int | None = None) -> workloads.Workload:
    return workloads.load(lengths=path, tokens=tokens, num_batches=num_batches)


# Packing


def test_a_document_goes_to_the_first_batch_with_room() -> None:
    assert first_fit([6, 5, 4, 0, 3, 9], 10, 2) == [[0, 2, 3], [1, 4]]


def test_documents_longer_than_a_batch_are_cut() -> None:
    assert cut([3, 25, 10, 0], 10, 8) == (
        [3, 10, 10, 5, 10, 0],
        [False, True, True, True, False, False],
    )


def test_cutting_makes_no_more_pieces_than_batches_can_hold() -> None:
    assert cut([2**30 + 1], 4, 2)[0] == [4, 4, 1]


@pytest.mark.property
@given(
    lengths=st.lists(st.integers(0, 50), max_size=30),
    tokens=st.integers(1, 40),
    num_batches=st.integers(1, 4),
)
def test_packing_keeps_every_token_within_its_batch(
    lengths: list[int], tokens: int, num_batches: int
) -> None:
    pieces, _ = cut(lengths, tokens, 10**6)
    assert sum(pieces) == sum(lengths)
    batches = first_fit(pieces, tokens, num_batches)
    placed = [index for batch in batches for index in batch]
    assert len(placed) == len(set(placed))
    assert len(batches) <= num_batches
    loads = [sum(pieces[index] for index in batch) for batch in batches]
    assert all(load <= tokens for load in loads)
    left_over = [length for index, length in enumerate(pieces) if index not in placed]
    assert all(length + load > tokens for length in left_over for load in loads)


# Files of lengths


def test_one_length_a_line_in_the_order_of_the_file(write: Writer) -> None:
    workload = _load(write("5\n\n  3 \n0\n2\n9\n"))
    assert workload.batches == ((5, 3, 0, 2),)
    assert workload.token_rule == "as given"
    assert workload.notes == ()


@pytest.mark.parametrize("content", ["\ufeff5\r\n3\r\n", "[5, 3]", " [5,\n3]"])
def test_lengths_may_be_lines_or_a_json_list(content: str, write: Writer) -> None:
    assert _load(write(content)).batches == ((5, 3),)


@pytest.mark.parametrize("content", ["[[5, 3], [80]]", '{"batches": [[5, 3], [80]], "seed": 1}'])
def test_batches_of_a_file_are_taken_as_they_stand(content: str, write: Writer) -> None:
    assert _load(write(content)).batches == ((5, 3), (80,))
    assert _load(write(content), num_batches=1).batches == ((5, 3),)


def test_cuts_and_missing_batches_are_noted(write: Writer) -> None:
    workload = _load(write("25"), num_batches=4)
    assert workload.batches == ((10,), (10,), (5,))
    assert workload.notes == (
        "documents longer than 10 tokens are cut; pieces here: 3",
        "4 batches were asked for, the input fills 3",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("5\nabc\n", "line 2: 'abc' is no length"),
        ("5\n\n-1\n", "line 3: '-1' is no length; give an integer from 0"),
        ("5\n1.5\n", "line 2: '1.5'"),
        ("9" * 30, "line 1"),
        ("9" * 5000, "line 1"),
        ("[5, -1]", "entry 1: '-1'"),
        ("[5, true]", "entry 1: 'True'"),
        ("[5, 2.5]", "entry 1: '2.5'"),
        ("[[5], [3, null]]", "batch 1, entry 1: 'None'"),
        ("[[5], [0, 0]]", "batch 1 holds no tokens"),
        ("[[5], []]", "batch 1 holds no tokens"),
        ("[5, [3]]", "mixes lengths and batches"),
        ('{"batches": 5}', "mixes lengths and batches"),
        ('{"batches": []}', "holds no batches"),
        ('{"lengths": [5]}', 'no key "batches"'),
        ("[5, 3", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("", "holds no lengths"),
        (" \n\n", "holds no lengths"),
        ("[]", "holds no lengths"),
        ("0\n0\n", "holds no tokens"),
        (b"5\n\xff\xfe\n", "not UTF-8 text (byte 2)"),
    ],
)
def test_illegal_lengths_are_named(content: str | bytes, message: str, write: Writer) -> None:
    with pytest.raises(WorkloadError) as error:
        _load(write(content))
    assert message in str(error.value)
    assert "lengths.txt" in str(error.value)


def test_a_missing_file_and_a_folder_in_its_place_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(WorkloadError, match="cannot read"):
            _load(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": 0}, "0 tokens a batch"),
        ({"tokens": 8, "num_batches": 0}, "0 batches"),
        ({"tokens": 8, "text": Path()}, "both lengths and a text folder"),
        ({"tokens": 8, "tokenizer": Path("t.json")}, "leave one out"),
    ],
)
def test_contradictory_arguments_are_refused(
    arguments: dict[str, Any], message: str, write: Writer
) -> None:
    with pytest.raises(WorkloadError, match=message):
        workloads.load(lengths=write("5"), **arguments)


# Folders of documents


def test_tokens_of_documents_are_bytes_over_four_rounded_up(write: Writer, tmp_path: Path) -> None:
    write("abcd", "docs/a.txt")
    write("äbcd", "docs/b/b.txt")  # five bytes in UTF-8
    workload = workloads.load(text=tmp_path / "docs", tokens=10)
    assert sorted(workload.batches[0]) == [1, 2]
    assert workload.token_rule == "UTF-8 bytes / 4, rounded up"
    assert workload.source == str(tmp_path / "docs")


def test_files_that_are_no_documents_are_left_out_and_noted(write: Writer, tmp_path: Path) -> None:
    write("abcdefgh", "docs/a.txt")
    write("", "docs/empty.txt")
    write(b"\xff\xfe\x00", "docs/picture.bin")
    write("hidden", "docs/.hidden")
    write("hidden", "docs/.git/config")
    (tmp_path / "docs" / "dangling").symlink_to(tmp_path / "nothing")
    workload = workloads.load(text=tmp_path / "docs", tokens=10)
    assert workload.batches == ((2,),)
    no_text, empty = workload.notes
    assert no_text.startswith("files left out, not UTF-8 text: 1, first ")
    assert no_text.endswith("picture.bin")
    assert empty == "empty documents left out: 1"


def test_a_folder_without_documents_is_refused(write: Writer, tmp_path: Path) -> None:
    write(b"\xff", "docs/a")
    with pytest.raises(WorkloadError, match=r"no documents found.*left out, not UTF-8"):
        workloads.load(text=tmp_path / "docs", tokens=10)
    with pytest.raises(WorkloadError, match="is not a folder"):
        workloads.load(text=tmp_path / "docs" / "a", tokens=10)


def test_the_standard_library_packs_the_same_for_the_same_seed() -> None:
    first = workloads.load(tokens=65536, num_batches=2, seed=3)
    assert first == workloads.load(tokens=65536, num_batches=2, seed=3)
    assert first.batches != workloads.load(tokens=65536, num_batches=2, seed=4).batches
    assert len(first.batches) == 2
    assert all(65000 < sum(batch) <= 65536 for batch in first.batches)
    assert "standard library" in first.source


# Tokenizers


def test_a_tokenizer_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, write: Writer, tmp_path: Path
) -> None:
    write("abcd", "docs/a.txt")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingPackageError, match=r"dynamic-context-parallel\[train\]"):
        workloads.load(text=tmp_path / "docs", tokenizer=tmp_path / "t.json", tokens=10)


def test_a_tokenizer_counts_the_tokens_of_documents(write: Writer, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    write("one two three", "docs/a.txt")
    write("four", "docs/b.txt")
    workload = workloads.load(text=tmp_path / "docs", tokenizer=tmp_path / "t.json", tokens=10)
    assert sorted(workload.batches[0]) == [1, 3]
    assert "t.json" in workload.token_rule


def test_a_file_that_is_no_tokenizer_is_refused(write: Writer, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    write("abcd", "docs/a.txt")
    for path, message in ((write("{}", "t.json"), "no tokenizer file"), (tmp_path, "not a file")):
        with pytest.raises(WorkloadError, match=message):
            workloads.load(text=tmp_path / "docs", tokenizer=path, tokens=10)
