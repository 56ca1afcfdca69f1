"""Placements proven optimal, by a mixed-integer program: for problems of about ten token blocks.

Binary variables say where every token block is at home and where every computation block runs; a
variable for each data block and device is forced to 1 where the block is touched away from its
home, and where bytes between nodes weigh more, one for each data block and node where it is
touched away from its home's node. Package: highspy (MIT, extra `exact`). Source: Huangfu and Hall,
"Parallelizing the dual revised simplex method", Mathematical Programming Computation 2018.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

from dcp.arrays import FloatArray, IntArray
from dcp.checks import check_kind, check_number
from dcp.errors import BackendError, MissingPackageError
from dcp.placement import Assignment, PlacementProblem, evaluate

_FREE = float("inf")


def optimal_placement(
    problem: PlacementProblem, *, inter_weight: float = 1.0, time_limit_s: float = 300.0
) -> Assignment:
    """A placement of least weighted bytes among all that `dcp.placement.evaluate` finds feasible.

    They are its `volume_bytes` + (`inter_weight` − 1) × `inter_node_bytes`.

    Long proofs: many devices (4 take a hundred times as long as 2), and several nodes of several
    devices whose blocks are coarse beside the limit inside a node.

    Args:
        problem: What to place; its seed and budget change nothing.
        inter_weight: What a byte between nodes costs, where one inside a node costs 1; at least 1.
        time_limit_s: Wall-clock seconds that the proof may take.

    Raises:
        SpecError: no problem, or an illegal weight or time.
        MissingPackageError: highspy is not installed.
        BackendError: no placement holds all limits, or the optimum is not proven in time; the
            message then says between which bytes it lies.
    """
    check_kind("problem", problem, PlacementProblem)
    check_number("inter_weight", inter_weight, least=1.0)
    check_number("time_limit_s", time_limit_s)
    _highspy()
    if not len(problem.token_tokens):
        return Assignment(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    program, deadline = _PlacementProgram(problem, inter_weight), time.monotonic() + time_limit_s
    while True:
        answer = program.solve(max(deadline - time.monotonic(), 0.0))
        if evaluate(problem, answer).feasible:
            return answer
        # What a node's devices may compute depends on all blocks of the node, which is not
        # linear: the program knows an upper bound, and learns the truth node by node.
        if not program.add_packing_limits(answer):
            raise BackendError(
                f"the solver's answer breaks limits: {evaluate(problem, answer).violations}"
            )


class _Rows:
    """Rows of a linear program: lower ≤ values · variables ≤ upper."""

    def __init__(self) -> None:
        self._columns: list[IntArray] = []
        self._values: list[FloatArray] = []
        self._bounds: list[FloatArray] = []

    def add(self, columns: IntArray, values: Any, lower: Any, upper: Any) -> None:
        """Add rows of equal length, [n, k]; the other arguments broadcast to rows."""
        count = len(columns)
        self._columns += list(columns)
        self._values += list(np.broadcast_to(np.asarray(values, dtype=float), columns.shape))
        self._bounds += list(np.stack(np.broadcast_arrays(lower, upper, np.zeros(count))[:2], 1))

    def arrays(self) -> tuple[FloatArray, FloatArray, IntArray, IntArray, FloatArray]:
        """Lower and upper bounds, [rows], and the matrix by rows: starts, columns, values."""
        lower, upper = np.array(self._bounds, dtype=float).T
        starts = np.cumsum([0, *map(len, self._columns)])
        return lower, upper, starts, np.concatenate(self._columns), np.concatenate(self._values)


class _PlacementProgram:
    """The mixed-integer program of a placement problem.

    Columns: home [T, D], comp [C, D], touch [data blocks, D], enter [data blocks, nodes], and
    by_packing [nodes], which says that a node's devices may exceed the asked balance because its
    blocks are too coarse for it.
    """

    def __init__(self, problem: PlacementProblem, inter_weight: float) -> None:
        self._problem, self._inter_weight = problem, inter_weight
        cluster = problem.cluster
        blocks, comps, devices = len(problem.token_tokens), len(problem.comp_q), cluster.num_devices
        self._unit = max(int(np.gcd.reduce(problem.comp_flops)), 1)
        self._flops = problem.comp_flops // self._unit
        block, self._touch_bytes, number = _data_blocks(problem)
        shapes = [(one, devices) for one in (blocks, comps, len(block))]
        shapes += [(len(block), cluster.nodes), (1, cluster.nodes)]
        ends = np.cumsum([rows * columns for rows, columns in shapes])
        self._count = int(ends[-1])
        home, comp, touch, enter, by_packing = (
            np.arange(end - rows * columns, end).reshape(rows, columns)
            for (rows, columns), end in zip(shapes, ends, strict=True)
        )
        self._home, self._comp, self._touch, self._enter = home, comp, touch, enter
        self._by_packing = by_packing[0]

        self._rows = _Rows()
        self._rows.add(home, 1, 1, 1)
        self._rows.add(comp, 1, 1, 1)
        for of_side in number:
            sent = np.stack([touch[of_side], comp, home[block[of_side]]], axis=-1)
            self._rows.add(sent.reshape(-1, 3), [1, -1, 1], 0, _FREE)
        if inter_weight > 1:
            self._count_entries(block)
        self._limit_loads()
        self._number_devices_in_order()

    def solve(self, time_limit_s: float) -> Assignment:
        """An optimum of the program as it stands."""
        highspy = _highspy()
        solver = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("time_limit", time_limit_s),
            ("mip_rel_gap", 0.0),
            # Bytes are whole multiples of the unit, unless the weight is broken.
            ("mip_abs_gap", 0.5 if float(self._inter_weight).is_integer() else 1e-6),
        ):
            solver.setOptionValue(option, value)
        unit = max(int(np.gcd.reduce(self._touch_bytes)), 1)
        cost, binary = np.zeros(self._count), np.ones(self._count, dtype=np.int32)
        size = (self._touch_bytes // unit)[:, None]
        cost[self._touch], cost[self._enter] = size, size * (self._inter_weight - 1)
        binary[self._touch] = binary[self._enter] = 0  # whole where the others are
        lower, upper, *matrix = self._rows.arrays()
        solver.passModel(
            self._count, len(lower), len(matrix[1]), int(highspy.MatrixFormat.kRowwise),
            int(highspy.ObjSense.kMinimize), 0.0, cost, np.zeros(self._count),
            np.ones(self._count), lower, upper, *matrix, binary,
        )  # fmt: skip
        solver.run()
        _check_status(solver, unit)
        values = np.array(solver.getSolution().col_value)
        return Assignment(values[self._home].argmax(axis=1), values[self._comp].argmax(axis=1))

    def _count_entries(self, block: IntArray) -> None:
        """A data block enters a node where a device touches it and none is its home.

        Args:
            block: Token block of every data block, [data blocks].
        """
        node_of = self._problem.cluster.device_node
        for device, node in enumerate(node_of.tolist()):
            at_home = self._home[block][:, node_of == node]
            columns = [self._enter[:, [node]], self._touch[:, [device]], at_home]
            values = np.array([1.0, -1.0] + [1.0] * at_home.shape[1])
            self._rows.add(np.concatenate(columns, axis=1), values, 0, _FREE)

    def add_packing_limits(self, answer: Assignment) -> bool:
        """Teach the program what devices may compute in nodes that break their limit.

        Returns:
            Whether there was such a node.
        """
        problem, node_of = self._problem, self._problem.cluster.device_node
        loads = np.bincount(
            answer.comp_device, weights=self._flops, minlength=problem.cluster.num_devices
        )
        broken = False
        for node in range(problem.cluster.nodes):
            inside = node_of[answer.comp_device] == node
            limit = problem.device_compute_limit(problem.comp_flops[inside]) // self._unit
            if loads[node_of == node].max() > limit:
                self._limit_nodes_of(inside, limit)
                broken = True
        return broken

    def _limit_nodes_of(self, inside: Any, limit: float) -> None:
        """Where a node computes exactly these blocks, its devices compute at most so much."""
        cluster, total = self._problem.cluster, int(self._flops.sum())
        # Every block more or less lifts the limit.
        per_block = np.where(inside, total, -total)
        for device in range(cluster.num_devices):
            values = np.zeros((len(self._flops), cluster.num_devices))
            values[:, cluster.device_node == cluster.device_node[device]] = per_block[:, None]
            values[:, device] += self._flops
            bound = limit + total * np.count_nonzero(inside)
            self._rows.add(self._comp.reshape(1, -1), values.reshape(1, -1), -_FREE, bound)

    def _limit_loads(self) -> None:
        """Tokens of devices, work of nodes and of devices."""
        problem, cluster, rows = self._problem, self._problem.cluster, self._rows
        rows.add(self._home.T, problem.token_tokens, -_FREE, np.floor(problem.token_allowance))
        if not len(self._flops):
            return
        nodes, inside = cluster.nodes, cluster.devices_per_node
        of_node = self._comp.reshape(-1, nodes, inside).transpose(1, 0, 2).reshape(nodes, -1)
        flops_of_node = np.repeat(self._flops, inside)
        rows.add(of_node, flops_of_node, -_FREE, problem.node_compute_limit // self._unit)
        limit = problem.overall_compute_limit
        if nodes == 1:
            limit = problem.device_compute_limit(problem.comp_flops)
        rows.add(self._comp.T, self._flops, -_FREE, limit // self._unit if limit < _FREE else limit)
        if nodes > 1 and inside > 1:
            self._limit_devices_by_node(of_node, flops_of_node)

    def _limit_devices_by_node(self, of_node: IntArray, flops_of_node: IntArray) -> None:
        """A device's limit as far as it is linear in the work of its node.

        It is (1 + ε) × mean, or else the packing in falling order, which stays within
        mean + (1 − 1/devices) × largest block (Graham 1969).
        """
        problem, cluster = self._problem, self._problem.cluster
        inside, total = cluster.devices_per_node, int(self._flops.sum())
        over_mean = (1 - 1 / inside) * int(self._flops.max())
        for device, node in enumerate(cluster.device_node.tolist()):
            columns = np.concatenate(
                [of_node[node], self._comp[:, device], self._by_packing[[node]]]
            )
            for share, lift, bound in (
                ((1 + problem.limits.intra_node) / inside, -total, 0.0),
                (1 / inside, total, over_mean + total),
            ):
                values = np.concatenate([-share * flops_of_node, self._flops, [lift]])
                self._rows.add(*_merged(columns, values), -_FREE, bound)

    def _number_devices_in_order(self) -> None:
        """Devices of a node, and nodes, are alike: number them as token blocks first use them."""
        inside = self._problem.cluster.devices_per_node
        later = np.arange(1, self._home.shape[1])
        before = np.where(later % inside, later - 1, later - inside)
        for block in range(len(self._home)):
            columns = np.concatenate([self._home[[block]][:, later], self._home[:block, before]])
            values = np.array([1.0] + [-1.0] * block)
            self._rows.add(columns.T, values, -_FREE, 0)


def _data_blocks(problem: PlacementProblem) -> tuple[IntArray, IntArray, tuple[IntArray, IntArray]]:
    """Data blocks that computations use, queries with outputs as one.

    Returns:
        Token block and bytes of each, [n], and its number for every computation block, [C], on
        the query and on the key side.
    """
    groups, size = problem.q_side_bytes.shape[1], problem.q_side_bytes.size
    keys = [
        problem.comp_q * groups + problem.comp_group,
        problem.comp_kv * groups + problem.comp_group + size,
    ]
    used, number = np.unique(np.concatenate(keys), return_inverse=True)
    every = np.concatenate([problem.q_side_bytes.reshape(-1), problem.kv_side_bytes.reshape(-1)])
    query, key = np.split(number, 2)
    return used % max(size, 1) // groups, every[used], (query, key)


def _merged(columns: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """A row in which every column stands once, [1, n]."""
    distinct, inverse = np.unique(columns, return_inverse=True)
    total = np.zeros(len(distinct))
    np.add.at(total, inverse, values)
    return distinct[None], total[None]


def _highspy() -> Any:
    try:
        return import_module("highspy")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "the exact solver needs highspy; install dynamic-context-parallel[exact]"
        ) from error


def _check_status(solver: Any, unit: int) -> None:
    outcomes, status = _highspy().HighsModelStatus, solver.getModelStatus()
    if status == outcomes.kOptimal:
        return
    if status == outcomes.kInfeasible:
        raise BackendError("no placement holds all limits")
    info = solver.getInfo()
    raise BackendError(
        f"the optimum is not proven ({solver.modelStatusToString(status)}): it lies between "
        f"{info.mip_dual_bound * unit:.0f} and {info.objective_function_value * unit:.0f} bytes; "
        "give more time, or fewer and larger blocks"
    )
