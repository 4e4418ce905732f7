from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.errors import TraceFormatError
from runspan.tracefile import read
from runspan.tracefile._health import Finding, Severity, health
from runspan.tracefile.events import (
    DeviceInterval,
    Edge,
    Gradient,
    Memory,
    Meta,
    Op,
    SpanEnd,
    Tensor,
    Terminal,
    TraceEvent,
)
from runspan.tracefile.graph import build_graph
from runspan.tracefile.meta import ExecutionPhase
from support.captures import (
    capture_meta,
    capture_op,
    complete_capture,
    device_sample,
    gradient_event,
    memory_event,
    span_events,
    tensor_event,
)
from support.traces import make_meta, make_metric, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MISSING_EVIDENCE = {
    "operations_absent",
    "tensors_absent",
    "logical_memory_absent",
    "physical_memory_absent",
    "device_timing_absent",
    "gradients_absent",
    "forward_absent",
    "backward_absent",
    "optimizer_absent",
}
_ERRORS = {
    "duplicate_span",
    "root_count",
    "measurement_count",
    "open_span",
    "unknown_parent",
    "child_outside_parent",
    "span_cycle",
    "unknown_span",
    "operation_outside_span",
    "unknown_call_edge_span",
    "call_edge_hierarchy_mismatch",
    "call_edge_duration_mismatch",
    "unknown_data_edge_tensor",
    "empty_device_memory_sample",
    "empty_device_interval",
    "unpaired_free",
    "allocation_size_mismatch",
    "duplicate_allocation",
    "gradient_state_norm_mismatch",
    "terminal_precedes_evidence",
}


def _codes(findings: list[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def _errors(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def _step(*inside: TraceEvent) -> list[TraceEvent]:
    """Return a capture of one measured step of 100 ns."""
    step = span_events("step", None, 0, 100, inside, measured=True)
    return [capture_meta(), *step, Terminal("complete", 200, "success")]


def _interval(duration_ns: int = 5, span_id: str = "step") -> DeviceInterval:
    return DeviceInterval(
        span_id=span_id,
        device="cuda:0",
        stream_id=7,
        clock_id="cuda",
        backend="cuda",
        start_ns=0,
        duration_ns=duration_ns,
    )


def _child(start_ns: int = 10, end_ns: int = 20, parent_id: str = "step", span_id: str = "child") -> list[TraceEvent]:
    return span_events(span_id, parent_id, start_ns, end_ns)


def _open(span_id: str = "child") -> TraceEvent:
    return _child(span_id=span_id)[0]


def _closed(start: TraceEvent) -> list[TraceEvent]:
    return [start, SpanEnd(id=str(getattr(start, "id", "")), duration_ns=1)]


def _without_measure(events: list[TraceEvent]) -> list[TraceEvent]:
    first = msgspec.structs.replace(events[1], measured=False)
    return [events[0], first, *events[2:]]


#: By code: a capture that has the error with the ids it names, and a like one that has it not.
_CASES: dict[str, tuple[list[TraceEvent], tuple[str, ...], list[TraceEvent]]] = {
    "duplicate_span": (_step(*_child(), *_child()), ("child",), _step(*_child(), *_child(span_id="other"))),
    "root_count": (
        [*_step()[:-1], *span_events("stray", None, 0, 50), Terminal("complete", 100, "success")],
        ("step", "stray"),
        _step(*_child()),
    ),
    "measurement_count": (
        _step(*span_events("child", "step", 0, 50, measured=True)),
        ("step", "child"),
        _step(*_child()),
    ),
    "open_span": (_step(_open()), ("child",), _step(*_child())),
    "unknown_parent": (_step(*_child(parent_id="gone")), ("child",), _step(*_child())),
    "child_outside_parent": (_step(*_child(90, 101)), ("child",), _step(*_child(0, 100))),
    "span_cycle": (
        _step(*_child(parent_id="b", span_id="a"), *_child(parent_id="a", span_id="b")),
        ("a", "b"),
        _step(*_child(span_id="a"), *_child(parent_id="a", span_id="b")),
    ),
    "unknown_span": (_step(capture_op("gone", 0, 1)), ("gone",), _step(capture_op("step", 0, 1))),
    "operation_outside_span": (_step(capture_op("step", 90, 101)), ("step",), _step(capture_op("step", 0, 100))),
    "unknown_call_edge_span": (
        _step(*_child(), Edge.call("step", "gone", 10)),
        ("gone",),
        _step(*_child(), Edge.call("step", "child", 10)),
    ),
    "call_edge_hierarchy_mismatch": (
        _step(*_child(), *_child(span_id="other"), Edge.call("other", "child", 10)),
        ("child",),
        _step(*_child(), *_child(span_id="other"), Edge.call("step", "child", 10)),
    ),
    "call_edge_duration_mismatch": (
        _step(Edge.call("step", "child", 11), *_child()),
        ("child",),
        _step(Edge.call("step", "child", 10), *_child()),
    ),
    "unknown_data_edge_tensor": (
        _step(tensor_event("a"), Edge.data("a", "b")),
        ("b",),
        _step(Edge.data("a", "b"), tensor_event("a"), capture_op("step", 0, 1, output="b")),
    ),
    "empty_device_memory_sample": (
        _step(device_sample(used_bytes=None)),
        ("cuda:0",),
        _step(device_sample(used_bytes=None, free_bytes=0)),
    ),
    "empty_device_interval": (_step(_interval(0)), ("step",), _step(_interval(1))),
    "unpaired_free": (
        _step(memory_event("alloc", 1), memory_event("free", 1, device="cuda:0")),
        ("1",),
        _step(memory_event("alloc", 1), memory_event("free", 1)),
    ),
    "allocation_size_mismatch": (
        _step(memory_event("alloc", 1, 16), memory_event("free", 1, 8)),
        ("1",),
        _step(memory_event("alloc", 1, 16), memory_event("free", 1, 16), memory_event("alloc", 1, 8)),
    ),
    "duplicate_allocation": (
        _step(memory_event("alloc", 1), memory_event("alloc", 1)),
        ("1",),
        _step(memory_event("alloc", 1), memory_event("alloc", 1, tensor_id="a view of it")),
    ),
    "gradient_state_norm_mismatch": (
        _step(gradient_event("missing", 0.0)),
        ("layer.weight",),
        _step(gradient_event("missing", None)),
    ),
    "terminal_precedes_evidence": (
        [*_step()[:-1], Terminal("complete", 99, "success")],
        (),
        _step(),
    ),
}


def test_there_is_a_case_for_every_error() -> None:
    """The table covers the list of the format."""
    assert _CASES.keys() == _ERRORS


@pytest.mark.parametrize("code", sorted(_CASES))
def test_an_error_is_found_where_it_is(code: str) -> None:
    """Each error is found once, with what it is about, in a capture that has it and nothing else wrong."""
    broken, ids, _ = _CASES[code]
    found = _errors(health(broken))
    assert [(finding.code, finding.ids) for finding in found] == [(code, ids)]
    assert found[0].message


@pytest.mark.parametrize("code", sorted(_CASES))
def test_an_error_is_not_found_where_it_is_not(code: str) -> None:
    """A capture like the broken one, but right, has no error at all."""
    assert _errors(health(_CASES[code][2])) == []


def test_a_capture_with_everything_has_no_findings() -> None:
    """Nothing is wrong and nothing is missing."""
    assert health(complete_capture()) == []


#: By code: what to leave out of a complete capture so that it is missing.
_LEFT_OUT: dict[str, Callable[[TraceEvent], bool]] = {
    "operations_absent": lambda event: isinstance(event, Op),
    "tensors_absent": lambda event: isinstance(event, Tensor),
    "logical_memory_absent": lambda event: isinstance(event, Memory),
    "physical_memory_absent": lambda event: event.__class__.__name__ == "DeviceMemory",
    "device_timing_absent": lambda event: isinstance(event, DeviceInterval),
    "gradients_absent": lambda event: isinstance(event, Gradient),
    "forward_absent": lambda event: getattr(event, "step", None) == "forward",
    "backward_absent": lambda event: getattr(event, "step", None) == "backward",
    "optimizer_absent": lambda event: getattr(event, "step", None) == "optimizer",
}


@pytest.mark.parametrize("code", sorted(_MISSING_EVIDENCE))
def test_missing_evidence_is_a_warning_that_says_unknown(code: str) -> None:
    """A complete capture without one kind of evidence has that one warning, and it does not say zero."""
    is_left_out = _LEFT_OUT[code]
    if code.removesuffix("_absent") in {"forward", "backward", "optimizer"}:
        events = [
            msgspec.structs.replace(event, step=None) if is_left_out(event) else event for event in complete_capture()
        ]
    else:
        edges = (Edge,) if code in {"operations_absent", "tensors_absent"} else ()
        events = [event for event in complete_capture() if not is_left_out(event) and not isinstance(event, edges)]
    (finding,) = health(events)
    assert (finding.code, finding.severity) == (code, Severity.WARNING)
    assert "unknown" in finding.message


def test_inference_is_not_asked_for_gradients_and_phases() -> None:
    """The evidence of a training step is expected of training only."""
    infer = capture_meta(phase=ExecutionPhase.INFER, correlation_id="run-a/inference-101")
    events = [infer, *_step()[1:]]
    assert _codes(health(events)) == {code for code in _MISSING_EVIDENCE if code.count("_") == 2} | {
        "operations_absent",
        "tensors_absent",
    }


def test_allocations_that_live_on_are_a_warning() -> None:
    """A storage that is live at the end is named; with its release it is not."""
    release = memory_event("free", 1)
    kept = [event for event in complete_capture() if event != msgspec.structs.replace(release, timestamp_ns=90)]
    (finding,) = health(kept)
    assert (finding.code, finding.severity, finding.ids) == ("retained_allocations", Severity.WARNING, ("1",))


def test_a_failed_capture_turns_open_spans_into_warnings() -> None:
    """The failure explains them."""
    events = [*_step(_open())[:-1], Terminal("failed", 100, "failed", "ValueError")]
    assert _errors(health(events)) == []
    assert Finding("open_span", Severity.WARNING, "span 'child' has no end", ("child",)) in health(events)


def test_an_interrupted_capture_has_open_spans() -> None:
    """Without a terminal event nothing explains them."""
    events = _step(_open())[:-2]
    (finding,) = _errors(health(events))
    assert (finding.code, finding.ids) == ("open_span", ("step", "child"))
    assert finding.message == "span 'step' has no end (and 1 more)"


def test_a_run_trace_is_not_asked_for_one_step() -> None:
    """A run's own trace has no measured span, as many roots as it has, and no evidence; errors in its spans count."""
    unknown = span_events("lost", "nobody", 5, 6)
    roots = [*span_events("run", None, 0, 10), *span_events("rank", None, 0, 10)]
    memory = memory_event("alloc", 1, span_id="run", timestamp_ns=1)
    assert health([make_meta(), *roots, memory, make_metric(0), make_terminal()]) == []
    assert _codes(_errors(health([make_meta(), *roots, *unknown, make_terminal()]))) == {"unknown_parent"}


def test_a_span_may_outlast_its_parent_in_a_run_trace() -> None:
    """A thread's span that ends after the span it began under is told of, and is no error: OpenTelemetry allows it."""
    roots = [*span_events("run", None, 0, 10), *span_events("rank", "run", 0, 10)]
    late = span_events("late", "rank", 5, 11)
    (finding,) = health([make_meta(), *roots, *late, make_terminal()])
    assert (finding.code, finding.severity, finding.ids) == ("child_outside_parent", Severity.WARNING, ("late",))
    assert build_graph([make_meta(), *roots, *late, make_terminal()]).spans[1].self_ns == 5


@pytest.mark.parametrize(
    ("state", "norm", "is_right"),
    [
        ("present", 1.0, True),
        ("present", 0.0, False),
        ("present", None, False),
        ("present", float("nan"), False),
        ("zero", 0.0, True),
        ("zero", 1.0, False),
        ("zero", None, False),
        ("missing", None, True),
        ("non_finite", None, True),
        ("non_finite", float("inf"), False),
    ],
)
def test_the_norm_of_a_gradient_fits_its_state(state: str, norm: float | None, is_right: bool) -> None:
    """A present gradient has a norm above 0, a zero one has 0, the others have none."""
    assert (_errors(health(_step(gradient_event(state, norm)))) == []) is is_right


def test_a_capture_without_a_root_or_a_measured_span_is_told_so() -> None:
    """No span at all is as wrong as two."""
    assert _codes(_errors(health([capture_meta(), Terminal("complete", 100, "success")]))) == {
        "root_count",
        "measurement_count",
    }
    assert _codes(_errors(health(_without_measure(_step())))) == {"measurement_count"}


def test_the_first_capture_of_a_run_is_one() -> None:
    """Step 0 is update 1, as every run trace is; the correlation id tells them apart."""
    meta = capture_meta(capture_step=1, warmup_steps=0, correlation_id="run-a/update-1")
    assert "operations_absent" in _codes(health([meta, *_step()[1:]]))


def test_an_alias_of_another_size_is_an_error() -> None:
    """Tensors that share a storage agree on its size."""
    events = _step(memory_event("alloc", 1, 16), memory_event("alloc", 1, 8, tensor_id="view"))
    assert _codes(_errors(health(events))) == {"allocation_size_mismatch"}


def test_a_span_that_is_its_own_parent_is_a_cycle() -> None:
    """The shortest cycle there is."""
    (finding,) = _errors(health(_step(*_child(parent_id="child"))))
    assert (finding.code, finding.ids) == ("span_cycle", ("child",))


def test_what_precedes_its_span_is_checked_like_the_rest() -> None:
    """Children, operations and edges may stand before the span that they name."""
    early = [capture_op("child", 15, 25), *_child(12, 16, parent_id="child", span_id="below"), *_child()]
    assert _codes(_errors(health(_step(*early)))) == {"operation_outside_span"}


def test_a_finding_names_a_hundred_ids_and_counts_the_rest() -> None:
    """A trace with thousands of bad lines has one finding of them."""
    (finding,) = _errors(health(_step(*(_open(f"child-{number}") for number in range(2_000)))))
    assert len(finding.ids) == 100
    assert finding.message.endswith("(and 1999 more)")


def test_a_message_names_the_span() -> None:
    """An id alone says little to people; of more names than a program has, the rest go by their ids."""
    (finding,) = _errors(health(_step(*span_events("5df9", "gone", 0, 1, name="forward"))))
    assert finding.message == "span 'forward' (5df9) names the parent 'gone'"
    spans = [span_events(f"{number:x}", "step", 0, 1, name=f"name {number}")[0] for number in range(1_100)]
    assert "'name 5' (5)" in _errors(health(_step(*(spans[5:6]))))[0].message
    (finding,) = _errors(health(_step(*(event for span in spans[:-1] for event in _closed(span)), spans[-1])))
    assert finding.message == "span '44b' has no end"


def test_events_behind_the_terminal_event_are_an_error() -> None:
    """A lenient reader skips them; events from elsewhere may have them."""
    assert _codes(_errors(health([*_step(), make_metric(0)]))) == {"terminal_precedes_evidence"}


def test_a_trace_is_read_from_its_file(tmp_path: Path) -> None:
    """A path is checked as its events are; what breaks the format is an error that names the file."""
    path = tmp_path / "rank-00000.jsonl"
    write_lines(path, _CASES["unknown_span"][0])
    assert health(path) == health(_CASES["unknown_span"][0])
    assert health(str(path)) == health(path)
    path.write_bytes(path.read_bytes() + b"[]\n{}\n")
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl:6"):
        health(path)
    with read(path, lenient=True) as reader:
        assert _codes(_errors(health(reader))) == {"unknown_span"}


def test_the_open_spans_of_a_running_trace_are_as_they_should_be(tmp_path: Path) -> None:
    """While it is being written, a trace's spans are open."""
    path = tmp_path / "rank-00000.jsonl"
    rank, _ = span_events("rank", None, 0, 1, time_unix_nano=time.time_ns())
    write_lines(path, [make_meta(), rank])
    assert health(path) == []
    rank, _ = span_events("rank", None, 0, 1)
    write_lines(path, [make_meta(), rank])
    assert [finding.code for finding in health(path)] == ["open_span"]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "found no event"),
        ([make_metric(0)], "found Metric"),
        ([_open()], "found SpanStart"),
        ([make_meta(), make_meta()], "second meta"),
        ([make_meta(), _child()[-1]], "'child', which is not open"),
        ([make_meta(), *_child(), _child()[-1]], "'child', which is not open"),
    ],
)
def test_events_that_are_no_trace_are_refused(events: list[TraceEvent], message: str) -> None:
    """What a reader would not give is no matter of health."""
    with pytest.raises(TraceFormatError, match=message):
        health(events)


def test_times_beyond_64_bits_are_checked() -> None:
    """A broken writer's numbers end in findings, not in an exception."""
    events = _step(*_child(2**64 - 1, 2**64 + 5), capture_op("child", -(2**70), 0))
    assert _codes(_errors(health(events))) >= {"child_outside_parent", "operation_outside_span"}


def test_the_meta_of_another_schema_is_a_captures() -> None:
    """Other programs' traces are captures, whatever their correlation id."""
    meta = msgspec.structs.replace(make_meta(), schema="candle-graph/trace/9")
    assert isinstance(meta, Meta)
    assert "operations_absent" in _codes(health([meta, *_step()[1:]]))


_SPAN_IDS = st.sampled_from("abc")
_TIMES_NS = st.integers(0, 5)
_EVENTS = st.lists(
    st.one_of(
        st.builds(
            lambda span_id, parent_id, at_ns, measured: span_events(span_id, parent_id, at_ns, 9, measured=measured)[0],
            _SPAN_IDS,
            st.none() | _SPAN_IDS,
            _TIMES_NS,
            st.booleans(),
        ),
        st.builds(lambda span_id, duration_ns: span_events(span_id, None, 0, duration_ns)[-1], _SPAN_IDS, _TIMES_NS),
        st.builds(capture_op, _SPAN_IDS, _TIMES_NS, _TIMES_NS),
        st.builds(lambda span_id, key: tensor_event(key, span_id), _SPAN_IDS, st.sampled_from([0, "0"])),
        st.builds(
            lambda action, key, size, span_id: memory_event(action, key, size, span_id=span_id),
            st.sampled_from(["alloc", "free"]),
            st.sampled_from([0, "0"]),
            _TIMES_NS,
            _SPAN_IDS,
        ),
        st.builds(Edge.call, _SPAN_IDS, _SPAN_IDS, _TIMES_NS),
        st.builds(Edge.data, st.sampled_from([0, "0"]), st.sampled_from([0, "0"])),
        st.builds(_interval, _TIMES_NS, _SPAN_IDS),
        st.builds(Terminal, st.sampled_from(["complete", "failed"]), _TIMES_NS, st.just("success")),
    ),
    max_size=12,
)


@given(_EVENTS)
def test_any_sequence_of_events_is_judged(events: list[TraceEvent]) -> None:
    """Whatever comes ends in findings or in the format's own error, and a graph is made of what has no error alone."""
    trace = [capture_meta(), *events]
    try:
        has_errors = bool(_errors(health(trace)))
    except TraceFormatError:
        has_errors = True
    is_complete = any(isinstance(event, Terminal) and event.outcome == "complete" for event in events)
    if has_errors or not is_complete:
        with pytest.raises(TraceFormatError):
            build_graph(trace)
    else:
        graph = build_graph(trace)
        assert all(0 <= span.self_ns <= span.duration_ns for span in graph.spans)
        assert len(graph.spans) == len({span.id for span in graph.spans})
