"""Dynamic context parallelism: plan attention over many devices afresh for every batch.

Planning needs no torch. What executes plans does, and is loaded on first use, as is what proves
them.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from dcp import masks
from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster, Link
from dcp.errors import DcpError
from dcp.execution_plan import ExecutionPlan
from dcp.placement import Limits
from dcp.plan_cache import PlanCache
from dcp.planner import plan
from dcp.report import PlanReport
from dcp.selection import SelectionTable

if TYPE_CHECKING:
    from dcp import verification
    from dcp.runtime.context_parallel import ContextParallel
    from dcp.runtime.local import run_local

    __version__: str

__all__ = [
    "AttentionSpec",
    "Batch",
    "Cluster",
    "ContextParallel",
    "DcpError",
    "ExecutionPlan",
    "Limits",
    "Link",
    "PlanCache",
    "PlanReport",
    "SelectionTable",
    "masks",
    "plan",
    "run_local",
    "verification",
]

_LOADED_ON_USE = {
    "ContextParallel": "dcp.runtime.context_parallel:ContextParallel",
    "run_local": "dcp.runtime.local:run_local",
    "verification": "dcp.verification:",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module 'dcp' has no attribute {name!r}")
    module, _, attribute = _LOADED_ON_USE[name].partition(":")
    loaded = import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def _version() -> str:
    try:
        return metadata.version("dynamic-context-parallel")
    except metadata.PackageNotFoundError:
        raise AttributeError(
            "dcp has no __version__: it runs from a checkout that is not installed; install it "
            "with pip install -e ."
        ) from None
