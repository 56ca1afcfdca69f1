"""Calls in a Python process that knows nothing of this one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dcp.backend import Backend

HEAVY = ("torch", "triton", "numba", "scipy", "jax", "kahypar", "mtkahypar", "ortools", "highspy")
_CHILD = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    function, arguments = pickle.load(file)
result = function(*arguments)
with open(sys.argv[2], "wb") as file:
    pickle.dump(result, file)
"""


def call_in_fresh_process(
    function: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0
) -> Any:
    """What a module-level function returns in a process of its own.

    The process imports from the same places as this one; its hash seed differs.

    Raises:
        RuntimeError: it failed; the message holds what it wrote.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONHASHSEED": "271828",
    }
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "question"), Path(folder, "answer")
        question.write_bytes(pickle.dumps((function, arguments)))
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(question), str(answer)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if done.returncode != 0:
            raise RuntimeError(f"a fresh process failed with {done.returncode}:\n{done.stderr}")
        return pickle.loads(answer.read_bytes())


def answers(method: Callable[[Any], Any], problems: dict[str, Any]) -> dict[str, Any]:
    """What a plug-in answers to each of some problems."""
    return {name: method(problem) for name, problem in problems.items()}


def heavy_modules_of_availability(backend: type[Backend]) -> list[str]:
    """Heavy packages that are loaded once a backend's class is imported and asked."""
    backend.availability()
    return [name for name in HEAVY if name in sys.modules]
