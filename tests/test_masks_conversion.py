"""Masks made of slices, matrices, mask_mod functions and FlashMask rows equal what they were."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dcp import masks
from dcp import slices as slice_ops
from dcp.arrays import BoolArray, IntArray

pytestmark = pytest.mark.property

lengths = st.integers(0, 20)


@given(lengths, lengths, st.data())
def test_from_dense_is_the_matrix(q_len: int, kv_len: int, data: st.DataObject) -> None:
    dense = data.draw(hnp.arrays(np.bool_, (q_len, kv_len)))
    mask = masks.from_dense(dense)
    np.testing.assert_array_equal(mask.dense(q_len, kv_len), dense)
    assert mask.area(q_len, kv_len) == dense.sum()


def test_from_dense_takes_a_torch_tensor() -> None:
    assert masks.from_dense(torch.eye(4, dtype=torch.bool)).area(4) == 4  # type: ignore[arg-type]


@given(lengths, lengths, st.data())
def test_from_slices_is_the_slices(q_len: int, kv_len: int, data: st.DataObject) -> None:
    rows = slice_ops.from_dense(data.draw(hnp.arrays(np.bool_, (q_len, kv_len))))
    mask = masks.from_slices(rows, q_len, kv_len)
    np.testing.assert_array_equal(mask.slices(q_len, kv_len), rows)


def test_from_slices_drops_empty_slices_and_makes_the_rest_canonical() -> None:
    open_side = np.iinfo(np.int64).min
    mask = masks.from_slices(
        [[0, 4, 0, 4, open_side, 0], [2, 2, 0, 4, -9, 9], [0, 4, 0, 4, 2, 1]], 4
    )
    assert mask.slices(4).tolist() == [[0, 4, 0, 4, -3, 0]]
    assert masks.from_slices([], 4, 5).slices(4, 5).shape == (0, 6)


MODS: dict[str, Callable[..., torch.Tensor]] = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 5),
    "documents": lambda b, h, q, k: torch.tensor([0] * 9 + [1] * 31)[q] == (k > 8),
    "rows only": lambda b, h, q, k: q % 3 == 0,
    "keys only": lambda b, h, q, k: k % 3 != 0,
    "constant": lambda b, h, q, k: torch.tensor(True),
    "batch and head": lambda b, h, q, k: (q + b + h) >= k,
}


@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(20, 20), (7, 31), (31, 7), (0, 5), (5, 0)])
def test_from_mask_mod_is_the_function(name: str, q_len: int, kv_len: int) -> None:
    zero = torch.tensor(0)
    q, k = torch.arange(q_len)[:, None], torch.arange(kv_len)[None, :]
    expected = MODS[name](zero, zero, q, k).expand(q_len, kv_len).numpy()
    mask = masks.from_mask_mod(MODS[name], q_len, kv_len)
    np.testing.assert_array_equal(mask.dense(q_len, kv_len), expected)


def test_from_mask_mod_calls_the_function_in_stripes() -> None:
    seen: list[int] = []

    def window(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        seen.append(q.numel() * k.numel())
        return (q >= k) & (q - k < 100)

    mask = masks.from_mask_mod(window, 5000)
    assert sum(seen) == 5000**2
    assert max(seen) < 5_000_000
    np.testing.assert_array_equal(mask.slices(5000), masks.sliding_window(100).slices(5000))


def flashmask_by_definition(bounds: IntArray, causal: bool, q_len: int) -> BoolArray:
    """Mask the rows of one column after another."""
    allowed = np.ones((q_len, len(bounds)), dtype=np.bool_)
    for column, rows in enumerate(bounds.tolist()):
        if causal:
            allowed[:column, column] = False
            start, end = rows if len(rows) == 2 else (rows[0], q_len)
            allowed[start:end, column] = False
        elif len(rows) == 2:
            allowed[rows[0] :, column] = False
            allowed[: rows[1], column] = False
        else:
            allowed[rows[0] : rows[1], column] = False
            allowed[rows[2] : rows[3], column] = False
    return allowed


@pytest.mark.parametrize(("causal", "bounds"), [(True, 1), (True, 2), (False, 2), (False, 4)])
@given(lengths, lengths, st.data())
def test_from_flashmask_masks_the_rows_of_each_column(
    causal: bool, bounds: int, q_len: int, kv_len: int, data: st.DataObject
) -> None:
    # Bounds that stay or move by one for some columns share slices, so draw steps as well.
    start = data.draw(hnp.arrays(np.int64, bounds, elements=st.integers(0, q_len)))
    steps = data.draw(
        hnp.arrays(np.int64, (kv_len, bounds), elements=st.sampled_from([0, 0, 0, 1, 1, 1, -1, 4]))
    )
    rows = np.clip(start + np.cumsum(steps, axis=0), 0, q_len)
    mask = masks.from_flashmask(rows, causal=causal, q_len=q_len)
    expected = flashmask_by_definition(rows, causal, q_len)
    np.testing.assert_array_equal(mask.dense(q_len, kv_len), expected)
    assert mask.area(q_len, kv_len) == expected.sum(), "slices overlap"


def test_flashmask_forms_of_known_masks_need_few_slices() -> None:
    length = 1 << 18
    column = np.arange(length)
    window = masks.from_flashmask(np.minimum(column + 4096, length)[:, None], causal=True)
    assert window.slices(length).tolist() == masks.sliding_window(4096).slices(length).tolist()

    docs = [length // 4, length // 2, length // 4]
    end = np.repeat(np.cumsum(docs), docs)
    packed = masks.from_flashmask(end[:, None], causal=True)
    assert packed.slices(length).tolist() == masks.documents(docs).slices(length).tolist()
    both_ways = masks.from_flashmask(
        np.stack([end, end - np.repeat(docs, docs)], axis=1), causal=False
    )
    expected = masks.documents(docs, masks.full())
    assert both_ways.slices(length).tolist() == expected.slices(length).tolist()


def test_masks_load_without_torch() -> None:
    code = "import sys, dcp.masks, dcp.slices; assert 'torch' not in sys.modules, 'torch loaded'"
    subprocess.run([sys.executable, "-c", code], check=True)
