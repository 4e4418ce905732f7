"""A run's spans: which are OpenTelemetry spans, which stand in the file alone, and who is whose parent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode, format_span_id, format_trace_id

from runspan._plain import plain_value, text_of
from runspan._run.failures import describe_error, format_traceback
from runspan._run.values import is_array
from runspan.telemetry._span_parts import file_attributes, is_exact, span_link
from runspan.tracefile.events import OtelContext, SpanEnd, SpanEvent, SpanStart, SpanStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.trace import Span as SdkSpan
    from opentelemetry.util import types

    from runspan._clock import Clock
    from runspan._run.notices import Notices
    from runspan.redaction import Redactor
    from runspan.telemetry.processor import RunTraceProcessor, TraceStart
    from runspan.tracefile.events import SpanLink
    from runspan.tracefile.writer import TraceWriter

__all__ = ["FileSpan", "RecordedSpan", "Spans"]

_PLAIN_TYPES = frozenset({str, int, float, bool})


class RecordedSpan(trace.Span):
    """An SDK span whose attributes may be any Python value, and whose duration the monotonic clock measures.

    Args:
        span: the SDK span.
        spans: who started it.
        began_unix_nano: wall time of the moment from which the duration counts.
        began_monotonic_ns: the same moment on the monotonic clock.
    """

    __slots__ = ("_began_monotonic_ns", "_began_unix_nano", "_span", "_spans")

    def __init__(self, span: SdkSpan, spans: Spans, began_unix_nano: int, began_monotonic_ns: int) -> None:
        self._span = span
        self._spans = spans
        self._began_unix_nano = began_unix_nano
        self._began_monotonic_ns = began_monotonic_ns

    @property
    def sdk_span(self) -> SdkSpan:
        """The SDK's span."""
        return self._span

    def get_span_context(self) -> trace.SpanContext:
        """Return the span's context."""
        return self._span.get_span_context()

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        """Set attributes of any Python values."""
        self._change(self._span.set_attributes, self._spans.clean(attributes))

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        """Set one attribute of any Python value."""
        self._change(self._span.set_attributes, self._spans.clean({key: value}))

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        """Add an event."""
        self._change(self._span.add_event, name, self._spans.clean(attributes or {}), timestamp)

    def add_link(self, context: trace.SpanContext, attributes: types.Attributes = None) -> None:
        """Add a link."""
        self._change(self._span.add_link, context, self._spans.clean(attributes or {}))

    def update_name(self, name: str) -> None:
        """Rename the span."""
        self._change(self._span.update_name, name if type(name) is str else text_of(name))

    def is_recording(self) -> bool:
        """Whether the span has not ended."""
        return self._span.is_recording()

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status."""
        self._change(self._span.set_status, status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Record an exception as an event."""
        self._change(self._span.record_exception, exception, self._spans.clean(attributes or {}), timestamp, escaped)

    def end(self, end_time: int | None = None) -> None:
        """End the span, by the monotonic clock unless told otherwise; a span that the run's end has ended stays."""
        spans, span = self._spans, self._span
        if not span.is_recording():
            return
        if end_time is None:
            end_time = self._began_unix_nano + spans.clock.monotonic_ns() - self._began_monotonic_ns
        # The SDK holds locks of its own; marked by hand, since a context manager in Python would cost too much here.
        writer, thread_id = spans.writer, threading.get_ident()
        is_outermost = thread_id not in writer.threads_inside
        writer.threads_inside.add(thread_id)
        try:
            span.end(end_time)
        finally:
            if is_outermost:
                writer.threads_inside.discard(thread_id)
        if writer.deferred is not None:
            writer.run_deferred()

    def _change(self, change: Callable[..., None], *arguments: Any) -> None:
        """Change the SDK's span, unless it has ended."""
        spans, span = self._spans, self._span
        if not span.is_recording():
            return
        spans.processor.expect_change(span.get_span_context().span_id)
        with spans.writer.inside():
            change(*arguments)


class FileSpan(trace.Span):
    """A span of the trace file that nobody exports: the SDK has no part in it, which makes it cheap.

    Args:
        spans: who started it.
        context: its ids.
        id_hex: its span id as the file writes it.
        began_monotonic_ns: when it began.
    """

    __slots__ = ("_attributes", "_context", "_events", "_links", "_spans", "_status", "began_monotonic_ns", "id_hex")

    def __init__(self, spans: Spans, context: trace.SpanContext, id_hex: str, began_monotonic_ns: int) -> None:
        self._spans = spans
        self._context = context
        self.id_hex = id_hex
        self.began_monotonic_ns = began_monotonic_ns
        # Most spans never change: what would hold changes is made by the first one.
        self._attributes: dict[str, Any] | None = None
        self._events: list[SpanEvent] | None = None
        self._links: list[SpanLink] | None = None
        self._status: SpanStatus | None = None

    def get_span_context(self) -> trace.SpanContext:
        """Return the span's context."""
        return self._context

    def is_recording(self) -> bool:
        """Whether the span has not ended."""
        return self._spans.is_open_in_file(self)

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        """Set attributes of any Python values."""
        self._attributes = {**(self._attributes or {}), **self._spans.clean(attributes)}

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        """Set one attribute of any Python value."""
        self.set_attributes({key: value})

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        """Add an event."""
        plain = file_attributes(self._spans.clean(attributes or {}))
        time_unix_nano = self._spans.clock.time_ns() if timestamp is None else timestamp
        self._events = [*(self._events or ()), SpanEvent(name, time_unix_nano, plain or None)]

    def add_link(self, context: trace.SpanContext, attributes: types.Attributes = None) -> None:
        """Add a link."""
        link = span_link(trace.Link(context, self._spans.clean(attributes or {})))
        self._links = [*(self._links or ()), link]

    def update_name(self, name: str) -> None:
        """Do nothing: the file keeps the name that the span was started with."""

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status."""
        code = status.status_code if isinstance(status, Status) else status
        text = status.description if isinstance(status, Status) else description
        self._status = None if code is StatusCode.UNSET else SpanStatus(code.name.lower(), text)

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,  # noqa: ARG002 - trace.Span's signature
        timestamp: int | None = None,  # noqa: ARG002 - as above
        escaped: bool = False,  # noqa: ARG002 - as above
    ) -> None:
        """Record an exception as an event."""
        self._spans.record_exception(self, exception)

    def end(self, end_time: int | None = None) -> None:  # noqa: ARG002 - trace.Span's signature
        """End the span; a second time nothing."""
        self._spans.end_in_file(self)

    def end_event(self, duration_ns: int) -> SpanEnd:
        """Describe the end of the span."""
        return SpanEnd(
            id=self.id_hex,
            duration_ns=duration_ns,
            status=self._status,
            attributes=file_attributes(self._attributes) if self._attributes else None,
            events=self._events,
            links=self._links,
        )


class Spans:
    """Starts the spans of one run in one process.

    Args:
        tracer: of the run's own provider.
        processor: the one that writes this process's file.
        writer: the trace file.
        clock: the clocks.
        start: the start of the trace.
        rank_context: the context of this process's ``rank`` span, the parent of last resort.
        new_span_id: makes a random span id.
        notices: told of attributes that are no attributes.
        redactor: takes secrets out of exceptions.
    """

    def __init__(
        self,
        *,
        tracer: trace.Tracer,
        processor: RunTraceProcessor,
        writer: TraceWriter,
        clock: Clock,
        start: TraceStart,
        rank_context: trace.SpanContext,
        new_span_id: Callable[[], int],
        notices: Notices,
        redactor: Redactor,
    ) -> None:
        self.tracer = tracer
        self.processor = processor
        self.writer = writer
        self.clock = clock
        self.start = start
        self.rank_context = rank_context
        self.new_span_id = new_span_id
        self._notices = notices
        self._redactor = redactor
        self._open_in_file: dict[int, FileSpan] = {}
        self._trace_id_hex = format_trace_id(rank_context.trace_id)
        self._rank_otel_context = trace.set_span_in_context(
            trace.NonRecordingSpan(rank_context), otel_context.Context()
        )

    def clean(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return attributes of any Python values as plain ones, secrets hidden; an array is told of once."""
        if all(map(_PLAIN_TYPES.__contains__, map(type, attributes.values()))):
            return attributes
        plain: dict[str, Any] = {}
        for key, value in attributes.items():
            if is_array(value):
                self._notices.warn_once(f"attribute/{key}", f"attribute {key!r} is an array; it is kept as a list")
            plain[key] = plain_value(value)
        return plain

    def parent(self, current: otel_context.Context | None = None) -> otel_context.Context:
        """Return a context whose span is of this run: the current one, else one with the rank span."""
        if current is None:
            current = otel_context.get_current()
        if self.processor.has_trace(trace.get_current_span(current).get_span_context().trace_id):
            return current
        return self._rank_otel_context

    def begin(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        context: otel_context.Context | None = None,
        links: list[trace.Link] | None = None,
        start_time: int | None = None,
        origin: TraceStart | None = None,
        span_kind: str = "function",
    ) -> RecordedSpan:
        """Start an OpenTelemetry span, without making it current.

        Args:
            name: its name.
            attributes: of any Python values.
            context: its parent's; None: the current span if it is of this run, else ``rank``.
            links: its links.
            start_time: unix ns; None: now.
            origin: what the start counts from on the monotonic clock; None: the wall clock says.
            span_kind: function, op or module.
        """
        clock = self.clock
        began_monotonic_ns = clock.monotonic_ns()
        if origin is None:
            began_unix_nano = clock.time_ns()
        else:
            began_unix_nano = origin.time_unix_nano + began_monotonic_ns - origin.monotonic_ns
        if is_exact(attributes):
            plain, in_file = attributes, attributes
        else:
            plain = self.clean(attributes)
            in_file = file_attributes(plain)
        span = cast(
            "SdkSpan",
            self.tracer.start_span(
                name if type(name) is str else text_of(name),
                self.parent() if context is None else context,
                attributes=plain,
                links=links,
                start_time=began_unix_nano if start_time is None else start_time,
            ),
        )
        # Whoever changes the span does so through the RecordedSpan, which tells the processor.
        earlier_ns = 0 if start_time is None else began_unix_nano - start_time
        self.processor.write_start(span, in_file, links, began_monotonic_ns - earlier_ns, span_kind)
        return RecordedSpan(span, self, began_unix_nano, began_monotonic_ns)

    def fail(self, span: trace.Span, error: BaseException) -> None:
        """Record an exception on a span and set its status."""
        self.record_exception(span, error)
        span.set_status(StatusCode.ERROR, describe_error(error, self._redactor))

    def record_exception(self, span: trace.Span, error: BaseException) -> None:
        """Record an exception on a span, secrets hidden."""
        span.add_event(
            "exception",
            {
                "exception.type": type(error).__qualname__,
                "exception.message": self._redactor.redact_text(text_of(error)),
                "exception.stacktrace": format_traceback(error, self._redactor),
            },
        )

    def begin_in_file(
        self, name: str, attributes: Mapping[str, Any], parent: trace.SpanContext, flags: trace.TraceFlags
    ) -> FileSpan:
        """Start a span of the file that nobody exports.

        Args:
            name: its name.
            attributes: of any Python values.
            parent: its parent in the OpenTelemetry context; of another trace: ``rank`` is its parent.
            flags: its W3C trace flags; unsampled for a span that the OpenTelemetry context does not show.
        """
        rank, clock = self.rank_context, self.clock
        if parent.trace_id != rank.trace_id:
            parent = rank
        context = trace.SpanContext(rank.trace_id, self.new_span_id(), is_remote=False, trace_flags=flags)
        id_hex, parent_hex = format_span_id(context.span_id), format_span_id(parent.span_id)
        began_ns = clock.monotonic_ns()
        span = FileSpan(self, context, id_hex, began_ns)
        is_in_file = self.writer.write_plain(
            SpanStart(
                id=id_hex,
                parent_id=self.processor.parent_in_file(parent, parent_hex),
                name=name if type(name) is str else text_of(name),
                start_ns=began_ns - self.start.monotonic_ns,
                time_unix_nano=clock.time_ns(),
                span_kind="function",
                attributes=(attributes if is_exact(attributes) else file_attributes(self.clean(attributes))) or None,
                otel=OtelContext(self._trace_id_hex, parent_hex, flags=None if flags.sampled else 0),
            )
        )
        if is_in_file:  # without its start there is no end
            self._open_in_file[context.span_id] = span
        return span

    def end_in_file(self, span: FileSpan) -> None:
        """End a span of the file; a second time nothing."""
        if self._open_in_file.pop(span.get_span_context().span_id, None) is not None:
            self.writer.write_plain(span.end_event(self.clock.monotonic_ns() - span.began_monotonic_ns))

    def is_open_in_file(self, span: FileSpan) -> bool:
        """Whether a span of the file has not ended."""
        return span.get_span_context().span_id in self._open_in_file

    def end_open_in_file(self) -> None:
        """End what is open in the file alone, innermost first."""
        for span in reversed(list(self._open_in_file.values())):
            self.end_in_file(span)

    def after_fork_in_child(self, writer: TraceWriter, start: TraceStart) -> None:
        """Go on in a child process's file."""
        self.writer, self.start = writer, start
        self.processor.keep_outside(self._open_in_file)
        self._open_in_file = {}
