"""Hypothesis strategies for whatever a plan may be asked for, small enough to try thousands.

They draw a batch first, then masks that fit its lengths, and so on down to a `Case`: what
`dcp.plan` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from dcp import masks, registry
from dcp.batch import AttentionSpec, Batch
from dcp.cluster import Cluster
from dcp.execution_plan import ExecutionPlan
from dcp.masks import Mask
from dcp.placement import Limits
from dcp.planner import plan
from dcp.slices import FAR
from dcp.verification.any_placement import AnyPlacement

HEAD_LAYOUTS = (
    (1, 1), (2, 2), (3, 3),  # MHA
    (4, 2), (6, 2), (9, 3), (7, 1), (14, 2),  # GQA of ratio 2, 3 and 7
    (2, 1), (5, 1),  # MQA
)  # fmt: skip
MASK_MODS: dict[str, Callable[..., Any]] = {
    "causal": lambda b, h, q, k: q >= k,
    "checkered": lambda b, h, q, k: (q + k) % 2 == 0,
    "strided": lambda b, h, q, k: (k % 3 == 0) | (q == k),
    "nothing": lambda b, h, q, k: q < -k - 1,
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Case:
    """What `dcp.plan` is asked for; its repr says all of it.

    Attributes:
        options: `partitioner` and `scheduler`, or `baseline`, and whatever else it takes by name.
    """

    batch: Batch
    spec: AttentionSpec
    cluster: Cluster
    block_size: int | Literal["auto"]
    options: dict[str, Any]

    def __repr__(self) -> str:
        batch, cluster = self.batch, self.cluster
        keys = f", kv {list(batch.kv_lengths)}" if batch.is_cross else ""
        return (
            f"Case(lengths {list(batch.q_lengths)}{keys}, masks {[str(m) for m in batch.masks]}, "
            f"{self.spec}, {cluster.nodes}x{cluster.devices_per_node} devices, "
            f"block_size={self.block_size}, {self.options})"
        )

    def plan(self) -> ExecutionPlan:
        """The plan."""
        return plan(self.batch, self.spec, self.cluster, block_size=self.block_size, **self.options)


def block_sizes() -> st.SearchStrategy[int]:
    """From one token up to more than most sequences have."""
    return st.sampled_from([4, 8, 1, 2, 3, 7, 16, 64])


def sequence_lengths(block_size: int) -> st.SearchStrategy[int]:
    """0, 1, whole blocks, a block with one token too few or too many, and others."""
    most = min(4 * block_size + 3, 48)
    edges = {0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size, 3 * block_size + 1}
    named = sorted(edge for edge in edges if edge <= most)
    return st.one_of(st.integers(0, most), st.sampled_from(named))


def length_lists(block_size: int) -> st.SearchStrategy[list[int]]:
    """Lengths of a batch: a few sequences of any length, or many short ones."""
    few = st.lists(sequence_lengths(block_size), min_size=0, max_size=4)
    many = st.lists(st.integers(0, 5), min_size=5, max_size=12)
    return st.one_of(few, many)


@st.composite
def batches(draw: st.DrawFn, block_size: int) -> Batch:
    """Self-attention or cross-attention, one mask for all sequences or one for each."""
    q_lengths = draw(length_lists(block_size))
    kv_lengths = None
    if draw(st.booleans()):
        count = len(q_lengths)
        kv_lengths = draw(st.lists(sequence_lengths(block_size), min_size=count, max_size=count))
    if draw(st.booleans()):
        one = draw(masks_for_any_length())
        return Batch(q_lengths, kv_lengths, mask=one)
    pairs = zip(q_lengths, q_lengths if kv_lengths is None else kv_lengths, strict=True)
    mixed = [draw(masks_for(q_len, kv_len)) for q_len, kv_len in pairs]
    return Batch(q_lengths, kv_lengths, mask=mixed)


def masks_for_any_length() -> st.SearchStrategy[Mask]:
    """Masks given by a rule that fits every query and key length."""
    small, offset = st.integers(0, 12), st.integers(-6, 6)
    some = st.integers(1, 12)
    return st.one_of(
        st.builds(masks.causal, offset),
        st.just(masks.full()),
        st.builds(masks.sliding_window, some, offset),
        st.builds(masks.lambda_mask, small, some, offset),
        st.builds(masks.causal_blockwise, some, st.integers(0, 3)),
        st.builds(masks.prefix_lm, small, offset),
    )


def masks_for(q_len: int, kv_len: int) -> st.SearchStrategy[Mask]:
    """Any mask for these lengths: constructors, random content, set operations on both."""
    plain = [masks_for_any_length(), bound_masks(q_len, kv_len)]
    if q_len == kv_len:
        plain.append(token_masks(q_len))
    one = st.one_of(plain)
    return st.one_of(one, combined_masks(one))


@st.composite
def combined_masks(draw: st.DrawFn, inner: st.SearchStrategy[Mask]) -> Mask:
    """Set operations on one or two masks."""
    operation = draw(st.sampled_from("&|-^~"))
    left = draw(inner)
    if operation == "~":
        return ~left
    right = draw(inner)
    results = {"&": left & right, "|": left | right, "-": left - right, "^": left ^ right}
    return results[operation]


@st.composite
def token_masks(draw: st.DrawFn, length: int) -> Mask:
    """Masks that divide one token sequence: documents, and a shared question."""
    cuts = sorted(draw(st.lists(st.integers(0, length), max_size=4)))
    lengths = np.diff([0, *cuts, length]).tolist()
    kind = draw(st.sampled_from(["documents", "answers", "fraction"]))
    if kind == "documents":
        return masks.documents(lengths, draw(masks_for_any_length()))
    if kind == "answers":
        return masks.shared_question(answer_lengths=lengths[1:])
    return masks.shared_question(
        question_fraction=draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])),
        answers=draw(st.integers(1, 4)),
    )


@st.composite
def bound_masks(draw: st.DrawFn, q_len: int, kv_len: int) -> Mask:
    """Masks from a dense matrix, slices, a mask_mod or FlashMask rows, with random content."""
    kind = draw(st.sampled_from(["dense", "slices", "mask_mod", "flashmask"]))
    if kind == "mask_mod":
        return masks.from_mask_mod(MASK_MODS[draw(st.sampled_from(list(MASK_MODS)))], q_len, kv_len)
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    if kind == "dense":
        return masks.from_dense(_random_matrix(draw, random, q_len, kv_len))
    if kind == "slices":
        return masks.from_slices(_random_slices(random, q_len, kv_len), q_len, kv_len)
    causal = draw(st.booleans())
    columns = draw(st.sampled_from([1, 2] if causal else [2, 4]))
    bounds = random.integers(0, q_len + 1, (kv_len, columns))
    return masks.from_flashmask(bounds, causal=causal, q_len=q_len)


def _random_matrix(
    draw: st.DrawFn, random: np.random.Generator, q_len: int, kv_len: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Random positions, in which some rows see nothing and some keys are not seen."""
    density = draw(st.sampled_from([0.5, 0.1, 0.9, 0.0, 1.0]))
    matrix = random.random((q_len, kv_len)) < density
    matrix[random.random(q_len) < draw(st.sampled_from([0.0, 0.3]))] = False
    matrix[:, random.random(kv_len) < draw(st.sampled_from([0.0, 0.3]))] = False
    return matrix


def _random_slices(
    random: np.random.Generator, q_len: int, kv_len: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A slice of random kind in each cell of a random grid, so that no two overlap."""
    q_cuts = np.unique([0, q_len, *random.integers(0, q_len + 1, 2)])
    k_cuts = np.unique([0, kv_len, *random.integers(0, kv_len + 1, 2)])
    rows = [
        (q0, q1, k0, k1, *_random_band(random, k0 - q0))
        for q0, q1 in pairwise(q_cuts.tolist())
        for k0, k1 in pairwise(k_cuts.tolist())
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 6)


def _random_band(random: np.random.Generator, origin: int) -> tuple[int, int]:
    """Bounds of k − q: full, causal, inverse-causal, a band, or nothing."""
    low, high = origin + np.sort(random.integers(-6, 7, 2))
    bands = [(-FAR, FAR), (-FAR, high), (low, FAR), (low, high), (high, low - 1)]
    return bands[random.integers(len(bands))]


@st.composite
def specs(draw: st.DrawFn, dtype: str = "float64") -> AttentionSpec:
    """Head layouts of every kind; a head dimension that no other size equals."""
    q_heads, kv_heads = draw(st.sampled_from(HEAD_LAYOUTS))
    return AttentionSpec(
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 1, 5])),
        dtype=dtype,
        softmax_scale=draw(st.sampled_from([None, 0.7])),
        float32_partials=draw(st.booleans()),
    )


def clusters() -> st.SearchStrategy[Cluster]:
    """One to six devices on one to three nodes."""
    shapes = [(1, 2), (1, 1), (1, 3), (2, 1), (2, 2), (1, 4), (3, 1), (3, 2)]
    return st.sampled_from(shapes).map(
        lambda shape: Cluster(nodes=shape[0], devices_per_node=shape[1])
    )


@cache
def available(group: str) -> tuple[str, ...]:
    """Names of the backends of a group that can run here."""
    return tuple(each.name for each in registry.entries(group) if each.availability.available)


def limits() -> st.SearchStrategy[Limits]:
    """From those that few placements keep to those that nothing exceeds."""
    between, inside = st.sampled_from([0.4, 0.0, 3.0]), st.sampled_from([0.1, 0.0, 1.0])
    return st.builds(
        Limits, inter_node=between, intra_node=inside, device=st.sampled_from([None, 0.0, 0.2])
    )


def partitioners() -> st.SearchStrategy[Any]:
    """Placements of every kind, and those of the partitioners that run in this process."""
    # KaHyPar starts a process of its own for every problem: too slow to be drawn by the hundred.
    ready = [name for name in available("partitioners") if name != "kahypar"]
    anything = st.builds(AnyPlacement, seed=st.integers(0, 99))
    return st.one_of(anything, st.sampled_from(ready))


def schedulers() -> st.SearchStrategy[str]:
    """Every scheduler; the paper's with all numbers of divisions."""
    paper = st.integers(1, 6).map(lambda divisions: f"paper:divisions={divisions}")
    return st.one_of(paper, st.sampled_from(available("schedulers")))


@st.composite
def baselines(draw: st.DrawFn, spec: AttentionSpec, cluster: Cluster) -> str:
    """Static schemes that can serve this request."""
    devices = cluster.num_devices
    name = draw(st.sampled_from(available("baselines")))
    if name not in ("ulysses", "usp"):
        return name
    degrees = [d for d in range(1, devices + 1) if devices % d == 0 and d <= spec.num_q_heads]
    if name == "ulysses" and devices in degrees:
        return name
    degree = draw(st.sampled_from(degrees))
    layout = draw(st.sampled_from(["ulysses_inner", "ring_inner"]))
    ring = draw(st.sampled_from(["zigzag", "contiguous"]))
    return f"usp:ulysses_degree={degree},layout={layout},ring={ring}"


@st.composite
def ways(draw: st.DrawFn, spec: AttentionSpec, cluster: Cluster) -> dict[str, Any]:
    """What places and schedules: some partitioner and scheduler, a static scheme, or `auto`."""
    # "auto" plans several times, so it is drawn for few.
    way = draw(st.sampled_from([*["planned", "static"] * 4, "auto", "half auto"]))
    if way == "static":
        return {"baseline": draw(baselines(spec, cluster))}
    if way == "auto":
        return {"partitioner": "auto", "scheduler": "auto"}
    chosen = {"partitioner": draw(partitioners()), "scheduler": draw(schedulers())}
    open_one = draw(st.sampled_from(list(chosen))) if way == "half auto" else None
    return chosen if open_one is None else {**chosen, open_one: "auto"}


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """What else `dcp.plan` takes by name."""
    return {
        "keep_bytes": draw(st.sampled_from([0, None, 500])),
        "limits": draw(st.none() | limits()),
        "seed": draw(st.integers(0, 99)),
        "budget": draw(st.sampled_from([1.0, 0.1, 2.0])),
    }


@st.composite
def cases(draw: st.DrawFn, dtype: str = "float64") -> Case:
    """Whatever `dcp.plan` may be asked for, but for selection tables and cost models."""
    block_size = draw(block_sizes())
    spec, cluster = draw(specs(dtype)), draw(clusters())
    return Case(
        batch=draw(batches(block_size)),
        spec=spec,
        cluster=cluster,
        block_size=draw(st.sampled_from([block_size] * 7 + ["auto"])),
        options=draw(ways(spec, cluster)) | draw(settings()),
    )
