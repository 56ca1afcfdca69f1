"""Batches of lengths to plan for: read from files or folders, and packed.

Lengths come from a file, from a folder of documents, or from the Python standard library's own
sources, real documents that every machine has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dcp.errors import WorkloadError
from dcp.workloads.documents import Documents
from dcp.workloads.lengths import read_lengths
from dcp.workloads.packing import cut, first_fit
from dcp.workloads.text import read_standard_library, read_text

__all__ = ["Documents", "Workload", "load", "pack"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Batches of sequence lengths, and where they come from.

    Attributes:
        batches: Lengths of the sequences of each batch, in tokens.
        source: What was read.
        token_rule: How the tokens of a document were counted.
        notes: What a reader of results has to know: cuts, documents left out, missing batches.
    """

    batches: tuple[tuple[int, ...], ...]
    source: str
    token_rule: str
    notes: tuple[str, ...] = ()


def load(
    *,
    lengths: Path | None = None,
    text: Path | None = None,
    tokenizer: Path | None = None,
    tokens: int,
    num_batches: int | None = None,
    seed: int = 0,
) -> Workload:
    """Read lengths and pack them into batches.

    Args:
        lengths: File with one length a line, or with JSON: a list of lengths, a list of batches
            (lists of lengths), or an object {"batches": [...]}.
        text: Folder of documents. Without it and `lengths`, the standard library's sources.
        tokenizer: File of the `tokenizers` package that counts the tokens of documents.
        tokens: Most tokens a batch. Batches that a file holds already are taken as they stand.
        num_batches: Most batches; None for one, or for all that a file holds already.
        seed: Shuffles documents; a file of lengths keeps its order.

    Raises:
        WorkloadError: unreadable, empty or contradictory input.
        MissingPackageError: a tokenizer without the package `tokenizers`.
    """
    _check_arguments(lengths, text, tokenizer, tokens, num_batches)
    if lengths is None:
        documents = read_standard_library(tokenizer) if text is None else read_text(text, tokenizer)
        return pack(documents.shuffled(seed), tokens, num_batches or 1)
    found = read_lengths(lengths)
    if isinstance(found, Documents):
        return pack(found, tokens, num_batches or 1)
    return Workload(
        batches=found[:num_batches],
        source=str(lengths),
        token_rule="as given",
        notes=_missing_batches(len(found), num_batches),
    )


def pack(documents: Documents, tokens: int, num_batches: int) -> Workload:
    """Pack documents into batches: each into the first batch that has room for it.

    Args:
        documents: Lengths in order.
        tokens: Most tokens a batch; longer documents are cut into pieces of this many.
        num_batches: Most batches; documents that fit in none of them are left over.

    Raises:
        WorkloadError: no document has a token.
    """
    if not any(documents.lengths):
        raise WorkloadError(f"{documents.source} holds no tokens; there is nothing to plan")
    lengths, is_piece = cut(documents.lengths, tokens, num_batches)
    members = first_fit(lengths, tokens, num_batches)
    notes = documents.notes
    pieces = sum(is_piece[index] for batch in members for index in batch)
    if pieces:
        notes += (f"documents longer than {tokens} tokens are cut; pieces here: {pieces}",)
    return Workload(
        batches=tuple(tuple(lengths[index] for index in batch) for batch in members),
        source=documents.source,
        token_rule=documents.token_rule,
        notes=notes + _missing_batches(len(members), num_batches),
    )


def _missing_batches(found: int, asked: int | None) -> tuple[str, ...]:
    if asked is None or found >= asked:
        return ()
    return (f"{asked} batches were asked for, the input fills {found}",)


def _check_arguments(
    lengths: Path | None,
    text: Path | None,
    tokenizer: Path | None,
    tokens: int,
    num_batches: int | None,
) -> None:
    if lengths is not None and text is not None:
        raise WorkloadError("both lengths and a text folder were given; give one of them")
    if lengths is not None and tokenizer is not None:
        raise WorkloadError("a tokenizer counts documents, but lengths were given; leave one out")
    if tokens < 1:
        raise WorkloadError(f"{tokens} tokens a batch were asked for; give 1 or more")
    if num_batches is not None and num_batches < 1:
        raise WorkloadError(f"{num_batches} batches were asked for; give 1 or more")
