"""Comparisons as tables that can be read at 80 columns, with a legend below."""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dcp.batch import AttentionSpec, Batch
from dcp.cli.execution import ITERATIONS, TENSORS, Execution, Executions
from dcp.cli.output import counted, number
from dcp.cluster import Cluster, Link
from dcp.comparison import Comparison, Row, Setting
from dcp.execution_plan import ExecutionPlan
from dcp.report import PlanReport
from dcp.selection import SelectionTable
from dcp.workloads import Workload

_NO_VALUE = "-"
_ROOMY = 100  # columns of the terminal


def new_table(width: int, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers, never cut short."""
    gap = 0 if width < _ROOMY else 1  # beside the space that stands between columns anyway
    table = Table(box=SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False)
    table.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def figures(comparison: Comparison, width: int) -> Table:
    """A row a strategy: bytes, balance, planning and estimated time."""
    table = new_table(
        width,
        "\nstrategy",
        "sent\nMB",
        "inter\nMB",
        "comp.\nimb.",
        "token\nimb.",
        "feas-\nible",
        "plan\ns",
        "fwd\nms",
        "bwd\nms",
        "time\n/stat",
        "bytes\n/stat",
    )
    for row in comparison.rows:
        table.add_row(*_cells(comparison, row), style=_style(comparison, row))
    return table


def _cells(comparison: Comparison, row: Row) -> Iterator[str]:
    yield f"{row.strategy.title} *" if row is comparison.best else row.strategy.title
    if not row.is_planned:
        yield row.status
        yield from [_NO_VALUE] * 9
        return
    yield number(row.mean("comm_bytes") / 1e6)
    yield number(row.mean("inter_node_bytes") / 1e6)
    yield number(row.largest("compute_imbalance"))
    yield number(row.largest("token_imbalance"))
    yield "yes" if row.feasible else "NO"
    yield number(row.mean("planning_s"))
    yield number(row.mean("forward_s") * 1e3)
    yield number(row.mean("backward_s") * 1e3)
    for ratio in (comparison.time_ratio(row), comparison.bytes_ratio(row)):
        yield _NO_VALUE if ratio is None else number(ratio)


def _style(comparison: Comparison, row: Row) -> str:
    if row is comparison.best:
        return "bold green"
    return "" if row.feasible else "dim" if row.is_planned else "red"


def heading(workload: Workload, setting: Setting) -> Text:
    """What is compared: documents, attention and cluster."""
    masks = ", ".join(sorted({str(mask) for batch in setting.batches for mask in batch.masks}))
    size = setting.block_size
    blocks = "block size by batch" if size == "auto" else f"blocks of {counted(size, 'token')}"
    lines = [
        f"{workload.source}: {_amount(setting.batches)}, tokens: {workload.token_rule}",
        f"mask {masks}, {_attention(setting.spec)}, {blocks}",
        cluster_text(setting.cluster),
        *(f"note: {note}" for note in workload.notes),
    ]
    return Text("\n".join(lines))


def _amount(batches: tuple[Batch, ...]) -> str:
    documents = sum(len(batch) for batch in batches)
    tokens = sum(batch.num_q_tokens for batch in batches)
    amount = f"{counted(documents, 'sequence')}, {counted(tokens, 'token')}"
    return amount if len(batches) == 1 else f"{len(batches)} batches, {amount}"


def _attention(spec: AttentionSpec) -> str:
    return f"heads {spec.num_q_heads}/{spec.num_kv_heads} x {spec.head_dim} {spec.dtype}"


def cluster_text(cluster: Cluster) -> str:
    """Shape and rates, as the cost model takes them."""
    nodes, devices = cluster.nodes, cluster.devices_per_node
    shape = f"{counted(nodes, 'node')} x {counted(devices, 'device')} ({cluster.name})"
    links = f"in a node {_link(cluster.intra)}"
    if nodes > 1:
        links += f", between nodes {_link(cluster.inter)}"
    return f"cluster {shape}: {cluster.device.flops_per_s / 1e12:g} TFLOP/s, {links}"


def _link(link: Link) -> str:
    return f"{link.bandwidth_bytes_per_s / 1e9:g} GB/s + {link.latency_s * 1e6:g} us"


def legend(comparison: Comparison, num_batches: int) -> Text:
    """What columns and marks mean, and what is wrong with rows."""
    lines = [
        "sent, inter: 10^6 bytes that a forward pass moves, in all and between nodes.",
        "imb.: max / mean over devices of exact computing and of tokens.",
        "fwd, bwd: estimated by the cost model, not measured.",
        f"/stat: relative to {_static_name(comparison)}; below 1 is better.",
    ]
    if comparison.best is None:
        lines.append("No strategy keeps all limits, so none is best.")
    else:
        lines.append("*: best, the feasible strategy with the least estimated fwd + bwd.")
    if num_batches > 1:
        lines.append(f"Means over {num_batches} batches; imbalances are the largest of them.")
    lines += [text for row in comparison.rows for text in _remarks(row)]
    return Text("\n".join(lines))


def _static_name(comparison: Comparison) -> str:
    static = comparison.best_static
    if static is None:
        return "the best static scheme, of which there is none here"
    limits = "" if static.feasible else " (which is infeasible)"
    return f"the fastest static scheme, {static.strategy.title}{limits}"


def _remarks(row: Row) -> Iterator[str]:
    if not row.is_planned:
        yield f"{row.strategy.title} {row.status}: {row.problem}"
    elif row.violations:
        more = f", and {len(row.violations) - 1} more" if len(row.violations) > 1 else ""
        yield f"{row.strategy.title} is infeasible: {row.violations[0]}{more}"


def winners(table: SelectionTable, width: int) -> Table:
    """Which strategy wins for which kind of workload."""
    printed = new_table(
        width, "lengths", "mask", "network", "fastest strategy", "batches", "next /\nfastest"
    )
    for winner in table.winners:
        fastest = winner.baseline or f"{winner.partitioner} + {winner.scheduler}"
        kind = winner.kind
        cells = (kind.lengths, kind.mask, kind.network, fastest, str(winner.batches))
        printed.add_row(*cells, f"{winner.lead:.2f}")
    return printed


def executed(comparison: Comparison, executions: Executions, width: int) -> Table:
    """A row a strategy: proof, measured time, errors and verdict."""
    table = new_table(
        width,
        "\nstrategy",
        "\nproven",
        "fwd+bwd\nms",
        *(f"error\n{name}" for name in TENSORS),
        "equal to\ndense",
    )
    for row in comparison.rows:
        found = executions.get(row.strategy.title)
        if found:
            table.add_row(row.strategy.title, *_executed_cells(found), style=_verdict_style(found))
    return table


def _executed_cells(found: tuple[Execution, ...]) -> Iterator[str]:
    yield "yes" if all(one.proven for one in found) else "NO"
    times = [one.measured_s for one in found if one.measured_s is not None]
    yield number(fmean(times) * 1e3) if len(times) == len(found) else _NO_VALUE
    for name in TENSORS:
        errors = [one.errors[name] for one in found if name in one.errors]
        yield f"{max(errors):.1e}" if len(errors) == len(found) else _NO_VALUE
    yield "yes" if all(one.equal for one in found) else "NO"


def _verdict_style(found: tuple[Execution, ...]) -> str:
    return "" if all(one.equal and one.proven for one in found) else "bold red"


def executed_legend(setting: Setting, executions: Executions, small: str) -> Text:
    """How it was executed, what was made small for it, and what went wrong."""
    devices = setting.cluster.num_devices
    processes = counted(devices, "local process", "local processes")
    cores = os.cpu_count() or 1
    lines = [f"Executed on {processes} (gloo, a CPU thread each) on {counted(cores, 'core')}."]
    if small:
        lines.append(f"Small, because --run was given: {small}.")
    lines += [
        "proven: the plan checker followed every block through every slot and found no fault.",
        f"fwd+bwd: measured, median of {ITERATIONS} iterations, slowest rank.",
        f"error: largest |difference| to dense float64 attention; equal: {_budget(setting.spec)}.",
    ]
    if len(setting.batches) > 1:
        lines.append(f"Mean time over {len(setting.batches)} batches, largest errors of them.")
    lines += [
        f"{title}: {one.problem}"
        for title, found in executions.items()
        for one in found
        if one.problem
    ]
    return Text("\n".join(lines))


def _budget(spec: AttentionSpec) -> str:
    if spec.dtype == "float64":
        return "within 1e-10 relative"
    return f"at most twice what {spec.dtype} attention on one device errs by, above rounding"


def plan_report(plan: ExecutionPlan, report: PlanReport) -> Table:
    """Everything that is known of one plan, a line a figure."""
    table = Table(box=SIMPLE_HEAD, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("made by", str(plan.origin))
    table.add_row("digest", plan.digest)
    for name, value in msgspec.to_builtins(report).items():
        table.add_row(*_figure(name, value))
    return table


_UNITS = {"bytes": (1e-6, "MB"), "s": (1e3, "ms")}


def _figure(name: str, value: Any) -> tuple[str, str]:
    words, _, unit = name.rpartition("_")
    if unit in _UNITS:
        factor, shown = _UNITS[unit]
        return words.replace("_", " "), f"{number(value * factor)} {shown}"
    if isinstance(value, bool):
        return name, "yes" if value else "NO"
    if isinstance(value, float):
        return name.replace("_", " "), f"{number(value)} (max / mean)"
    return name, "; ".join(value) or "none"
