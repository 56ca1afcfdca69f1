"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from dcp.batch import DTYPE_BYTES, AttentionSpec, Batch
from dcp.cli.mask_requests import forms, make_mask
from dcp.cluster import PRESETS, Cluster
from dcp.comparison import Setting
from dcp.errors import SpecError
from dcp.placement import Limits
from dcp.workloads import Workload, load

T = TypeVar("T")

INPUT, _MODEL, _PLANNING = "Input", "Attention and cluster", "Planning"

Lengths = Annotated[
    Path | None,
    typer.Option(
        help="File of lengths in tokens: one a line, or JSON: a list of lengths, a list of "
        'batches (lists of lengths), or {"batches": [...]}.',
        rich_help_panel=INPUT,
        show_default=False,
    ),
]
Text = Annotated[
    Path | None,
    typer.Option(
        help="Folder whose files are documents. Their tokens are counted as UTF-8 bytes / 4, "
        "rounded up, or by --tokenizer. Without --lengths and --text: the sources of Python's "
        "standard library.",
        rich_help_panel=INPUT,
        show_default=False,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        help="JSON file of a tokenizer, to count tokens with; needs the extra 'train'.",
        rich_help_panel=INPUT,
        show_default=False,
    ),
]
Seed = Annotated[
    int, typer.Option(help="Shuffles documents; seed of the partitioners.", rich_help_panel=INPUT)
]
MaskName = Annotated[
    str,
    typer.Option(
        "--mask", help=f"Mask of every sequence: {'; '.join(forms())}.", rich_help_panel=_MODEL
    ),
]
Heads = Annotated[str, typer.Option(help="Query heads / key heads.", rich_help_panel=_MODEL)]
LimitsText = Annotated[
    str,
    typer.Option(
        "--limits",
        help="How far computing may exceed the mean, as a fraction of it: inter_node for nodes, "
        "intra_node for devices inside a node, device for devices over all nodes; and tokens for "
        "how far a device's tokens may.",
        rich_help_panel=_PLANNING,
    ),
]
Budget = Annotated[
    float, typer.Option(help="Effort of the partitioners.", rich_help_panel=_PLANNING)
]
KeepBytesText = Annotated[
    str,
    typer.Option(
        "--keep-bytes",
        help="Most bytes of received queries, keys and values that a rank keeps for backward, "
        "which is then not sent them again; all for no limit.",
        rich_help_panel=_PLANNING,
    ),
]

CLUSTER_FORMS = (
    f"NODESxDEVICES, PRESET:NODES or PRESET:NODESxDEVICES, with a preset of {', '.join(PRESETS)}"
)


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Values of the options whose default depends on whether plans are executed."""

    tokens: int
    head_dim: int
    dtype: str
    cluster: str
    block_size: int


DEFAULTS = Defaults(tokens=131072, head_dim=128, dtype="bfloat16", cluster="2x4", block_size=1024)
RUN_DEFAULTS = Defaults(
    tokens=8192, head_dim=64, dtype="float32", cluster="local:2x2", block_size=512
)


def in_words(defaults: Defaults, names: Sequence[str] | None = None) -> str:
    """Defaults as one would write them, all or those named."""
    chosen = vars(defaults) if names is None else names
    return ", ".join(f"--{name.replace('_', '-')} {getattr(defaults, name)}" for name in chosen)


def _sized(flag: str, name: str, text: str, panel: str) -> Any:
    """An option whose default is filled in by `Request.resolve`."""
    text = f"{text} [default: {getattr(DEFAULTS, name)}]"
    return typer.Option(flag, help=text, rich_help_panel=panel, show_default=False)


Tokens = Annotated[
    int | None,
    _sized(
        "--tokens",
        "tokens",
        "Most tokens a batch; longer documents are cut. Batches of a file stay as they are.",
        INPUT,
    ),
]
HeadDim = Annotated[int | None, _sized("--head-dim", "head_dim", "Elements a head.", _MODEL)]
Dtype = Annotated[
    str | None, _sized("--dtype", "dtype", f"One of {', '.join(DTYPE_BYTES)}.", _MODEL)
]
ClusterShape = Annotated[str | None, _sized("--cluster", "cluster", f"{CLUSTER_FORMS}.", _MODEL)]
BlockSize = Annotated[
    str | None,
    _sized(
        "--block-size",
        "block_size",
        "Most tokens a block, or auto for what fits each batch.",
        _PLANNING,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options that say what to plan, as given; None for the default."""

    lengths: Lengths = None
    text: Text = None
    tokenizer: Tokenizer = None
    tokens: Tokens = None
    seed: Seed = 0
    mask: MaskName = "causal"
    heads: Heads = "8/2"
    head_dim: HeadDim = None
    dtype: Dtype = None
    cluster: ClusterShape = None
    block_size: BlockSize = None
    limits: LimitsText = "inter_node=0.4,intra_node=0.1"
    budget: Budget = 1.0
    keep_bytes: KeepBytesText = "0"

    def resolve(self, defaults: Defaults, num_batches: int | None = 1) -> tuple[Workload, Setting]:
        """Read the input and make what is asked for.

        Args:
            defaults: Of the options that were not given.
            num_batches: Most batches; None for 1, or all that a file holds already.
        Raises:
            DcpError: some option is illegal; the message says what is legal.
        """
        mask, limits = make_mask(self.mask), read_limits(self.limits)
        cluster = read_cluster(_or(self.cluster, defaults.cluster))
        spec = read_heads(
            self.heads, _or(self.head_dim, defaults.head_dim), _or(self.dtype, defaults.dtype)
        )
        workload = load(
            lengths=self.lengths,
            text=self.text,
            tokenizer=self.tokenizer,
            tokens=_or(self.tokens, defaults.tokens),
            num_batches=num_batches,
            seed=self.seed,
        )
        setting = Setting(
            batches=tuple(Batch(lengths, mask=mask) for lengths in workload.batches),
            spec=spec,
            cluster=cluster,
            block_size=read_block_size(_or(self.block_size, str(defaults.block_size))),
            limits=limits,
            seed=self.seed,
            budget=self.budget,
            keep_bytes=read_keep_bytes(self.keep_bytes),
        )
        return workload, setting

    def filled_in(self, defaults: Defaults) -> str:
        """The defaults that were taken because the options were not given."""
        return in_words(defaults, [name for name in vars(defaults) if getattr(self, name) is None])


def _or(given: T | None, default: T) -> T:
    return default if given is None else given


def read_cluster(text: str) -> Cluster:
    """A cluster from `2x4`, `p4de:4` or `p4de:4x8`.

    Raises:
        SpecError: the text reads otherwise, or names no preset.
    """
    found = re.fullmatch(r"(?:(\w+):(\d+)(?:x(\d+))?|(\d+)x(\d+))", text)
    if found is None:
        raise SpecError(f"cluster {text!r} cannot be read; write {CLUSTER_FORMS}")
    preset, nodes, devices, plain_nodes, plain_devices = found.groups()
    if preset is None:
        return Cluster(nodes=_count(plain_nodes), devices_per_node=_count(plain_devices))
    count = None if devices is None else _count(devices)
    return Cluster.preset(preset, nodes=_count(nodes), devices_per_node=count)


def read_heads(text: str, head_dim: int, dtype: str) -> AttentionSpec:
    """Heads from `8/2`, or `8` for as many key heads as query heads.

    Raises:
        SpecError: the text reads otherwise, or the counts or the dtype are illegal.
    """
    found = re.fullmatch(r"(\d+)(?:/(\d+))?", text)
    if found is None:
        raise SpecError(f"heads {text!r} cannot be read; write QUERY/KEY, e.g. 8/2")
    q_heads, kv_heads = found.groups()
    return AttentionSpec(
        num_q_heads=_count(q_heads),
        num_kv_heads=_count(kv_heads or q_heads),
        head_dim=head_dim,
        dtype=dtype,
    )


def read_block_size(text: str) -> int | Literal["auto"]:
    """A whole number, or "auto".

    Raises:
        SpecError: the text is neither.
    """
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise SpecError(
            f"block size {text!r} cannot be read; write a whole number or auto"
        ) from None


def read_keep_bytes(text: str) -> int | None:
    """A whole number of bytes, or "all", which is None.

    Raises:
        SpecError: the text is neither.
    """
    if text == "all":
        return None
    if not re.fullmatch(r"\d+", text):
        raise SpecError(f"keep bytes {text!r} cannot be read; write a whole number or all")
    return _count(text)


def read_limits(text: str) -> Limits:
    """Limits from `inter_node=0.4,device=0.1`; what is not named keeps its default.

    Raises:
        SpecError: an unknown name, a name that stands twice, or no legal number.
    """
    names = [field.name for field in fields(Limits)]
    given: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, fraction = (piece.strip() for piece in part.partition("=")[::2])
        if name not in names or name in given or not _is_number(fraction):
            raise SpecError(
                f"limit {part!r} cannot be read; write NAME=FRACTION,..., each name once; legal: "
                f"{', '.join(names)}"
            )
        given[name] = float(fraction)
    return Limits(**given)


def _count(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # more digits than Python reads
        raise SpecError(f"a number has {len(digits)} digits; it must fit 64 bits") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
