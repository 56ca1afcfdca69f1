"""Quarters of a step: when things happen inside a program (see `dcp.lowering`)."""

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
