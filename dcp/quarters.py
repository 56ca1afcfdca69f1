"""Quarters of a step: when things happen inside a program.

Step s waits and reduces at 4s, launches step s+1 at 4s+1, computes division s at 4s+2 and copies
final results at 4s+3. A content lives from the quarter that first writes it to the quarter that
last reads it.
"""

from __future__ import annotations

from typing import TypeVar

from dcp.arrays import IntArray

Time = TypeVar("Time", int, IntArray)


def wait_time(step: Time) -> Time:
    """When messages of a step have arrived and partial results among them are merged."""
    return 4 * step


def launch_time(step: Time) -> Time:
    """When messages of a step start: as the division before begins."""
    return 4 * (step - 1) + 1


def attention_time(division: Time) -> Time:
    """When a division computes."""
    return 4 * division + 2


def copy_time(last_write: Time) -> Time:
    """When a result that was last written at this time is copied to its home."""
    return 4 * (last_write // 4) + 3
