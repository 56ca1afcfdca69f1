"""Oracles, strategies and checks that prove plans right.

`check_plan` needs no torch; what does is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dcp.verification.plan_checker import PlanProof, check_plan

if TYPE_CHECKING:
    from dcp.verification.oracle import OracleResult, attention_oracle
    from dcp.verification.tolerances import check_within_budget

__all__ = [
    "OracleResult",
    "PlanProof",
    "attention_oracle",
    "check_plan",
    "check_within_budget",
]

_NEEDS_TORCH = {
    "OracleResult": "dcp.verification.oracle",
    "attention_oracle": "dcp.verification.oracle",
    "check_within_budget": "dcp.verification.tolerances",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'dcp.verification' has no attribute {name!r}")
    value = getattr(import_module(_NEEDS_TORCH[name]), name)
    globals()[name] = value
    return value
