"""What the executor tells profilers: NVTX ranges, and spans of the recorder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from attention_runs import random_inputs, run_both_ways

import dcp
from dcp.errors import TransportError
from dcp.instructions import Attention, CommLaunch, Instruction
from dcp.kernels.torch_flash import TorchFlash
from dcp.profiling import range_text
from dcp.profiling.trace import Range, Span, Subject
from dcp.program_facts import facts_of
from dcp.runtime import nvtx_ranges, tracing
from dcp.runtime.local import take_turns
from dcp.runtime.transports import LocalTransport, Mailboxes, Receive
from dcp.scheduling import PHASES
from dcp.simulator import programs_of

SPEC = dcp.AttentionSpec(num_q_heads=4, num_kv_heads=2, head_dim=8, dtype="float32")
BATCH = dcp.Batch([70, 0, 33, 1], mask=dcp.masks.sliding_window(40))
CPU = torch.device("cpu")


def plan_of(baseline: str | None = "zigzag", ranks: int = 3) -> dcp.ExecutionPlan:
    cluster = dcp.Cluster(devices_per_node=ranks)
    kwargs: dict[str, Any] = {"baseline": baseline} if baseline else {"partitioner": "greedy"}
    return dcp.plan(BATCH, SPEC, cluster, block_size=16, **kwargs)


class FakeDomain:
    """A domain of NVTX whose tool keeps what is open and what has happened."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.happened: list[tuple[str, ...]] = []  # the open ranges after each push

    def get_event_attributes(self, message: str) -> SimpleNamespace:
        return SimpleNamespace(message=message)

    def push_range(self, attributes: SimpleNamespace) -> None:
        self.open.append(attributes.message)
        self.happened.append(tuple(self.open))

    def pop_range(self) -> None:
        self.open.pop()


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, FakeDomain]]:
    """The package, with a tool attached; its domains by name."""
    domains: dict[str, FakeDomain] = {}
    module = ModuleType("nvtx")
    module.get_domain = lambda name: domains.setdefault(name, FakeDomain())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvtx", module)
    monkeypatch.setattr(nvtx_ranges, "find_spec", lambda name: object())
    nvtx_ranges.domain.cache_clear()
    yield domains
    nvtx_ranges.domain.cache_clear()


# NVTX


def test_instructions_nest_in_divisions_and_these_in_phases(nvtx: dict[str, FakeDomain]) -> None:
    plan = plan_of()
    run_both_ways(plan, random_inputs(BATCH, SPEC))
    assert list(nvtx) == ["dcp"]
    assert not nvtx["dcp"].open
    seen = set()
    for nested in nvtx["dcp"].happened:
        told = [range_text.parse(text) for text in nested]
        assert all(told)
        subjects, ranges = zip(*told, strict=True)  # type: ignore[arg-type]
        assert len(set(subjects)) == 1, "ranges of two ranks or phases are open at once"
        assert plan.digest.startswith(subjects[0].digest)
        kinds = tuple(one.kind for one in ranges)
        assert kinds[:-1] in ((), ("phase",), ("phase", "division"))
        if len(kinds) == 3:
            assert ranges[1].division == ranges[2].division
        seen.add((subjects[0].rank, subjects[0].phase, kinds))
    for rank in range(3):
        for phase in PHASES:
            for kinds in (
                ("setup",),
                ("phase",),
                ("phase", "division"),
                ("phase", "division", "attention"),
                ("phase", "finish"),
            ):
                assert (rank, phase, kinds) in seen


def test_a_range_says_what_it_is() -> None:
    subject = Subject("0123456789abcdef", 1, "forward")
    text = range_text.text(subject, Range("attention", 3, 0, 524800))
    assert text == "attention 3 plan=0123456789ab rank=1 phase=forward bytes=0 pairs=524800"
    assert range_text.parse(text) == (
        Subject("0123456789ab", 1, "forward"),
        Range("attention", 3, 0, 524800),
    )
    whole = Range("phase", -1, 7, 8)
    assert range_text.parse(range_text.text(subject, whole)) == (
        Subject("0123456789ab", 1, "forward"),
        whole,
    )


@pytest.mark.parametrize("text", ["", "attention 3", "my range", "setup plan=xyz rank=0"])
def test_ranges_of_others_are_not_taken_for_ours(text: str) -> None:
    assert range_text.parse(text) is None


class _Failing(TorchFlash):
    def forward(self, *args: Any) -> Any:
        raise ArithmeticError("the kernel failed")


def test_an_error_leaves_no_range_open(nvtx: dict[str, FakeDomain]) -> None:
    q, k, v, _ = random_inputs(BATCH, SPEC)
    with pytest.raises(ArithmeticError):
        dcp.run_local(plan_of(), q, k, v, kernel=_Failing())
    assert nvtx["dcp"].happened
    assert not nvtx["dcp"].open


def test_ranks_that_wait_for_ever_leave_no_range_open(nvtx: dict[str, FakeDomain]) -> None:
    plan = plan_of()
    watch = tracing.watch(plan, 0, "forward", CPU)
    transport = LocalTransport(Mailboxes(), 0)
    transport.launch(1, [], [Receive(peer=1, block=0, data=torch.empty(1, dtype=torch.uint8))])

    def waiting() -> Iterator[int]:
        for _ in watch.each(plan.ranks[0].forward.instructions):
            yield 1

    with pytest.raises(TransportError, match="deadlock"):
        take_turns([watch.turns(waiting())], [transport])
    assert not nvtx["dcp"].open


def test_without_nvtx_nothing_is_imported_or_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("called")

    monkeypatch.setattr(nvtx_ranges, "find_spec", lambda name: None)
    monkeypatch.setattr(nvtx_ranges, "import_module", refuse)
    monkeypatch.setattr(tracing, "facts_of", refuse)
    monkeypatch.setattr(tracing, "ObservedWatch", refuse)
    nvtx_ranges.domain.cache_clear()
    try:
        run_both_ways(plan_of(), random_inputs(BATCH, SPEC))
        watch = tracing.watch(plan_of(), 0, "forward", CPU)
    finally:
        nvtx_ranges.domain.cache_clear()
    instructions: list[Instruction] = []
    turns: Iterator[int] = iter(())
    assert watch.each(instructions) is instructions
    assert watch.turns(turns) is turns


def test_nvtx_without_a_tool_costs_nothing(
    nvtx: dict[str, FakeDomain], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package then hands out a dummy domain, which makes no attributes."""
    monkeypatch.setattr(FakeDomain, "get_event_attributes", lambda self, message: None)
    assert tracing.watch(plan_of(), 0, "forward", CPU) is tracing.UNWATCHED


# Recorder


@pytest.mark.parametrize("baseline", ["zigzag", "ulysses", "usp", None])
def test_every_instruction_of_every_rank_has_a_span(baseline: str | None) -> None:
    plan = plan_of(baseline)
    with tracing.record() as recorder:
        run_both_ways(plan, random_inputs(BATCH, SPEC))
    spans = recorder.spans(plan.digest)
    for phase in PHASES:
        for rank, program in enumerate(programs_of(plan, phase)):
            mine = [span for span in spans if (span.rank, span.phase) == (rank, phase)]
            mine.sort(key=lambda span: span.begin_ns)
            facts = facts_of(plan.blocks, program)
            assert [
                (span.kind, span.division, span.bytes, span.pairs)
                for span in mine
                if span.kind not in ("setup", "phase", "division", "finish")
            ] == [(fact.kind, fact.division, fact.bytes, fact.pairs) for fact in facts]
            _check_nesting(mine)
    assert recorder.spans("another plan") == []


def _check_nesting(spans: list[Span]) -> None:
    def inside(inner: Span, outer: Span) -> bool:
        return outer.begin_ns <= inner.begin_ns <= inner.end_ns <= outer.end_ns

    (phase,) = (span for span in spans if span.kind == "phase")
    divisions = [span for span in spans if span.kind == "division"]
    for span in spans:
        if span.division >= 0:
            assert inside(span, phase)
            assert sum(inside(span, division) for division in divisions) == 1
    for kind in ("setup", "finish"):
        (edge,) = (span for span in spans if span.kind == kind)
        assert (edge.end_ns <= phase.begin_ns) if kind == "setup" else inside(edge, phase)


def test_runs_are_counted_and_nothing_is_recorded_outside_the_block() -> None:
    plan, (q, k, v, _) = plan_of(), random_inputs(BATCH, SPEC)
    dcp.run_local(plan, q, k, v)
    with tracing.record() as recorder:
        for _ in range(2):
            dcp.run_local(plan, q, k, v)
    dcp.run_local(plan, q, k, v)
    phases = [span for span in recorder.spans(plan.digest) if span.kind == "phase"]
    assert sorted((span.rank, span.run) for span in phases) == [
        (rank, run) for rank in range(3) for run in range(2)
    ]


def test_a_process_of_its_own_is_recorded_too() -> None:
    plan, (q, k, v, _) = plan_of(ranks=1), random_inputs(BATCH, SPEC)
    with tracing.record() as recorder:
        dcp.ContextParallel().attention(plan, q, k, v)
    kinds = [span.kind for span in recorder.spans(plan.digest)]
    assert kinds == ["setup", "attention", "copy", "division", "finish", "phase"]


def test_recording_changes_no_bit() -> None:
    plan, inputs = plan_of(), random_inputs(BATCH, SPEC)
    bare = run_both_ways(plan, inputs)
    with tracing.record():
        recorded = run_both_ways(plan, inputs)
    assert all(torch.equal(bare[name], recorded[name]) for name in bare)


# Facts


@pytest.mark.parametrize("baseline", ["ring", "zigzag", "ulysses", "usp", None])
def test_facts_add_up_to_the_plan(baseline: str | None) -> None:
    plan = plan_of(baseline, ranks=4)
    report = plan.report()
    heads = plan.blocks.groups.q_count[plan.blocks.comp_group]
    pairs = int((plan.blocks.comp_pairs * heads).sum())
    for phase, sent in zip(PHASES, (report.comm_bytes, report.backward_comm_bytes), strict=True):
        facts = [
            fact for program in programs_of(plan, phase) for fact in facts_of(plan.blocks, program)
        ]
        assert sum(fact.pairs for fact in facts) == pairs
        assert sum(fact.bytes for fact in facts if fact.kind == "launch") == sent
        assert sum(fact.bytes for fact in facts if fact.kind == "wait") == sent


def test_an_instruction_belongs_to_the_division_that_it_serves() -> None:
    plan = plan_of()
    for phase in PHASES:
        for program in programs_of(plan, phase):
            facts = facts_of(plan.blocks, program)
            for instruction, fact in zip(program.instructions, facts, strict=True):
                if isinstance(instruction, Attention):
                    assert fact.division == instruction.division
                if isinstance(instruction, CommLaunch):
                    assert fact.division == instruction.step - 1
            divisions = [fact.division for fact in facts]
            assert divisions == sorted(divisions)
