"""The `mtkahypar` partitioner: Mt-KaHyPar (MIT), in this process.

Package: mtkahypar (extra `mtkahypar`). Source: Gottesbüren, Heuer, Maas, Sanders and Schlag,
"Scalable High-Quality Hypergraph Partitioning", ACM Transactions on Algorithms 2024.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from dcp.arrays import IntArray
from dcp.backend import Availability
from dcp.backends.hypergraph import Hypergraph, place_with, solve_by_levels
from dcp.checks import check_choice, check_integer
from dcp.errors import BackendError
from dcp.placement import Assignment, Partitioner, PlacementProblem

PRESETS = (
    "deterministic",
    "deterministic_quality",
    "default",
    "quality",
    "highest_quality",
    "large_k",
)


@dataclass(frozen=True, kw_only=True)
class MtKaHyPar(Partitioner):
    """Hierarchical hypergraph partitioning by Mt-KaHyPar.

    It runs in this process, holds the global interpreter lock while it works and knows no time
    limit: where a plan must not block other threads, plan in a process of its own. The presets
    `deterministic` and `deterministic_quality` give equal answers for equal seeds, with any
    number of threads; the others do not. `large_k` cannot keep homes fixed, so it places
    computations only once.

    Args:
        preset: One of `PRESETS`.
        threads: Threads of the library.
    Raises:
        SpecError: an unknown preset, or fewer than one thread.
    """

    name: ClassVar[str] = "mtkahypar"

    preset: str = "deterministic"
    threads: int = 1

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, PRESETS)
        check_integer("threads", self.threads)

    @classmethod
    def availability(cls) -> Availability:
        """Whether the package is installed; does not import it."""
        if find_spec("mtkahypar") is None:
            return Availability(False, "install dynamic-context-parallel[mtkahypar]")
        return Availability(True)

    def place(self, problem: PlacementProblem) -> Assignment:
        """Split over nodes, then devices, then repair.

        Raises:
            BackendError: the library raised an error; the message repeats it.
        """
        fixed_vertices = self.preset != "large_k"
        return place_with(
            problem,
            lambda one: solve_by_levels(one, self._solve, fixed_vertices=fixed_vertices),
        )

    def _solve(self, graph: Hypergraph) -> IntArray:
        try:
            return self._call_library(graph)
        except Exception as error:  # its own types, and whatever its C++ layer lets through
            said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
            raise BackendError(
                f"mtkahypar failed ({type(error).__name__}): {said}; "
                f"preset {self.preset!r}, {len(graph.vertex_weight)} vertices, "
                f"{graph.parts} parts; try another preset or partitioner"
            ) from error

    def _call_library(self, graph: Hypergraph) -> IntArray:
        import mtkahypar

        library = _library(self.threads)
        context = library.context_from_preset(getattr(mtkahypar.PresetType, self.preset.upper()))
        context.logging = False
        context.set_partitioning_parameters(graph.parts, graph.epsilon, mtkahypar.Objective.KM1)
        mtkahypar.set_seed(graph.seed)
        pins, ends = graph.pins.tolist(), graph.net_ptr.tolist()
        hypergraph = library.create_hypergraph(
            context,
            len(graph.vertex_weight),
            len(graph.net_weight),
            [pins[first:last] for first, last in pairwise(ends)],
            graph.vertex_weight.tolist(),
            graph.net_weight.tolist(),
        )
        if (graph.fixed >= 0).any():
            hypergraph.add_fixed_vertices(graph.fixed.tolist(), graph.parts)
        part = hypergraph.partition(context).get_partition()
        return np.array(part, dtype=np.int64)


@lru_cache
def _library(threads: int) -> Any:
    import mtkahypar

    return mtkahypar.initialize(threads, print_warnings=False)
