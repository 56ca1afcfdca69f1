"""CPU time of planned attention over that of one process doing the same work.

Every plan runs with all its ranks in this process, forward and backward. The reference runs
torch's fused CPU attention on one whole causal sequence after another; for a sparse mask its time
counts by the share of causal pairs that the mask allows. Plans and reference take turns in one
process on one thread, so that their ratio holds on a shared machine.

    python benchmarks/executor_cpu.py --shapes one,ragged --dtypes float32 --csv out.csv
"""

from __future__ import annotations

import argparse
import csv
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import dcp
from dcp import masks, slices

aten = torch.ops.aten


class Shape(NamedTuple):
    """A batch to attend over."""

    lengths: list[int]
    mask: masks.Mask


SHAPES = {
    "one": Shape([8192], masks.causal()),
    "one-16k": Shape([16384], masks.causal()),
    "ragged": Shape([4000, 2100, 1200, 700, 192], masks.causal()),
    "ragged-16k": Shape([6000, 4100, 2500, 1500, 900, 700, 400, 192], masks.causal()),
    "lambda": Shape([8192], masks.lambda_mask(sink=64, window=4096)),
    "lambda-2k": Shape([8192], masks.lambda_mask(sink=64, window=2048)),
    "shared-question": Shape([8192], masks.shared_question(question_fraction=0.2, answers=4)),
    "causal-blockwise": Shape([8192], masks.causal_blockwise(block=256, local=2)),
    "causal-blockwise-1k": Shape([8192], masks.causal_blockwise(block=1024, local=1)),
}
STRATEGIES = {
    "ours": {"partitioner": "greedy", "scheduler": "overlap"},
    "zigzag": {"baseline": "zigzag"},
    "ring": {"baseline": "ring"},
    "usp": {"baseline": "usp"},
}
Q_HEADS, KV_HEADS = 8, 2


def main() -> None:
    """Run the chosen cases and print a row for each."""
    options = _options()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    print(f"{'shape':20} {'dtype':9} {'dim':>4} {'reference':>10}", *_cells(options.strategies))
    for shape in options.shapes:
        for head_dim in options.head_dims:
            for dtype in options.dtypes:
                times = _measure(SHAPES[shape], head_dim, dtype, options)
                share = _share_of_causal(SHAPES[shape])
                reference = min(times.pop("reference"))
                ratios = {name: min(took) / (reference * share) for name, took in times.items()}
                shown = _cells(f"{ratio:.3f}" for ratio in ratios.values())
                print(f"{shape:20} {dtype:9} {head_dim:4} {reference:8.3f} s", *shown, flush=True)
                where = {"shape": shape, "dtype": dtype, "head_dim": head_dim}
                for name, took in times.items():
                    rows.append(where | _statistics(name, took, ratios[name], options.seed))
    if options.csv:
        _write(options.csv, rows)


def _options() -> argparse.Namespace:
    def names(legal: Any) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            unknown = [name for name in text.split(",") if name not in legal]
            if unknown:
                raise argparse.ArgumentTypeError(f"no {unknown}; legal: {', '.join(legal)}")
            return text.split(",")

        return parse

    dtypes = ("float32", "bfloat16")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=names(SHAPES), default=list(SHAPES))
    parser.add_argument("--strategies", type=names(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--dtypes", type=names(dtypes), default=list(dtypes))
    parser.add_argument(
        "--head-dims", type=lambda text: [int(one) for one in text.split(",")], default=[64, 128]
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="also write the table there, tidy")
    return parser.parse_args()


def _cells(texts: Any) -> list[str]:
    return [f"{text:>8}" for text in texts]


def _measure(
    shape: Shape, head_dim: int, dtype: str, options: argparse.Namespace
) -> dict[str, list[float]]:
    """CPU seconds of every repetition, by strategy and for the reference."""
    spec = dcp.AttentionSpec(
        num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=head_dim, dtype=dtype
    )
    torch.manual_seed(options.seed)
    tokens = sum(shape.lengths)
    q, k, v, dout = (
        torch.randn(tokens, heads, head_dim).to(getattr(torch, dtype))
        for heads in (Q_HEADS, KV_HEADS, KV_HEADS, Q_HEADS)
    )
    inputs = tuple(x.detach().requires_grad_() for x in (q, k, v))
    works: dict[str, Callable[[], object]] = {
        "reference": lambda: _reference(shape.lengths, q, k, v, dout)
    }
    cluster = dcp.Cluster(devices_per_node=options.ranks)
    for name in options.strategies:
        plan = dcp.plan(
            dcp.Batch(shape.lengths, mask=shape.mask),
            spec,
            cluster,
            block_size=options.block_size,
            seed=options.seed,
            **STRATEGIES[name],
        )
        works[name] = lambda plan=plan: torch.autograd.grad(
            dcp.run_local(plan, *inputs), inputs, dout
        )
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(options.repeats + 1):
        for name, work in works.items():
            start = time.process_time()
            work()
            if repeat:  # the first one compiles the plan's calls and fills caches
                times[name].append(time.process_time() - start)
    return times


def _reference(lengths: list[int], q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> None:
    """Causal attention of whole sequences and its gradients, by torch's fused operators."""
    for part in zip(*(x.split(lengths) for x in (q, k, v, dout)), strict=True):
        heads = [x.transpose(0, 1)[None].contiguous() for x in part]
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*heads[:3], 0.0, True)
        aten._scaled_dot_product_flash_attention_for_cpu_backward(
            heads[3], *heads[:3], out, lse, 0.0, True
        )


def _share_of_causal(shape: Shape) -> float:
    """Allowed pairs of the mask over those of a causal one."""
    pairs = sum(
        int(slices.size(shape.mask.slices(length, length)).sum()) for length in shape.lengths
    )
    return pairs / sum(length * (length + 1) / 2 for length in shape.lengths)


def _statistics(name: str, took: list[float], ratio: float, seed: int) -> dict[str, Any]:
    p20, p50, p80 = np.percentile(took, [20, 50, 80]).tolist()
    return {
        "strategy": name,
        "ratio": ratio,
        "p20_s": p20,
        "p50_s": p50,
        "p80_s": p80,
        "seed": seed,
        "machine": f"{platform.machine()} {_processor()}",
        "torch": torch.__version__,
        "commit": _commit(),
    }


def _processor() -> str:
    names = Path("/proc/cpuinfo")
    lines = names.read_text().splitlines() if names.exists() else []
    found = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor())


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    here = Path(__file__).parent
    return subprocess.run(command, cwd=here, capture_output=True, text=True).stdout.strip()


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
