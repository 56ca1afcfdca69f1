"""The text of a range in an NVTX profile: written by the executor, read back from an export."""

from __future__ import annotations

import re
from typing import get_args

from dcp.profiling.trace import Range, SpanKind, Subject
from dcp.scheduling import PHASES

DIGEST_LETTERS = 12

_FORM = re.compile(
    rf"(?P<kind>{'|'.join(get_args(SpanKind))}) (?:(?P<division>\d+) )?"
    rf"plan=(?P<digest>[0-9a-f]{{{DIGEST_LETTERS}}}) rank=(?P<rank>\d+) "
    rf"phase=(?P<phase>{'|'.join(PHASES)}) bytes=(?P<bytes>\d+) pairs=(?P<pairs>\d+)"
)


def text(subject: Subject, what: Range) -> str:
    """For example `attention 3 plan=0123456789ab rank=1 phase=forward bytes=0 pairs=524800`."""
    division = "" if what.division < 0 else f"{what.division} "
    return (
        f"{what.kind} {division}plan={subject.digest[:DIGEST_LETTERS]} rank={subject.rank} "
        f"phase={subject.phase} bytes={what.bytes} pairs={what.pairs}"
    )


def parse(text: str) -> tuple[Subject, Range] | None:
    """The inverse of `text`, with what it keeps of the digest; None for a text of another form."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    digest, rank, phase, kind, division, size, pairs = found.group(
        "digest", "rank", "phase", "kind", "division", "bytes", "pairs"
    )
    subject = Subject(digest=digest, rank=int(rank), phase=phase)  # type: ignore[arg-type]
    number = -1 if division is None else int(division)
    return subject, Range(kind, number, int(size), int(pairs))  # type: ignore[arg-type]
