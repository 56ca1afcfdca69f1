"""Exports of Nsight Systems: ranges and work on GPUs, decomposed, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsight_exports import Export
from timelines import (
    export_of_processes,
    nanoseconds,
    plan_of,
)

from dcp.errors import ProfileError
from dcp.profiling.decomposition import decompose
from dcp.profiling.nsight import read_export


@pytest.mark.parametrize("strings", [True, False], ids=["string table", "text in the row"])
def test_ranges_of_an_export_are_decomposed(tmp_path: Path, strings: bool) -> None:
    plan = plan_of()
    file = export_of_processes(plan).write(tmp_path / "a.sqlite", strings=strings)
    trace = read_export(file, plan)
    (found,) = decompose(trace, 2)
    assert found.runs == 2
    # Messages are under way from the later launch, which ends at 30 from rank 0's begin.
    assert [nanoseconds(parts) for parts in found.ranks] == [
        [35, 70, 60, 35, 10],
        [35, 80, 50, 35, 10],
    ]
    assert decompose(read_export(file, plan, skip_runs=1), 2)[0].runs == 1


def test_work_on_gpus_is_decomposed_by_when_it_ran(tmp_path: Path) -> None:
    """The host is done long before: its ranges say only what started what."""
    plan = plan_of()
    export = Export(digest=plan.digest)
    export.range(0, "forward", "setup", -1, 0, 1)
    export.range(0, "forward", "phase", -1, 1, 60)
    export.range(0, "forward", "launch", 0, 10, 20)
    export.range(0, "forward", "attention", 0, 20, 30)
    export.range(0, "forward", "wait", 1, 30, 40, 4096)
    export.range(0, "forward", "attention", 1, 40, 50)
    export.range(0, "forward", "copy", 1, 50, 60)
    export.range(1, "forward", "setup", -1, 0, 1)
    export.range(1, "forward", "attention", 0, 20, 30)
    export.gpu(0, 5, 0, 7000, "kernel of somebody else")
    export.gpu(0, 12, 1000, 1010, "pack", "MEMCPY")
    export.gpu(0, 15, 1010, 1300, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)")
    export.gpu(0, 22, 1020, 1120, "flash_fwd_kernel")
    export.gpu(0, 25, 1130, 1180, "flash_fwd_kernel")
    export.gpu(0, 42, 1300, 1500, "flash_fwd_kernel")
    export.gpu(0, 55, 1510, 1530, "cast")
    export.gpu(1, 22, 1005, 1405, "flash_fwd_kernel")
    trace = read_export(export.write(tmp_path / "a.sqlite"), plan)
    (found,) = decompose(trace, 2)
    # Rank 0 communicates alone in 1010-1020, 1120-1130 and 1180-1300.
    assert [nanoseconds(parts) for parts in found.ranks] == [
        [140, 150, 200, 40, 0],
        [0, 0, 400, 0, 130],
    ]
    (message,) = trace.flights
    assert (message.dst, message.division, message.bytes) == (0, 1, 4096)


def test_an_export_without_what_is_needed_is_refused(tmp_path: Path) -> None:
    plan = plan_of()
    export = export_of_processes(plan)
    missing = tmp_path / "missing.sqlite"
    with pytest.raises(ProfileError, match=r"no file .*missing\.sqlite"):
        read_export(missing, plan)
    garbage = tmp_path / "garbage.sqlite"
    garbage.write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(ProfileError, match="is no SQLite export"):
        read_export(garbage, plan)
    empty = export.write(tmp_path / "empty.sqlite", without=["NVTX_EVENTS"])
    with pytest.raises(ProfileError, match=r"no table NVTX_EVENTS.*--trace=nvtx,cuda"):
        read_export(empty, plan)
    with pytest.raises(ProfileError, match=r"no ranges of plan .*package nvtx"):
        read_export(export.write(tmp_path / "a.sqlite"), plan_of(baseline="zigzag"))
    export.gpu(0, 125, 130, 140, "flash_fwd_kernel")
    half = export.write(tmp_path / "half.sqlite", without=["CUPTI_ACTIVITY_KIND_RUNTIME"])
    with pytest.raises(ProfileError, match="no table CUPTI_ACTIVITY_KIND_RUNTIME"):
        read_export(half, plan)
