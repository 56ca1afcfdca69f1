"""`dcp plan`: one batch, one strategy, saved to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dcp.cli import export, options, tables
from dcp.cli.output import print_json, stdout
from dcp.comparison import Strategy, plan_with


def plan(
    out: Annotated[
        Path | None, typer.Option(help="Plan file to write; `dcp check` proves it.")
    ] = None,
    partitioner: Annotated[
        str, typer.Option(help="NAME, NAME:OPTION=VALUE,... or auto: the fastest of all.")
    ] = "auto",
    scheduler: Annotated[str, typer.Option(help="In the same way.")] = "auto",
    baseline: Annotated[
        str | None, typer.Option(help="A static scheme instead.", show_default=False)
    ] = None,
    lengths: options.Lengths = None,
    text: options.Text = None,
    tokenizer: options.Tokenizer = None,
    tokens: options.Tokens = None,
    seed: options.Seed = 0,
    mask: options.MaskName = "causal",
    heads: options.Heads = "8/2",
    head_dim: options.HeadDim = None,
    dtype: options.Dtype = None,
    cluster: options.ClusterShape = None,
    block_size: options.BlockSize = None,
    limits: options.LimitsText = options.DEFAULT_LIMITS,
    budget: options.Budget = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Plan one batch (the input's first) with one strategy, report on it and save it."""
    request = options.Request(
        lengths=lengths,
        text=text,
        tokenizer=tokenizer,
        tokens=tokens,
        batches=1,
        seed=seed,
        mask=mask,
        heads=heads,
        head_dim=head_dim,
        dtype=dtype,
        cluster=cluster,
        block_size=block_size,
        limits=limits,
        budget=budget,
    )
    workload, setting = request.resolve(options.DEFAULTS)
    strategy = Strategy(
        partitioner=partitioner, scheduler=scheduler, baseline=baseline, title="plan"
    )
    made = plan_with(setting, strategy, setting.batches[0])
    report = made.report()
    if out is not None:
        made.save(out)
    if json:
        document = {
            "version": export.JSON_VERSION,
            "workload": export.workload_json(workload, setting),
            **export.setting_json(setting),
            "plan": export.plan_json(made, report),
            "file": None if out is None else str(out),
        }
        print_json(document)
        return
    console = stdout()
    console.print(tables.heading(workload, setting))
    console.print(tables.plan_report(made, report))
    if out is not None:
        console.print(f"saved to {out}")
