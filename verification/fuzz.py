"""Random requests, planned, proven and run against the oracle until one fails or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from dcp.batch import DTYPE_BYTES
from dcp.checks import check_choice, check_integer, check_number
from dcp.verification.local_run import check_numbers
from dcp.verification.plan_checker import check_plan
from dcp.verification.strategies import Case, cases

_EXAMPLES_A_ROUND = 50


@dataclass(frozen=True, kw_only=True)
class FuzzResult:
    """What fuzzing found.

    Attributes:
        examples: Requests that were tried and held.
        case: The smallest request found that does not hold; None where all do, and where making
            a request is what failed.
        error: What is wrong with it; None where nothing is.
    """

    examples: int
    case: Case | None = None
    error: Exception | None = None


def check_case(case: Case, data_seed: int = 0) -> None:
    """Plan a request, prove the plan, run it and hold it against the oracle.

    Raises:
        PlanCheckError: the plan is wrong.
        AssertionError: a result is beyond its error budget.
    """
    plan = case.plan()
    check_plan(plan)
    check_numbers(case.batch, plan, seed=data_seed)


def fuzz(
    *,
    seconds: float | None = None,
    examples: int | None = None,
    first_seed: int = 0,
    dtype: str = "float64",
    check: Callable[[Case, int], None] = check_case,
) -> FuzzResult:
    """Try random requests; the first that fails is made as small as possible.

    Args:
        seconds: Stop after the round of 50 requests that passes this time; None for no limit.
        examples: Stop after this many requests; None for no limit.
        first_seed: Equal seeds try equal requests.
        dtype: Dtype of the tensors.
        check: What has to hold for a request and a seed of its tensors.

    Raises:
        SpecError: an illegal number, or an unknown dtype.
    """
    if seconds is not None:
        check_number("seconds", seconds)
    if examples is not None:
        check_integer("examples", examples)
    check_integer("first_seed", first_seed, least=0)
    check_choice("dtype", dtype, DTYPE_BYTES)
    most = math.inf if examples is None else examples
    end = math.inf if seconds is None else time.monotonic() + seconds
    tried, round_seed = 0, first_seed
    while tried < most and time.monotonic() < end:
        count = int(min(_EXAMPLES_A_ROUND, most - tried))
        found = _round(round_seed, count, dtype, check)
        if found.error is not None:
            return replace(found, examples=tried + found.examples)
        tried, round_seed = tried + count, round_seed + 1
    return FuzzResult(examples=tried)


def _round(
    round_seed: int, examples: int, dtype: str, check: Callable[[Case, int], None]
) -> FuzzResult:
    current: Case | None = None
    held, has_failed = 0, False

    @seed(round_seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(data=st.data())
    def attempt(data: st.DataObject) -> None:
        nonlocal current, held, has_failed
        current = None
        try:
            current = data.draw(cases(dtype))
            check(current, data.draw(st.integers(0, 2**16)))
        except UnsatisfiedAssumption:
            raise  # no request was made, and none is wrong
        except Exception:
            has_failed = True
            raise
        held += not has_failed  # after the first failure, it is only made smaller

    try:
        attempt()
    except Exception as error:  # whatever it is, it is the finding
        # Hypothesis ends with the smallest failing request.
        return FuzzResult(examples=held, case=current, error=error)
    return FuzzResult(examples=held)
