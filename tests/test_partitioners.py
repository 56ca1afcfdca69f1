"""Partitioners answer every problem within the limits, repeatably and at few bytes."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioner_problems import (
    EIGHT_BY_TWO,
    FOUR_BY_EIGHT,
    PROBLEMS,
    digest,
    problem_of,
    random_problem,
    workload,
)

from dcp import masks, registry
from dcp.batch import Batch
from dcp.errors import BackendError, MissingPackageError, SpecError
from dcp.packing import pack_longest_first
from dcp.placement import Assignment, Limits, PlacementProblem, evaluate

TESTS = Path(__file__).resolve().parent
NEEDED = {"local_search": None, "greedy": None, "kahypar": "kahypar", "mtkahypar": "mtkahypar"}
PRESETS = ["deterministic_quality", "default", "quality", "highest_quality", "large_k"]


def partitioner(request: str) -> Any:
    """The backend asked for, or a skip that says what is missing."""
    package = NEEDED[request.partition(":")[0]]
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install dynamic-context-parallel[{package}]")
    return registry.create("partitioners", request)


@cache
def answer_of(request: str, name: str) -> tuple[PlacementProblem, Assignment]:
    problem = PROBLEMS[name]()
    return problem, partitioner(request).place(problem)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("request_", NEEDED)
def test_every_answer_is_valid_and_within_the_limits(request_: str, name: str) -> None:
    problem, answer = answer_of(request_, name)
    assert evaluate(problem, answer).violations == ()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ["causal", "lambda", "fewer blocks than devices", "no tokens"])
def test_every_preset_of_mtkahypar_answers(preset: str, name: str) -> None:
    problem = PROBLEMS[name]()
    answer = partitioner(f"mtkahypar:preset={preset}").place(problem)
    assert evaluate(problem, answer).feasible


@pytest.mark.parametrize("name", ["causal", "cross-attention", "three nodes"])
@pytest.mark.parametrize(
    "request_", [*NEEDED, "mtkahypar:preset=deterministic_quality", "mtkahypar:threads=2"]
)
def test_equal_problems_have_equal_answers(request_: str, name: str) -> None:
    _, answer = answer_of(request_, name)
    again = partitioner(request_).place(PROBLEMS[name]())
    assert digest(again) == digest(answer)


@pytest.mark.parametrize("request_", NEEDED)
def test_answers_do_not_depend_on_the_process(request_: str) -> None:
    _, answer = answer_of(request_, "causal")
    code = (
        "from partitioner_problems import PROBLEMS, digest; from dcp import registry; "
        f"made = registry.create('partitioners', {request_!r}); "
        "print(digest(made.place(PROBLEMS['causal']())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [digest(answer)]


def test_the_number_of_threads_changes_no_deterministic_answer() -> None:
    _, one = answer_of("mtkahypar", "causal")
    _, two = answer_of("mtkahypar:threads=2", "causal")
    assert digest(one) == digest(two)


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**40])
@pytest.mark.parametrize("request_", NEEDED)
def test_any_integer_is_a_seed(request_: str, seed: int) -> None:
    problem = replace(PROBLEMS["causal"](), seed=seed)
    assert evaluate(problem, partitioner(request_).place(problem)).feasible


@pytest.mark.parametrize("request_", NEEDED)
def test_little_and_much_budget_hold_the_limits(request_: str) -> None:
    problem = PROBLEMS["causal"]()
    for budget in (0.1, 3.0):
        answer = partitioner(request_).place(replace(problem, budget=budget))
        assert evaluate(problem, answer).feasible


# --- Workloads -----------------------------------------------------------------------------------

CAUSAL, LAMBDA = masks.causal(), masks.lambda_mask(64, 4096)
WORKLOADS = [
    ("ldc_like_x1", CAUSAL, EIGHT_BY_TWO),
    ("ldc_like_x1", LAMBDA, FOUR_BY_EIGHT),
    ("longalign_like", CAUSAL, EIGHT_BY_TWO),
    ("single_long", CAUSAL, FOUR_BY_EIGHT),
]


def packed(problem: PlacementProblem) -> Assignment:
    """Within the limits and blind to bytes: both kinds of block longest first."""
    devices = problem.cluster.num_devices
    return Assignment(
        pack_longest_first(problem.token_tokens, devices),
        pack_longest_first(problem.comp_flops, devices),
    )


@pytest.mark.parametrize(("name", "mask", "cluster"), WORKLOADS)
@pytest.mark.parametrize("request_", NEEDED)
def test_workloads_hold_both_limits_and_send_a_third_of_a_blind_packing(
    request_: str, name: str, mask: Any, cluster: Any
) -> None:
    problem = workload(name, mask, cluster)
    placement = evaluate(problem, partitioner(request_).place(problem))
    assert placement.violations == ()
    assert placement.volume_bytes < evaluate(problem, packed(problem)).volume_bytes / 3


@pytest.mark.parametrize(("name", "mask", "cluster"), WORKLOADS)
@pytest.mark.parametrize("request_", NEEDED)
def test_workloads_hold_a_limit_on_every_device(
    request_: str, name: str, mask: Any, cluster: Any
) -> None:
    problem = workload(name, mask, cluster, limits=Limits(device=0.1))
    placement = evaluate(problem, partitioner(request_).place(problem))
    assert placement.violations == ()
    assert placement.compute_imbalance <= 1.1


@pytest.mark.parametrize("name", ["ldc_like_x0.5", "ldc_like_x1", "ldc_like_x4"])
@pytest.mark.parametrize("cluster", [EIGHT_BY_TWO, FOUR_BY_EIGHT])
def test_greedy_sends_less_than_half_of_a_ring(name: str, cluster: Any) -> None:
    """Zigzag or not, a ring passes all keys by all devices."""
    problem = workload(name, CAUSAL, cluster)
    ring = int(problem.kv_side_bytes.sum()) * (cluster.num_devices - 1)
    placement = evaluate(problem, partitioner("greedy").place(problem))
    assert placement.volume_bytes < ring / 2


@pytest.mark.parametrize(
    ("lengths", "block_size", "most_s"),
    [([131072], 2048, 0.15), ([131072], 1024, 0.5), ([13] * 10_000, 2048, 2.0)],
)
def test_greedy_is_fast(lengths: list[int], block_size: int, most_s: float) -> None:
    """Processor time, and twice what it may take, because tests share their machine."""
    problem = problem_of(Batch(lengths), EIGHT_BY_TWO, block_size=block_size)
    start = time.process_time()
    partitioner("greedy").place(problem)
    assert time.process_time() - start < 2 * most_s


def test_greedy_keeps_short_sequences_whole() -> None:
    problem = problem_of(Batch([100] * 64), EIGHT_BY_TWO)
    assert evaluate(problem, partitioner("greedy").place(problem)).volume_bytes == 0


@pytest.mark.property
@pytest.mark.parametrize("request_", ["greedy", "mtkahypar"])
@given(seed=st.integers(0, 2**32 - 1))
def test_any_arrays_are_answered_within_the_limits(request_: str, seed: int) -> None:
    problem = random_problem(seed)
    assert evaluate(problem, partitioner(request_).place(problem)).violations == ()


# --- Options and packages ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("mtkahypar:preset=best", "preset is 'best'; legal: deterministic, "),
        ("mtkahypar:threads=0", "threads is 0; it must be an integer of 1 or more"),
        ("kahypar:timeout_s=0", "timeout_s is 0.0; it must be positive"),
        ("kahypar:timeout_s=inf", "timeout_s is inf; it must be positive"),
        ("greedy:speed=9", "'greedy' has no option 'speed'"),
    ],
)
def test_options_out_of_range_are_refused(request_: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        partitioner(request_)


def test_the_table_of_presets_is_the_librarys() -> None:
    library = pytest.importorskip("mtkahypar", reason="mtkahypar is not installed")
    from dcp.backends.mtkahypar import PRESETS as OURS

    assert {name.upper() for name in OURS} == set(library.PresetType.__members__)


@pytest.mark.parametrize("name", ["kahypar", "mtkahypar"])
def test_a_missing_package_is_named_with_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = registry.load("partitioners", name)
    monkeypatch.setattr(sys.modules[backend.__module__], "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match=rf"install dynamic-context-parallel\[{name}\]"):
        registry.create("partitioners", name)


def test_listing_partitioners_imports_no_library() -> None:
    code = (
        "import sys; from dcp import registry; registry.entries('partitioners'); "
        "sys.exit(bool({'kahypar', 'mtkahypar', 'torch'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=TESTS.parent, check=True, timeout=60)


def test_an_error_of_mtkahypar_is_repeated_without_colours() -> None:
    made = partitioner("mtkahypar")
    from dcp.backends.hypergraph import Hypergraph

    heavy = Hypergraph(
        vertex_weight=np.full(4, 2**30),
        net_weight=np.ones(1, dtype=np.int64),
        net_ptr=np.array([0, 2]),
        pins=np.array([0, 1]),
        fixed=np.full(4, -1),
        parts=2,
        epsilon=0.1,
        seed=0,
    )
    with pytest.raises(BackendError, match=r"mtkahypar failed.*overflows") as failure:
        made._solve(heavy)
    assert "\x1b" not in str(failure.value)
