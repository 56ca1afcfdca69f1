"""Documents in folders, and how their tokens are counted."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dcp.errors import MissingPackageError, WorkloadError
from dcp.workloads.documents import Documents

BYTES_PER_TOKEN = 4
BYTES_RULE = f"UTF-8 bytes / {BYTES_PER_TOKEN}, rounded up"

_NO_DOCUMENTS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_CHUNK = 256  # documents that a tokenizer gets at a time


def read_text(folder: Path, tokenizer: Path | None = None) -> Documents:
    """Every file below a folder is a document; hidden files and folders are not looked at.

    Files that are not UTF-8 text and empty files are left out, which a note says.

    Raises:
        WorkloadError: no such folder, an unreadable file, or no document.
        MissingPackageError: a tokenizer without the package `tokenizers`.
    """
    if not folder.is_dir():
        raise WorkloadError(f"{folder} is not a folder; give one that holds documents")
    return _count(_files(folder), str(folder), tokenizer)


def read_standard_library(tokenizer: Path | None = None) -> Documents:
    """Python files of the standard library, without tests and installed packages.

    Raises:
        WorkloadError: this Python has no sources; says what to give instead.
        MissingPackageError: a tokenizer without the package `tokenizers`.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    files = (
        path
        for path in _files(folder)
        if path.suffix == ".py" and _NO_DOCUMENTS.isdisjoint(path.relative_to(folder).parts)
    )
    source = f"sources of the Python {sysconfig.get_python_version()} standard library"
    return _count(files, source, tokenizer)


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder in the order of their names; links to folders are not followed."""
    for parent, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _unreadable(error: OSError) -> NoReturn:
    raise WorkloadError(f"cannot read {error.filename}: {error.strerror}") from error


def _count(files: Iterator[Path], source: str, tokenizer: Path | None) -> Documents:
    texts, notes = _texts(files)
    if not texts:
        raise WorkloadError(
            f"no documents found in {source}; give a folder of UTF-8 text files, or a file of "
            "lengths" + "".join(f" ({note})" for note in notes)
        )
    if tokenizer is None:
        lengths = [-(-len(text) // BYTES_PER_TOKEN) for text in texts]
        rule = BYTES_RULE
    else:
        lengths = _tokenized(texts, tokenizer)
        rule = f"tokens of {tokenizer}, without special tokens"
    return Documents(lengths=tuple(lengths), source=source, token_rule=rule, notes=notes)


def _texts(files: Iterator[Path]) -> tuple[list[bytes], tuple[str, ...]]:
    """Contents of the documents, and what was left out."""
    texts, no_text, empty = [], [], 0
    for path in files:
        try:
            content = path.read_bytes()
            content.decode()
        except OSError as error:
            _unreadable(error)
        except UnicodeDecodeError:
            no_text.append(path)
            continue
        if content:
            texts.append(content)
        else:
            empty += 1
    notes = []
    if no_text:
        notes.append(f"files left out, not UTF-8 text: {len(no_text)}, first {no_text[0]}")
    if empty:
        notes.append(f"empty documents left out: {empty}")
    return texts, tuple(notes)


def _tokenized(texts: Sequence[bytes], path: Path) -> list[int]:
    tokenizer = _load_tokenizer(path)
    lengths: list[int] = []
    for start in range(0, len(texts), _CHUNK):
        chunk = [text.decode() for text in texts[start : start + _CHUNK]]
        encoded = tokenizer.encode_batch(chunk, add_special_tokens=False)
        lengths += [len(one.ids) for one in encoded]
    return lengths


def _load_tokenizer(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingPackageError(
            "a tokenizer file needs the package 'tokenizers', which is not installed; run "
            "pip install 'dynamic-context-parallel[train]', or leave the tokenizer out: then "
            f"tokens are {BYTES_RULE}"
        ) from error
    if not path.is_file():
        raise WorkloadError(f"{path} is not a file; give the JSON file of a tokenizer")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception
        raise WorkloadError(f"{path} is no tokenizer file: {error}") from error
