"""Files of lengths: one a line, or JSON."""

from __future__ import annotations

import json
from pathlib import Path

from dcp.errors import WorkloadError
from dcp.mask_base import MAX_TOKENS
from dcp.workloads.documents import Documents

Batches = tuple[tuple[int, ...], ...]


def read_lengths(path: Path) -> Documents | Batches:
    """Lengths to be packed, or batches where the file holds batches already.

    Raises:
        WorkloadError: names the line or entry that cannot be read, and what is legal.
    """
    text = _read(path)
    if text.lstrip()[:1] in ("[", "{"):
        return _from_json(path, text)
    return _documents(path, _from_lines(path, text))


def _documents(path: Path, lengths: tuple[int, ...]) -> Documents:
    if not lengths:
        raise WorkloadError(f"{path} holds no lengths; write one a line, or JSON")
    return Documents(lengths=lengths, source=str(path), token_rule="as given")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"{path} is not UTF-8 text (byte {error.start}); write one length a line, or JSON"
        ) from error


def _from_lines(path: Path, text: str) -> tuple[int, ...]:
    lengths = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            lengths.append(_checked(_integer(line), f"{path}, line {number}"))
    return tuple(lengths)


def _integer(line: str) -> object:
    try:
        return int(line)
    except ValueError:
        return line.strip()


def _from_json(path: Path, text: str) -> Documents | Batches:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path} is not valid JSON: {error}") from error
    if isinstance(found, dict):
        if "batches" not in found:
            raise WorkloadError(f'{path} has no key "batches"; {_LEGAL_JSON}')
        return _batches(path, found["batches"])
    if any(isinstance(entry, list) for entry in found):
        return _batches(path, found)
    return _documents(
        path, tuple(_checked(length, f"{path}, entry {at}") for at, length in enumerate(found))
    )


_LEGAL_JSON = 'write a list of lengths, a list of lists, or {"batches": [[...], ...]}'


def _batches(path: Path, found: object) -> Batches:
    if not (isinstance(found, list) and all(isinstance(batch, list) for batch in found)):
        raise WorkloadError(f"{path} mixes lengths and batches; {_LEGAL_JSON}")
    if not found:
        raise WorkloadError(f"{path} holds no batches; {_LEGAL_JSON}")
    batches = tuple(
        tuple(
            _checked(length, f"{path}, batch {row}, entry {column}")
            for column, length in enumerate(batch)
        )
        for row, batch in enumerate(found)
    )
    for row, batch in enumerate(batches):
        if not any(batch):
            raise WorkloadError(f"{path}, batch {row} holds no tokens; leave it out")
    return batches


def _checked(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise WorkloadError(
            f"{where}: {str(value)[:40]!r} is no length; give an integer from 0 to {MAX_TOKENS}"
        )
    return value
