from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from runspan.telemetry.processor import FileParent, RunTraceProcessor, TraceStart, file_parent
from runspan.telemetry.rebuild import rebuild_spans
from runspan.testing import FakeClock
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import read
from runspan.tracefile.writer import FileWriter
from support.programs import events_of, kinds_of, lines_of
from support.traces import make_meta

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

_TRACE_ID = 0xABCD
_RANK_SPAN_ID = 0x77


class _Ids(IdGenerator):
    """Ids that a test can read: spans count from 1, root spans get the run's trace."""

    def __init__(self) -> None:
        self._last = 0

    def generate_trace_id(self) -> int:
        """Return the run's trace id."""
        return _TRACE_ID

    def generate_span_id(self) -> int:
        """Return the next number."""
        self._last += 1
        return self._last


class _Recorder:
    """A processor on a provider of its own, and the file it writes."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        start = TraceStart.now(self.clock)
        self.writer = FileWriter(folder, TraceName(0), make_meta(), max_file_bytes=1 << 30)
        self.processor = RunTraceProcessor(self.writer, self.clock, start, _TRACE_ID)
        self.provider = TracerProvider(shutdown_on_exit=False, id_generator=_Ids())
        self.provider.add_span_processor(self.processor)
        self.tracer = self.provider.get_tracer("host", "1.2")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines behind meta."""
        return lines_of(self.writer.path)[1:]

    def begin(self, name: str, **options: Any) -> Any:
        """Start a span at the clock's time."""
        return self.tracer.start_span(name, start_time=self.clock.time_ns(), **options)

    def end(self, span: Any) -> None:
        """End a span at the clock's time."""
        span.end(self.clock.time_ns())


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[_Recorder]:
    """Return a recorder whose file is closed afterwards."""
    made = _Recorder(tmp_path)
    yield made
    made.writer.close()


def _of_another_trace() -> Context:
    return trace.set_span_in_context(
        NonRecordingSpan(SpanContext(0x1234, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
    )


def test_a_spans_two_lines(recorder: _Recorder) -> None:
    """The start line tells what is known then, the end line what came since, on the monotonic clock."""
    recorder.clock.advance(0.5)
    span = recorder.begin("outer", attributes={"a": 1, "b": "x"})
    recorder.clock.advance(0.25)
    span.set_attribute("b", "y")
    span.set_attribute("c", 2.5)
    span.add_event("seen", {"n": 1}, timestamp=recorder.clock.time_ns())
    span.set_status(StatusCode.ERROR, "broke")
    recorder.end(span)
    began = 1_700_000_000_500_000_000
    assert recorder.lines == [
        {
            "kind": "span_start",
            "id": f"{1:016x}",
            "name": "outer",
            "start_ns": 500_000_000,
            "time_unix_nano": began,
            "span_kind": "function",
            "measured": False,
            "attributes": {"a": 1, "b": "x"},
            "otel": {"trace_id": f"{_TRACE_ID:032x}", "scope": {"name": "host", "version": "1.2"}},
        },
        {
            "kind": "span_end",
            "id": f"{1:016x}",
            "duration_ns": 250_000_000,
            "status": {"code": "error", "message": "broke"},
            "attributes": {"b": "y", "c": 2.5},
            "events": [{"name": "seen", "time_unix_nano": began + 250_000_000, "attributes": {"n": 1}}],
        },
    ]


def test_kind_links_and_parent(recorder: _Recorder) -> None:
    """Kind, links (those added later at the end) and the parent's ids are kept; INTERNAL and sampled go unsaid."""
    state = TraceState([("vendor", "x")])
    first = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(0), trace_state=state)
    second = SpanContext(3, 4, is_remote=True, trace_flags=TraceFlags(1))
    parent = recorder.begin("parent")
    span = recorder.begin(
        "child", context=trace.set_span_in_context(parent), kind=SpanKind.CLIENT, links=[Link(first, {"why": "a"})]
    )
    span.add_link(second)
    recorder.end(span)
    start, end = recorder.lines[1], recorder.lines[2]
    assert start["parent_id"] == start["otel"]["parent_span_id"] == f"{1:016x}"
    assert start["otel"]["kind"] == "client"
    linked = {"trace_id": f"{1:032x}", "span_id": f"{2:016x}", "attributes": {"why": "a"}}
    assert start["links"] == [{**linked, "trace_state": "vendor=x", "flags": 0}]
    assert end["links"] == [{"trace_id": f"{3:032x}", "span_id": f"{4:016x}"}]


def test_spans_of_other_traces_are_ignored(recorder: _Recorder) -> None:
    """On a host's provider only spans of the run's trace reach the file."""
    other = recorder.begin("other", context=_of_another_trace())
    recorder.end(other)
    recorder.end(recorder.begin("ours"))
    assert [line["name"] for line in events_of(recorder.lines, "span_start")] == ["ours"]
    assert len(events_of(recorder.lines, "span_end")) == 1


def test_a_span_that_the_hosts_sampler_drops_is_no_error(recorder: _Recorder) -> None:
    """A host that drops spans gives the processor none, and nothing breaks."""
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False, id_generator=_Ids())
    provider.add_span_processor(recorder.processor)
    provider.get_tracer("x").start_span("dropped").end()
    assert recorder.lines == []


def test_what_a_hosts_limits_dropped_is_said(recorder: _Recorder) -> None:
    """Attributes and events that the host's span limits took are counted in the end line."""
    limits = SpanLimits(max_span_attributes=2, max_events=1)
    provider = TracerProvider(shutdown_on_exit=False, id_generator=_Ids(), span_limits=limits)
    provider.add_span_processor(recorder.processor)
    span = provider.get_tracer("x").start_span("limited", attributes={"a": 1, "b": 2, "c": 3})
    for index in range(3):
        span.add_event(f"{index}")
    span.end()
    (end,) = events_of(recorder.lines, "span_end")
    assert end["dropped"] == {"attributes": 1, "events": 2}


def test_a_parent_in_another_process_is_left_out(recorder: _Recorder) -> None:
    """A remote parent stays in otel.parent_span_id and is no parent_id: it stands in no line of this file."""
    remote = SpanContext(_TRACE_ID, _RANK_SPAN_ID, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    recorder.begin("child", context=trace.set_span_in_context(NonRecordingSpan(remote)))
    (start,) = recorder.lines
    assert "parent_id" not in start
    assert start["otel"]["parent_span_id"] == f"{_RANK_SPAN_ID:016x}"


def test_a_span_inside_one_of_the_file_alone_has_that_parent(recorder: _Recorder) -> None:
    """The file's parent is the innermost span of the file; OpenTelemetry's stays the one that it knows."""
    outer = recorder.begin("outer")
    token = file_parent.set(FileParent(f"{0x99:016x}", outer.get_span_context().span_id))
    try:
        recorder.begin("inner", context=trace.set_span_in_context(outer))
        elsewhere = recorder.begin("sibling")
    finally:
        file_parent.reset(token)
    inner, sibling = recorder.lines[1:]
    assert inner["parent_id"] == f"{0x99:016x}"
    assert inner["otel"]["parent_span_id"] == f"{1:016x}"
    assert "parent_id" not in sibling
    assert elsewhere.is_recording()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (float("nan"), {"$float": "NaN"}),
        (float("-inf"), {"$float": "-Infinity"}),
        (2**53 + 1, 2**53 + 1),
        (2**64 - 1, 2**64 - 1),
        ("x" * 100_000, "x" * 100_000),
        ([1, 2.5], [1, 2.5]),
        ("\ud800", "\ufffd"),
    ],
)
def test_attributes_are_whole_and_exact(recorder: _Recorder, value: Any, kept: Any) -> None:
    """Cases 10 and 35: what an exporter cannot take stays exact in the file, and each line is strict JSON."""
    span = recorder.begin("s", attributes={"start": value})
    span.set_attribute("end", value)
    recorder.end(span)
    start, end = recorder.lines
    assert start["attributes"] == {"start": kept}
    assert end["attributes"] == {"end": kept}


def test_a_span_name_with_a_lone_surrogate(recorder: _Recorder) -> None:
    """One bad name costs nothing: U+FFFD stands in its place."""
    recorder.end(recorder.begin("a\udfff"))
    assert recorder.lines[0]["name"] == "a\ufffd"


def test_an_end_before_the_start_has_no_negative_duration(recorder: _Recorder) -> None:
    """Case 14: an end time that lies before the start, as a stepped clock gives it, is a duration of 0."""
    span = recorder.begin("s")
    recorder.clock.step_wall(-3600)
    recorder.end(span)
    assert recorder.lines[1]["duration_ns"] == 0


def test_a_start_told_from_before_the_trace_counts_as_its_start(recorder: _Recorder) -> None:
    """A span that began in an earlier attempt keeps its wall time; start_ns is never negative."""
    recorder.tracer.start_span("run", start_time=recorder.clock.time_ns() - 10**12)
    (start,) = recorder.lines
    assert start["start_ns"] == 0
    assert start["time_unix_nano"] == recorder.clock.time_ns() - 10**12


def test_cut_off_writes_the_end_of_an_open_span_once(recorder: _Recorder) -> None:
    """The run's end closes a host's open span in the file; the host's own end later adds nothing."""
    span = recorder.begin("host's")
    assert [each.name for each in recorder.processor.open_spans] == ["host's"]
    recorder.clock.advance(1)
    recorder.processor.cut_off(span)
    recorder.end(span)
    assert kinds_of(recorder.lines) == ["span_start", "span_end"]
    assert recorder.lines[1]["duration_ns"] == 1_000_000_000


def test_after_release_it_writes_and_holds_nothing(recorder: _Recorder, tmp_path: Path) -> None:
    """A processor left on a host's provider after the run is an empty shell: no line, no reference to the file."""
    open_span = recorder.begin("open")
    recorder.processor.release()
    recorder.end(open_span)
    recorder.end(recorder.begin("late"))
    recorder.processor.shutdown()
    assert recorder.processor.force_flush()
    assert kinds_of(recorder.lines) == ["span_start"]
    recorder.writer.close()
    writer = weakref.ref(recorder.writer)
    recorder.writer = FileWriter(tmp_path, TraceName(1), make_meta(), max_file_bytes=1 << 30)
    gc.collect()
    assert writer() is None


def test_in_a_child_the_parents_open_spans_are_outside(recorder: _Recorder, tmp_path: Path) -> None:
    """After a move to a child's file, parents of before are not named in it and their ends are not written there."""
    outer = recorder.begin("outer")
    child_writer = FileWriter(tmp_path, TraceName(0, child="7"), make_meta(), max_file_bytes=1 << 30)
    recorder.processor.move_to(child_writer, TraceStart.now(recorder.clock))
    inner = recorder.begin("inner", context=trace.set_span_in_context(outer))
    innermost = recorder.begin("innermost", context=trace.set_span_in_context(inner))
    for span in (innermost, inner, outer):
        recorder.end(span)
    child_writer.close()
    starts = events_of(lines_of(child_writer.path), "span_start")
    assert [line.get("parent_id") for line in starts] == [None, f"{2:016x}"]
    assert starts[0]["otel"]["parent_span_id"] == f"{1:016x}"
    assert len(events_of(lines_of(child_writer.path), "span_end")) == 2
    assert kinds_of(recorder.lines) == ["span_start"]


def test_rebuilt_spans_are_the_spans_that_were_written(recorder: _Recorder) -> None:
    """A span read back from the file has the same ids, times, attributes, events, links, status, kind and scope."""
    parent = recorder.begin("parent")
    linked = SpanContext(3, 4, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("v", "1")]))
    span = recorder.begin(
        "child",
        context=trace.set_span_in_context(parent),
        kind=SpanKind.PRODUCER,
        links=[Link(linked, {"l": 1})],
        attributes={"a": float("nan"), "b": [1, 2], "c": "x"},
    )
    recorder.clock.advance(1)
    span.set_attribute("c", "y")
    span.add_event("e", {"k": 2**63}, timestamp=5)
    span.set_status(StatusCode.ERROR, "bad")
    recorder.end(span)
    (rebuilt,) = rebuild_spans(read(recorder.writer.path))
    original: ReadableSpan = span._readable_span()
    assert str(rebuilt.attributes) == str({"a": float("nan"), "b": (1, 2), "c": "y"})
    assert (rebuilt.context.trace_id, rebuilt.context.span_id) == (_TRACE_ID, 2)
    assert rebuilt.context.trace_flags.sampled
    assert rebuilt.parent is not None
    assert rebuilt.parent.span_id == 1
    for name in ("name", "kind", "start_time", "end_time"):
        assert getattr(rebuilt, name) == getattr(original, name)
    assert (rebuilt.status.status_code, rebuilt.status.description) == (StatusCode.ERROR, "bad")
    assert [(event.name, event.timestamp, dict(event.attributes or {})) for event in rebuilt.events] == [
        ("e", 5, {"k": 2**63})
    ]
    assert [(link.context.span_id, dict(link.attributes or {})) for link in rebuilt.links] == [(4, {"l": 1})]
    assert rebuilt.links[0].context.trace_state.to_header() == "v=1"
    assert rebuilt.instrumentation_scope is not None
    assert rebuilt.instrumentation_scope.name == "host"
    assert rebuilt.resource.attributes == make_meta().resource
