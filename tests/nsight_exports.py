"""Small SQLite files in the form of exports of Nsight Systems."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dcp.profiling import range_text
from dcp.profiling.trace import Range, SpanKind, Subject
from dcp.scheduling import Phase

PUSH_POP, DOMAIN_CREATE = 59, 75


def thread_of(rank: int) -> int:
    """Global id of the only thread of a rank's process."""
    return (1 << 56) | (100 + rank) << 24 | (200 + rank)


def process_of(rank: int) -> int:
    """Global id of a rank's process."""
    return thread_of(rank) >> 24 << 24


@dataclass(kw_only=True)
class Export:
    """What a profile has seen; times in nanoseconds."""

    digest: str
    ranges: list[tuple[int, int, int, str]] = field(default_factory=list)
    work: list[tuple[str, int, int, int, int, str]] = field(default_factory=list)

    def range(
        self,
        rank: int,
        phase: Phase,
        kind: SpanKind,
        division: int,
        begin: int,
        end: int,
        size: int = 0,
    ) -> None:
        """Add a range of the executor."""
        text = range_text.text(Subject(self.digest, rank, phase), Range(kind, division, size, 0))
        self.ranges.append((thread_of(rank), begin, end, text))

    def gpu(
        self, rank: int, launched: int, begin: int, end: int, name: str, table: str = "KERNEL"
    ) -> None:
        """Add work on a GPU, and the call that started it."""
        self.work.append((table, rank, launched, begin, end, name))

    def write(self, path: Path, *, strings: bool = True, without: Iterable[str] = ()) -> Path:
        """Write the file.

        Args:
            path: Where.
            strings: Whether texts of ranges stand in StringIds, as newer versions put them.
            without: Tables to leave out.
        """
        with closing(sqlite3.connect(path)) as database, database:
            self._write_ranges(database, strings)
            if self.work:
                self._write_work(database)
            for table in without:
                database.execute(f"DROP TABLE {table}")
        return path

    def _write_ranges(self, database: sqlite3.Connection, strings: bool) -> None:
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        shared = ", textId INTEGER" if strings else ""
        database.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, "
            f"globalTid INTEGER, domainId INTEGER{shared})"
        )
        database.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) "
            "VALUES (0, ?, 'dcp', 0, 1)",
            (DOMAIN_CREATE,),
        )
        for number, (thread, begin, end, text) in enumerate(self.ranges, start=1000):
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (number, text))
            column, value = ("textId", number) if strings else ("text", text)
            database.execute(
                f"INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, domainId, {column}) "
                "VALUES (?, ?, ?, ?, 1, ?)",
                (begin, end, PUSH_POP, thread, value),
            )

    def _write_work(self, database: sqlite3.Connection) -> None:
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME "
            "(start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER)"
        )
        for table in {table for table, *_ in self.work}:
            database.execute(
                f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} (start INTEGER, end INTEGER, "
                "globalPid INTEGER, correlationId INTEGER, shortName INTEGER)"
            )
        numbers = dict[int, int]()
        for index, (table, rank, launched, begin, end, name) in enumerate(self.work):
            # Every process counts on its own.
            number = numbers[rank] = numbers.get(rank, 0) + 1
            database.execute("INSERT INTO StringIds VALUES (?, ?)", (index, name))
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)",
                (launched, launched + 1, thread_of(rank), number),
            )
            database.execute(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES (?, ?, ?, ?, ?)",
                (begin, end, process_of(rank), number, index),
            )
