"""The strategies draw what they promise, and the fuzzer finds and shrinks what is wrong."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import dcp
from dcp.verification.fuzz import fuzz
from dcp.verification.strategies import Case, available, baselines, batches, cases, masks_for, specs

pytestmark = pytest.mark.property


@given(q_len=st.integers(0, 20), kv_len=st.integers(0, 20), data=st.data())
def test_masks_fit_the_lengths_that_they_are_drawn_for(
    q_len: int, kv_len: int, data: st.DataObject
) -> None:
    mask = data.draw(masks_for(q_len, kv_len))
    assert mask.dense(q_len, kv_len).shape == (q_len, kv_len)
    assert mask.area(q_len, kv_len) == mask.dense(q_len, kv_len).sum()


_WANTED = {
    "an empty batch": lambda b: len(b) == 0,
    "a sequence of length 0": lambda b: 0 in b.q_lengths,
    "keys without queries": lambda b: any(
        q == 0 < k for q, k in zip(b.q_lengths, b.kv_lengths, strict=True)
    ),
    "queries without keys": lambda b: any(
        k == 0 < q for q, k in zip(b.q_lengths, b.kv_lengths, strict=True)
    ),
    "a tail of one token": lambda b: any(n % 4 == 1 for n in b.q_lengths if n > 4),
    "many short sequences": lambda b: len(b) >= 8 and max(b.q_lengths) <= 5,
    "several masks": lambda b: len(set(b.masks)) > 2,
    "a row without keys": lambda b: any(
        not m.dense(q, k).any(axis=1).all()
        for m, q, k in zip(b.masks, b.q_lengths, b.kv_lengths, strict=True)
        if k
    ),
    "nothing allowed at all": lambda b: (
        b.num_q_tokens * b.num_kv_tokens > 0
        and not any(
            m.area(q, k) for m, q, k in zip(b.masks, b.q_lengths, b.kv_lengths, strict=True)
        )
    ),
}


_SEARCH = settings(
    max_examples=2000,
    phases=[Phase.generate],
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("what", _WANTED)
def test_batches_include(what: str) -> None:
    find(batches(4), _WANTED[what], settings=_SEARCH)


_WANTED_OF_PLANS = {
    "auto alone": lambda c: c.options.get("partitioner") == c.options.get("scheduler") == "auto",
    "auto for a partitioner": lambda c: (
        c.options.get("partitioner") == "auto" != c.options["scheduler"]
    ),
    "auto for a scheduler": lambda c: (
        c.options.get("scheduler") == "auto" != c.options["partitioner"]
    ),
    "a block size chosen for the batch": lambda c: c.block_size == "auto",
    "limits that bind": lambda c: c.options["limits"] and not c.options["limits"].intra_node,
    "no limits": lambda c: c.options["limits"] is None,
    "another seed": lambda c: c.options["seed"] > 0,
    "less effort": lambda c: c.options["budget"] < 1,
}


@pytest.mark.parametrize("what", _WANTED_OF_PLANS)
def test_requests_include(what: str) -> None:
    find(cases(), _WANTED_OF_PLANS[what], settings=_SEARCH)


def test_what_is_not_drawn_of_what_plan_takes_is_known() -> None:
    drawn = {"batch", "heads", "cluster", "block_size"}

    @settings(_SEARCH, max_examples=50)
    @given(case=cases())
    def draw(case: Case) -> None:
        drawn.update(case.options)

    draw()
    assert set(signature(dcp.plan).parameters) - drawn == {"selection", "cost_model"}


@given(spec=specs(), nodes=st.integers(1, 3), devices=st.integers(1, 4), data=st.data())
def test_baselines_can_serve_what_they_are_drawn_for(
    spec: dcp.AttentionSpec, nodes: int, devices: int, data: st.DataObject
) -> None:
    cluster = dcp.Cluster(nodes=nodes, devices_per_node=devices)
    request = data.draw(baselines(spec, cluster))
    plan = dcp.plan(dcp.Batch([9]), spec, cluster, block_size=4, baseline=request)
    assert plan.origin.baseline == request


def test_what_can_run_here_is_listed() -> None:
    assert "greedy" in available("partitioners")
    assert {"paper", "sequential"} <= set(available("schedulers"))


@given(case=cases())
def test_a_case_says_all_of_itself(case: Case) -> None:
    text = repr(case)
    assert str(list(case.batch.q_lengths)) in text
    assert f"block_size={case.block_size}" in text


def test_fuzzing_sound_plans_finds_nothing() -> None:
    result = fuzz(examples=60)
    assert result.examples == 60
    assert result.case is None
    assert result.error is None


def test_fuzzing_ends_when_its_time_is_up() -> None:
    assert fuzz(seconds=0.0).examples == 0


def test_a_fault_is_found_and_made_small() -> None:
    def fails_where_a_sequence_is_long(case: Case, seed: int) -> None:
        assert max(case.batch.q_lengths, default=0) < 6, "too long"

    result = fuzz(examples=500, check=fails_where_a_sequence_is_long)
    assert result.case is not None
    assert result.case.batch.q_lengths == (6,)
    assert "too long" in str(result.error)
    assert 0 < result.examples < 500
    assert np.prod([result.case.cluster.num_devices, result.case.spec.num_q_heads]) <= 2


def test_only_requests_that_held_before_the_fault_are_counted() -> None:
    tried: list[bool] = []

    def fails_at_the_fortieth(case: Case, seed: int) -> None:
        tried.append(len(tried) % 40 < 39)
        assert tried[-1]

    result = fuzz(examples=60, check=fails_at_the_fortieth)
    assert result.error is not None
    assert result.examples == 39


def test_a_request_that_cannot_be_made_is_a_finding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = st.integers(0, 0).map(lambda zero: 1 // zero)
    monkeypatch.setattr("dcp.verification.fuzz.cases", lambda dtype: broken)
    result = fuzz(examples=5)
    assert isinstance(result.error, ZeroDivisionError)
    assert result.case is None
    assert result.examples == 0
