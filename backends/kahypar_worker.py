"""The process in which KaHyPar runs: `python -m dcp.backends.kahypar_worker`.

Reads one msgpack `Job` from stdin and writes one `Answer` to stdout. The library prints to
stdout and ends the process on errors, so its prints go to stderr, where the parent finds what
it said.
"""

from __future__ import annotations

import os
import sys
import tempfile

import msgspec
import numpy as np

from dcp.arrays import IntArray
from dcp.backends.hypergraph import Hypergraph, solve_by_levels
from dcp.backends.kahypar_config import CONFIG
from dcp.cluster import Cluster
from dcp.placement import Assignment, Limits, PlacementProblem

_WIRE = np.dtype("<i8")


class Job(msgspec.Struct, frozen=True):
    """A placement problem on the wire; arrays as little-endian int64."""

    cluster: Cluster
    limits: Limits
    token_limit: int
    seed: int
    groups: int
    token_tokens: bytes
    data_bytes: bytes
    comp_q: bytes
    comp_kv: bytes
    comp_group: bytes
    comp_flops: bytes

    @classmethod
    def of(cls, problem: PlacementProblem) -> Job:
        """Put a problem on the wire."""
        return cls(
            cluster=problem.cluster,
            limits=problem.limits,
            token_limit=problem.token_limit,
            seed=problem.seed,
            groups=problem.data_bytes.shape[2],
            token_tokens=to_wire(problem.token_tokens),
            data_bytes=to_wire(problem.data_bytes),
            comp_q=to_wire(problem.comp_q),
            comp_kv=to_wire(problem.comp_kv),
            comp_group=to_wire(problem.comp_group),
            comp_flops=to_wire(problem.comp_flops),
        )

    def problem(self) -> PlacementProblem:
        """The problem that was put on the wire."""
        token_tokens = from_wire(self.token_tokens)
        shape = (-1, len(token_tokens), self.groups)
        return PlacementProblem(
            token_tokens=token_tokens,
            data_bytes=from_wire(self.data_bytes).reshape(shape),
            comp_q=from_wire(self.comp_q),
            comp_kv=from_wire(self.comp_kv),
            comp_group=from_wire(self.comp_group),
            comp_flops=from_wire(self.comp_flops),
            cluster=self.cluster,
            limits=self.limits,
            token_limit=self.token_limit,
            seed=self.seed,
        )


class Answer(msgspec.Struct, frozen=True):
    """An assignment on the wire."""

    token_home: bytes
    comp_device: bytes


def to_wire(values: IntArray) -> bytes:
    """Bytes of an array in C order."""
    return values.astype(_WIRE).tobytes()


def from_wire(data: bytes) -> IntArray:
    """The array, flat.

    Raises:
        ValueError: not a whole number of elements.
    """
    return np.frombuffer(data, dtype=_WIRE).astype(np.int64)


def main() -> None:
    """Answer one job."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as config:
        config.write(CONFIG)
        config.flush()
        answer = _place(job.problem(), config.name)
    with out:
        wire = Answer(to_wire(answer.token_home), to_wire(answer.comp_device))
        out.write(msgspec.msgpack.encode(wire))


def _place(problem: PlacementProblem, config: str) -> Assignment:
    return solve_by_levels(problem, lambda graph: _solve(graph, config))


def _solve(graph: Hypergraph, config: str) -> IntArray:
    import kahypar

    count = len(graph.vertex_weight)
    hypergraph = kahypar.Hypergraph(
        count,
        len(graph.net_weight),
        graph.net_ptr.tolist(),
        graph.pins.tolist(),
        graph.parts,
        graph.net_weight.tolist(),
        graph.vertex_weight.tolist(),
    )
    for vertex in np.flatnonzero(graph.fixed >= 0).tolist():
        hypergraph.fixNodeToBlock(vertex, int(graph.fixed[vertex]))
    context = kahypar.Context()
    context.loadINIconfiguration(config)
    context.setK(graph.parts)
    context.setEpsilon(graph.epsilon)
    context.setSeed(graph.seed)
    context.suppressOutput(True)
    kahypar.partition(hypergraph, context)
    return np.array([hypergraph.blockID(vertex) for vertex in range(count)], dtype=np.int64)


if __name__ == "__main__":
    main()
