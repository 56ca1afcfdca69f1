"""`auto`: a small portfolio of candidates, of which simulated time picks one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import itemgetter

from dcp.errors import SpecError
from dcp.placement import Partitioner
from dcp.planning_job import Candidate, PlanningJob, backend_of
from dcp.scheduling import EventModel, Scheduler
from dcp.selection import Winner

logger = logging.getLogger("dcp")

# Even computing against few bytes: what pays is for simulated time to say, not for a fixed limit.
# The search takes all the imbalance it may have for bytes, so it is held to less than is asked
# for; greedy weighs one against the other.
PLANNED: tuple[tuple[str, float | None], ...] = (
    ("local_search:inter_weight=4", 0.1),
    ("greedy", None),
)
SCHEDULER = "overlap"
BASELINES = ("zigzag", "usp", "ulysses", "ring", "allgather")


def choose(
    job: PlanningJob,
    partitioner: str | Partitioner,
    scheduler: str | Scheduler,
    *,
    winner: Winner | None,
    limits_bind: bool,
) -> Candidate:
    """The candidate with the least simulated time; logs the choice and why, once.

    Args:
        job: What to plan.
        partitioner, scheduler: Requests or instances; "auto" stands for the portfolio, and with
            "auto" for both the static schemes compete too.
        winner: What a selection table knows of such batches.
        limits_bind: Whether a candidate over a limit loses to any that keeps all.
    """
    all_open = partitioner == "auto" and scheduler == "auto"
    tried: Sequence[tuple[str | Partitioner, float | None]] = [(partitioner, None)]
    if partitioner == "auto":
        known = winner.partitioner if winner else None
        tried = [(known, None)] if known else PLANNED
    if scheduler == "auto":
        scheduler = (winner.scheduler if winner else None) or SCHEDULER
    candidates = [job.planned(name, scheduler, device_limit=limit) for name, limit in tried]
    left_out: list[str] = []
    if all_open:
        for least_s, name in _static_schemes(job, winner):
            _add_static(job, name, least_s, candidates, left_out)
    keeping = [candidate for candidate in candidates if candidate.placement.feasible]
    best = min(keeping if limits_bind and keeping else candidates, key=_total_s)
    if len(candidates) + len(left_out) > 1:
        logger.info("auto chose %s of %s", best.origin, _account(candidates, left_out))
    return best


def _static_schemes(job: PlanningJob, winner: Winner | None) -> list[tuple[float, str]]:
    """Least time of every static scheme, and its request; the most promising first.

    Times are known for the built-in cost model only; elsewhere they are 0.
    """
    names = list(BASELINES)
    if winner and winner.baseline and winner.baseline not in names:
        names.append(winner.baseline)
    if not isinstance(job.cost_model, EventModel):
        return [(0.0, name) for name in names]
    schemes = [(backend_of("baselines", name).least_seconds(job.request), name) for name in names]
    return sorted(schemes, key=itemgetter(0))


def _add_static(
    job: PlanningJob, name: str, least_s: float, candidates: list[Candidate], left_out: list[str]
) -> None:
    """Add a static scheme, unless it cannot serve the request or cannot be faster."""
    if least_s >= min(candidate.total_s for candidate in candidates):
        left_out.append(f"{name}: its messages and work alone take {least_s * 1e3:.3f} ms")
        return
    try:
        candidates.append(job.static(name))
    except SpecError as error:
        left_out.append(f"{name}: {error}")


def _total_s(candidate: Candidate) -> float:
    return candidate.total_s


def _account(candidates: list[Candidate], left_out: list[str]) -> str:
    times = []
    for each in candidates:
        remark = "" if each.placement.feasible else " (over a limit)"
        times.append(f"{each.origin} {each.total_s * 1e3:.3f} ms{remark}")
    return "simulated times " + ", ".join(times) + "".join(f"; left out {one}" for one in left_out)
