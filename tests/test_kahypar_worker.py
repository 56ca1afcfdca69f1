"""KaHyPar's process may exit, crash, hang or babble; a BackendError then says what happened."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest
from partitioner_problems import PROBLEMS

from dcp.backends.kahypar import WORKER, solve_in_worker
from dcp.backends.kahypar_worker import Job
from dcp.errors import BackendError
from dcp.placement import Assignment


def run(code: str, timeout_s: float = 30.0) -> Assignment:
    """Have a stand-in for the worker answer a problem."""
    return solve_in_worker(PROBLEMS["causal"](), (sys.executable, "-c", code), timeout_s)


def test_an_exit_is_reported_with_its_code_and_what_was_said() -> None:
    with pytest.raises(BackendError, match=r"exit code 255.*37 token blocks(.|\n)*no such part"):
        run("import os, sys; print('no such part', file=sys.stderr, flush=True); os._exit(255)")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_a_crash_is_reported_with_its_signal(name: str) -> None:
    with pytest.raises(BackendError, match=f"ended with signal {name}.*it said nothing"):
        run(f"import os, signal; os.kill(os.getpid(), signal.{name})")


def test_a_worker_that_hangs_is_killed_when_its_time_is_up() -> None:
    start = time.monotonic()
    with pytest.raises(BackendError, match=r"no answer after 0\.5 s(.|\n)*timeout_s") as failure:
        run("import sys, time; print('busy', file=sys.stderr, flush=True); time.sleep(60)", 0.5)
    assert time.monotonic() - start < 10
    assert "busy" in str(failure.value)


def test_only_the_end_of_a_long_complaint_is_repeated() -> None:
    with pytest.raises(BackendError) as failure:
        run("import sys; sys.stderr.write('x' * 10**6 + ' the end'); sys.exit(1)")
    assert str(failure.value).endswith("xxx the end")
    assert len(str(failure.value)) < 3000


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "print('Partitioning ...')",
        "import sys; sys.stdout.buffer.write(bytes([0x81, 0xA1, 0x78, 0x01]))",
        "import msgspec, sys; sys.stdout.buffer.write("
        "msgspec.msgpack.encode({'token_home': b'123', 'comp_device': b''}))",
    ],
)
def test_an_answer_that_is_none_is_refused(code: str) -> None:
    with pytest.raises(BackendError, match="answer cannot be read"):
        run(code)


@pytest.mark.parametrize("device", [-1, 4])
def test_an_answer_with_unknown_devices_is_refused(device: int) -> None:
    with pytest.raises(BackendError, match=r"on devices 0 … 3"):
        run(
            "import sys, msgspec; from dcp.backends.kahypar_worker import Answer, Job, to_wire\n"
            "job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job).problem()\n"
            f"answer = Answer(to_wire(job.token_tokens * 0 + {device}), to_wire(job.comp_q * 0))\n"
            "sys.stdout.buffer.write(msgspec.msgpack.encode(answer))"
        )


def test_a_problem_survives_the_wire() -> None:
    problem = PROBLEMS["devices limited over all nodes"]()
    back = Job.of(problem).problem()
    assert (back.cluster, back.limits) == (problem.cluster, problem.limits)
    assert (back.token_limit, back.seed) == (problem.token_limit, problem.seed)
    for name in ("token_tokens", "data_bytes", "comp_q", "comp_kv", "comp_group", "comp_flops"):
        np.testing.assert_array_equal(getattr(back, name), getattr(problem, name))


# --- The library itself, fed what the adapter keeps from it --------------------------------------

needs_kahypar = pytest.mark.skipif(
    find_spec("kahypar") is None,
    reason="kahypar is not installed: pip install dynamic-context-parallel[kahypar]",
)


def spoilt(change: str) -> str:
    """A worker whose hypergraphs are spoilt before the library sees them."""
    return (
        "from dataclasses import replace; from dcp.backends import kahypar_worker as worker\n"
        "solve = worker._solve\n"
        f"worker._solve = lambda graph, config: solve(replace(graph, {change}), config)\n"
        "worker.main()"
    )


@needs_kahypar
def test_the_library_ends_its_process_on_zero_weights() -> None:
    with pytest.raises(BackendError, match=r"ended with (.|\n)*weight 0"):
        run(spoilt("vertex_weight=graph.vertex_weight * 0"))


@needs_kahypar
def test_the_library_crashes_on_overflow() -> None:
    with pytest.raises(BackendError, match="ended with"):
        run(
            spoilt(
                "vertex_weight=graph.vertex_weight * 0 + 2**30, net_weight=graph.net_weight + 2**29"
            )
        )


@needs_kahypar
def test_what_the_library_prints_does_not_reach_the_answer() -> None:
    code = (
        "import os; from dcp.backends import kahypar_worker as worker\n"
        "solve = worker._solve\n"
        "worker._solve = lambda graph, config: os.write(1, b'hello') and solve(graph, config)\n"
        "worker.main()"
    )
    plain = solve_in_worker(PROBLEMS["causal"](), WORKER, 30.0)
    np.testing.assert_array_equal(run(code).comp_device, plain.comp_device)
