from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runspan.errors import TraceFormatError
from runspan.tracefile import Comparison, compare
from runspan.tracefile.events import Terminal, TraceEvent
from runspan.tracefile.meta import ExecutionPhase, TimingMode
from support.captures import capture_meta, complete_capture, gradient_event, memory_event, span_events
from support.traces import make_meta, make_terminal, write_lines

if TYPE_CHECKING:
    from pathlib import Path


def _capture(*inside: TraceEvent, took_ns: int = 100, **meta: Any) -> list[TraceEvent]:
    """Return a capture whose measured span ``step`` takes so long and holds this."""
    step = span_events("step", None, 0, took_ns, inside, measured=True)
    return [capture_meta(**meta), *step, Terminal("complete", took_ns, "success")]


def test_a_trace_equals_itself() -> None:
    """Compared with itself, every delta is zero, and nothing is warned of."""
    same = compare(complete_capture(), complete_capture())
    assert (same.comparable, same.warnings, same.total_delta_ns, same.total_delta_percent) == (True, [], 0, 0.0)
    assert (same.baseline_peak_bytes, same.candidate_peak_bytes, same.peak_delta_bytes) == (16, 16, 0)
    assert [span.path for span in same.spans] == ["step", "step/forward", "step/backward", "step/optimizer"]
    assert {(span.delta_ns, span.delta_percent) for span in same.spans} == {(0, 0.0)}
    assert [(gradient.key, gradient.norm_delta) for gradient in same.gradients] == [("layer.weight", 0.0)]


def test_the_fields_are_those_of_the_format() -> None:
    """The JSON form has the names that the format fixes, in its order; an unknown peak is null, not 0."""
    encoded = msgspec.to_builtins(compare(_capture(took_ns=100), _capture(took_ns=150, run_id="run-b")))
    assert list(encoded) == [
        "baseline_run_id",
        "candidate_run_id",
        "comparable",
        "warnings",
        "total_delta_ns",
        "total_delta_percent",
        "baseline_peak_bytes",
        "candidate_peak_bytes",
        "peak_delta_bytes",
        "spans",
        "gradients",
    ]
    assert (encoded["baseline_run_id"], encoded["candidate_run_id"]) == ("run-a", "run-b")
    assert (encoded["total_delta_ns"], encoded["total_delta_percent"]) == (50, 50.0)
    assert (encoded["baseline_peak_bytes"], encoded["peak_delta_bytes"]) == (None, None)
    assert encoded["warnings"] == [
        "the baseline has no memory events: its peak is unknown",
        "the candidate has no memory events: its peak is unknown",
    ]


def test_spans_of_one_path_are_added_up() -> None:
    """Repeated spans are one entry with their count; one that a side lacks counts there as none."""
    baseline = _capture(*span_events("a", "step", 10, 20, name="op"), *span_events("b", "step", 20, 50, name="op"))
    candidate = _capture(*span_events("a", "step", 10, 30, name="op"), *span_events("x", "step", 40, 45))
    _, repeated, added = compare(baseline, candidate).spans
    assert (repeated.path, repeated.baseline_count, repeated.candidate_count) == ("step/op", 2, 1)
    assert (repeated.baseline_ns, repeated.candidate_ns, repeated.delta_ns) == (40, 20, -20)
    assert repeated.delta_percent == -50.0
    assert (added.path, added.baseline_count, added.candidate_count, added.delta_ns) == ("step/x", 0, 1, 5)
    assert "delta_percent" not in msgspec.to_builtins(added)


def test_a_zero_baseline_has_no_percentage() -> None:
    """A total that was zero cannot have grown by a share of it: the percentage is left out."""
    comparison = compare(_capture(took_ns=0), _capture(took_ns=7))
    assert comparison.total_delta_ns == 7
    assert "total_delta_percent" not in msgspec.to_builtins(comparison)


def test_peaks_count_a_storage_once() -> None:
    """The peak is the most that was live at once, over all devices, whatever shares a storage."""
    grown = _capture(
        memory_event("alloc", 1, 100), memory_event("alloc", 1, 100, tensor_id="view"), memory_event("free", 1, 100)
    )
    wide = _capture(memory_event("alloc", 1, 100), memory_event("alloc", 1, 60, device="cuda:0"))
    comparison = compare(grown, wide)
    assert (comparison.baseline_peak_bytes, comparison.candidate_peak_bytes) == (100, 160)
    assert comparison.peak_delta_bytes == 60


def test_gradients_are_paired_by_key() -> None:
    """A gradient shows state and norm of both sides; of several of one key the last holds, which the optimizer saw."""
    baseline = _capture(gradient_event(norm=9.0), gradient_event(norm=2.0), gradient_event("zero", 0.0, "bias"))
    candidate = _capture(gradient_event(norm=1.5), gradient_event("missing", None, "bias"), gradient_event(key="new"))
    weight, bias, new = map(msgspec.to_builtins, compare(baseline, candidate).gradients)
    assert (weight["baseline_norm"], weight["candidate_norm"], weight["norm_delta"]) == (2.0, 1.5, -0.5)
    assert bias == {"key": "bias", "baseline_state": "zero", "candidate_state": "missing", "baseline_norm": 0.0}
    assert new == {"key": "new", "candidate_state": "present", "candidate_norm": 1.0}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("entrypoint", "eval:main", "entrypoint is 'train:main' in the baseline and 'eval:main' in the candidate"),
        ("phase", ExecutionPhase.INFER, "phase is 'train' in the baseline and 'infer' in the candidate"),
        ("device", "cuda:0", "device is 'cpu' in the baseline and 'cuda:0' in the candidate"),
        ("timing_mode", TimingMode.DEVICE_SYNCHRONIZED, "timing_mode is 'host' in the baseline and"),
        ("capture_step", 102, "capture_step is 101 in the baseline and 102 in the candidate"),
        ("warmup_steps", 0, "warmup_steps is 100 in the baseline and 0 in the candidate"),
    ],
)
def test_what_makes_traces_incomparable(field: str, value: Any, told: str) -> None:
    """Each of the six fields makes traces incomparable where it differs; the warning has both values."""
    comparison = compare(_capture(), _capture(took_ns=110, **{field: value}))
    assert not comparison.comparable
    assert [warning for warning in comparison.warnings if told in warning] == [comparison.warnings[0]]
    assert comparison.total_delta_ns == 10


def test_other_fields_do_not_make_traces_incomparable() -> None:
    """Runs at other times, with other tags, can be compared; a tag that differs is told."""
    baseline = _capture(tags={"batch_size": "32", "lesson": "1"})
    candidate = _capture(tags={"batch_size": "64", "lesson": "1"}, timestamp="2024-01-01T00:00:00.000Z", run_id="b")
    comparison = compare(baseline, candidate)
    assert comparison.comparable
    assert comparison.warnings[0] == "tag 'batch_size' is '32' in the baseline and '64' in the candidate"


def _run_trace(took_s: float) -> list[TraceEvent]:
    end_ns = int(took_s * 1e9)
    return [make_meta(), *span_events("run", None, 5, end_ns), make_terminal(took_s)]


def test_a_run_trace_is_compared_by_its_root(tmp_path: Path) -> None:
    """Where no span is marked as measured the root tells the total; memory that nobody recorded is no warning there."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, took_s in zip(paths, (1.0, 1.5), strict=True):
        write_lines(path, _run_trace(took_s))
    comparison = compare(paths[0], str(paths[1]))
    assert comparison.total_delta_ns == 500_000_000
    assert comparison.warnings == []


def test_a_trace_without_spans_has_an_unknown_total() -> None:
    """Missing evidence is told, not taken for a total of 0."""
    comparison = compare([make_meta(), make_terminal()], _run_trace(1.0))
    assert comparison.warnings == ["the baseline has no spans: its total is unknown, not 0"]


@pytest.mark.parametrize(
    "ending", [[], [Terminal("failed", 100, "failed", "ValueError")]], ids=["no terminal", "failed"]
)
def test_only_complete_traces_are_compared(ending: list[TraceEvent], tmp_path: Path) -> None:
    """A trace that a crash or a failure cut is no measurement: one error, which names the file."""
    path = tmp_path / "cut.jsonl"
    write_lines(path, [*_capture()[:-1], *ending])
    with pytest.raises(TraceFormatError, match=r"cut\.jsonl: .*complete"):
        compare(complete_capture(), path)


def test_a_comparison_is_a_frozen_value() -> None:
    """Two comparisons of the same traces are equal, JSON and back; a gradient that is no number stays one."""
    inputs = (complete_capture(), _capture(gradient_event("non_finite", None)))
    comparison = compare(*inputs)
    assert comparison == compare(*inputs)
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison
    assert not any(gradient.norm_delta is not None for gradient in comparison.gradients)
    with pytest.raises(AttributeError):
        setattr(comparison, "total_delta_ns", math.inf)  # noqa: B010 - the type checker knows better
