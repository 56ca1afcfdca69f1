"""What backward derives from the results of forward before its program runs."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from dcp.runtime.autograd import delta_of


@pytest.mark.parametrize(("device", "sums"), [("cpu", 3), ("meta", 1)])
def test_row_sums_are_taken_in_parts_on_cpus_only(device: str, sums: int) -> None:
    """Elsewhere every part would be launches of its own."""
    out, lse = torch.ones(600, 2, 8, device=device), torch.ones(600, 2, device=device)
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        delta = delta_of(out, out, lse, None)
    assert delta.shape == lse.shape
    assert sum(event.name == "aten::sum" for event in watched.events()) == sums


def test_no_rows_have_no_sums() -> None:
    out, lse = torch.ones(0, 2, 8), torch.ones(0, 2)
    for device in ("cpu", "meta"):
        x, sums = out.to(device), lse.to(device)
        assert delta_of(x, x, sums, sums).shape == (0, 2)
