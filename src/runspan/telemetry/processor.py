"""RunTraceProcessor: the span processor that writes a run's spans to its trace file."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from runspan import semconv
from runspan.tracefile.events import (
    OtelContext,
    Scope,
    SpanEnd,
    SpanEvent,
    SpanLink,
    SpanStart,
    SpanStatus,
    jsonable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Event, ReadableSpan, Span
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext

    from runspan._clock import Clock
    from runspan.tracefile.writer import TraceWriter

__all__ = ["FileParent", "RunTraceProcessor", "TraceStart", "file_attributes", "file_parent"]

_SAMPLED = 0x01
_INT_LIMIT = 2**63
#: The phases by whose names a captured step's spans say which part of the step they are.
_STEP_PARTS = frozenset({semconv.SpanName.FORWARD, semconv.SpanName.BACKWARD, semconv.SpanName.OPTIMIZER})
#: Of the W3C trace flags only the sampled bit is kept: the others say how the trace id was made.
_KEPT_FLAGS = 0x01


class TraceStart(msgspec.Struct, frozen=True):
    """The moment from which a trace's ``start_ns`` and ``timestamp_ns`` count, on both clocks."""

    time_unix_nano: int
    monotonic_ns: int

    @classmethod
    def now(cls, clock: Clock) -> TraceStart:
        """Read both clocks."""
        return cls(clock.time_ns(), clock.monotonic_ns())


class FileParent(msgspec.Struct, frozen=True, gc=False):
    """The innermost span of the file: it is the parent while the OpenTelemetry context shows ``otel_span_id``.

    Some spans stand in the file alone (inside an uncaptured step, epochs of other ranks); the OpenTelemetry context
    does not know them, so that no exported span names a parent that was never exported.
    """

    span_id: str
    otel_span_id: int


file_parent: ContextVar[FileParent | None] = ContextVar("runspan_file_parent", default=None)


class _TraceFile:
    """Where one trace's spans are written: the run's trace, or a captured step's."""

    __slots__ = ("is_capture", "start", "trace_id_hex", "writer")

    def __init__(self, writer: TraceWriter, start: TraceStart, trace_id: int, *, is_capture: bool = False) -> None:
        self.writer = writer
        self.start = start
        self.trace_id_hex = format_trace_id(trace_id)
        self.is_capture = is_capture


class _OpenSpan:
    """A span between its two lines: what the first one holds, and whether the second may have more to say."""

    __slots__ = ("attributes", "file", "id_hex", "link_count", "may_have_changed", "span")

    def __init__(
        self, span: Span, file: _TraceFile, id_hex: str, attributes: Mapping[str, Any], link_count: int
    ) -> None:
        self.span = span
        self.file = file
        self.id_hex = id_hex
        self.attributes = attributes
        self.link_count = link_count
        self.may_have_changed = True


class RunTraceProcessor(SpanProcessor):
    """Writes ``span_start`` and ``span_end`` lines for the spans of one run; exports nothing.

    It may be attached to a host program's own tracer provider: spans of other traces are ignored. After the run has
    finished it does nothing and holds nothing of the run.

    Args:
        writer: where the lines go.
        clock: the clocks that the run uses.
        start: the start of the trace.
        trace_id: the run's trace; other traces' spans are ignored.
    """

    def __init__(self, writer: TraceWriter, clock: Clock, start: TraceStart, trace_id: int) -> None:
        self._clock = clock
        self._trace_id = trace_id
        #: By trace id; empty after the run has finished.
        self._files = {trace_id: _TraceFile(writer, start, trace_id)}
        #: Spans that stand in another file, a parent process's: no ``parent_id`` names them.
        self._outside: frozenset[int] = frozenset()
        self._open: dict[int, _OpenSpan] = {}

    @property
    def open_spans(self) -> list[Span]:
        """The spans that were started and have not ended, oldest first."""
        return [entry.span for entry in list(self._open.values())]  # copied at once: other threads start and end spans

    def add_capture(self, trace_id: int, writer: TraceWriter, start: TraceStart) -> None:
        """Write a captured step's trace to a file of its own, until :meth:`remove_capture`.

        The start times of its spans must count from ``start`` on the monotonic clock.
        """
        self._files[trace_id] = _TraceFile(writer, start, trace_id, is_capture=True)

    def remove_capture(self, trace_id: int) -> None:
        """Ignore spans of a captured step's trace that start from now on."""
        self._files.pop(trace_id, None)

    def has_trace(self, trace_id: int) -> bool:
        """Whether spans of this trace are written."""
        return trace_id in self._files

    def end_now(self, span: Span) -> None:
        """Write the end of a span that somebody else will end later, or never: the file ends before it."""
        began_ns = span.start_time or 0
        self._write_end(span, max(0, self._clock.time_ns() - began_ns))

    def expect_no_change(self, span_id: int) -> None:
        """Take an open span for what its start line says, until :meth:`expect_change`: its end is quick to write."""
        entry = self._open.get(span_id)
        if entry is not None:
            entry.may_have_changed = False

    def expect_change(self, span_id: int) -> None:
        """Look at an open span at its end: something about it is being set."""
        entry = self._open.get(span_id)
        if entry is not None:
            entry.may_have_changed = True

    def parent_in_file(self, parent: SpanContext, parent_id: str | None = None) -> str | None:
        """Return the id by which this file knows a new span's parent, None when the parent stands in another file.

        Args:
            parent: the parent in the OpenTelemetry context.
            parent_id: its id in hex, where that is at hand.
        """
        if parent.is_remote:
            return None
        innermost = file_parent.get()
        if innermost is not None and innermost.otel_span_id == parent.span_id:
            return innermost.span_id
        if parent.span_id in self._outside:
            return None
        return self._hex(parent.span_id) if parent_id is None else parent_id

    def move_to(self, writer: TraceWriter, start: TraceStart) -> None:
        """Go on in a child process's file: what is open now stands in the parent's."""
        self._outside = self._outside | self._open.keys()
        self._files = {self._trace_id: _TraceFile(writer, start, self._trace_id)}
        self._open = {}

    def release(self) -> None:
        """Stop writing and let go of the run."""
        self._files = {}
        self._open = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - SpanProcessor's signature
        """Write the start of a span of this run."""
        context = span.get_span_context()
        file = None if context is None else self._files.get(context.trace_id)
        if context is None or file is None:
            return
        attributes = _copy_of(span.attributes)
        links = span.links
        entry = _OpenSpan(span, file, format_span_id(context.span_id), attributes, len(links))
        self._open[context.span_id] = entry
        file.writer.write(self._start_event(entry, context, [_span_link(link) for link in links] if links else None))

    def on_end(self, span: ReadableSpan) -> None:
        """Write the end of a span whose start was written."""
        self._write_end(span, max(0, (span.end_time or 0) - (span.start_time or 0)))

    def _write_end(self, span: ReadableSpan, duration_ns: int) -> None:
        context = span.get_span_context()
        entry = None if context is None else self._open.pop(context.span_id, None)
        if entry is None:
            return
        writer = entry.file.writer
        if entry.may_have_changed:
            writer.write(_end_event(span, entry, duration_ns))
        else:
            writer.write(SpanEnd(id=entry.id_hex, duration_ns=duration_ns))

    def shutdown(self) -> None:
        """Do nothing: the run closes its file, whatever the provider does."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - SpanProcessor's signature
        """Return True: every line was written when it was made."""
        return True

    def _hex(self, span_id: int) -> str:
        """Return a span's id in hex; for an open span it is at hand."""
        known = self._open.get(span_id)
        return format_span_id(span_id) if known is None else known.id_hex

    def _start_event(self, entry: _OpenSpan, context: SpanContext, links: list[SpanLink] | None) -> SpanStart:
        span, attributes, file = entry.span, entry.attributes, entry.file
        clock, start_time = self._clock, span.start_time or 0
        if file.is_capture:
            start_ns = start_time - file.start.time_unix_nano
        else:  # a span may be told to have started earlier than now, by its creator
            elapsed_ns = clock.monotonic_ns() - file.start.monotonic_ns
            start_ns = elapsed_ns - max(0, clock.time_ns() - start_time)
        parent = span.parent
        parent_id = None if parent is None else self._hex(parent.span_id)
        scope = span.instrumentation_scope
        state = context.trace_state
        flags = context.trace_flags & _KEPT_FLAGS
        return SpanStart(
            id=entry.id_hex,
            parent_id=None if parent is None else self.parent_in_file(parent, parent_id),
            name=span.name,
            start_ns=max(0, start_ns),
            time_unix_nano=start_time,
            span_kind="function",
            measured=file.is_capture and parent is None,
            step=span.name if file.is_capture and span.name in _STEP_PARTS else None,
            attributes=file_attributes(attributes) if attributes else None,
            otel=OtelContext(
                file.trace_id_hex,
                parent_id,
                None if span.kind is SpanKind.INTERNAL else span.kind.name.lower(),
                None if scope is None or scope.name == semconv.SCOPE_NAME else _scope_of(scope),
                state.to_header() or None if state else None,
                None if flags == _SAMPLED else flags,
            ),
            links=links,
        )


def _end_event(span: ReadableSpan, entry: _OpenSpan, duration_ns: int) -> SpanEnd:
    """Describe an ended span by what its start line does not say."""
    attributes, before = _copy_of(span.attributes), entry.attributes
    changed = {
        key: value
        for key, value in attributes.items()
        if key not in before or (before[key] is not value and before[key] != value)  # NaN differs from itself
    }
    return SpanEnd(
        id=entry.id_hex,
        duration_ns=duration_ns,
        status=_status(span),
        attributes=file_attributes(changed) or None,
        events=[_span_event(item) for item in span.events] or None,
        links=[_span_link(link) for link in span.links[entry.link_count :]] or None,
        dropped=_dropped_by_sdk(span),
    )


def file_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as the file keeps them: whole, and exact where JSON can be."""
    for value in attributes.values():
        kind = type(value)
        # `value - value` is 0.0 for finite floats alone.
        if not (
            kind is str
            or kind is bool
            or (kind is int and -_INT_LIMIT <= value < _INT_LIMIT)
            or (kind is float and value - value == 0.0)
        ):
            return {key: jsonable(value) for key, value in attributes.items()}
    return attributes if type(attributes) is dict else dict(attributes)


def _copy_of(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy; what the SDK's spans give out has a quick one."""
    if not attributes:
        return {}
    copy = getattr(attributes, "copy", None)
    return dict(attributes) if copy is None else copy()


def _dropped_by_sdk(span: ReadableSpan) -> dict[str, int] | None:
    """Return what a host program's span limits have dropped."""
    attributes, events, links = span.dropped_attributes, span.dropped_events, span.dropped_links
    if not (attributes or events or links):
        return None
    counts = {"attributes": attributes, "events": events, "links": links}
    return {name: count for name, count in counts.items() if count}


def _scope_of(scope: InstrumentationScope) -> Scope:
    return Scope(scope.name, scope.version or None, scope.schema_url or None)


def _status(span: ReadableSpan) -> SpanStatus | None:
    if span.status.status_code is StatusCode.UNSET:
        return None
    return SpanStatus(span.status.status_code.name.lower(), span.status.description or None)


def _span_event(event: Event) -> SpanEvent:
    attributes = file_attributes(event.attributes) if event.attributes else None
    return SpanEvent(event.name, event.timestamp, attributes)


def _span_link(link: Link) -> SpanLink:
    context = link.context
    flags = context.trace_flags & _KEPT_FLAGS
    return SpanLink(
        trace_id=format_trace_id(context.trace_id),
        span_id=format_span_id(context.span_id),
        attributes=file_attributes(link.attributes) if link.attributes else None,
        trace_state=context.trace_state.to_header() or None if context.trace_state else None,
        flags=None if flags == _SAMPLED else flags,
    )
