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
    from collections.abc import Iterable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Event, ReadableSpan, Span
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext

    from runspan._clock import Clock
    from runspan.tracefile.writer import TraceWriter

__all__ = ["FileParent", "OpenSpan", "RunTraceProcessor", "TraceStart", "file_attributes", "file_parent", "is_exact"]

#: Of the W3C trace flags only the sampled bit is kept: the others say how the trace id was made.
_SAMPLED = 0x01
#: The W3C trace flags of a sampled span: with, and without, a random trace id.
_SAMPLED_FLAGS = frozenset({0x01, 0x03})
_INT_LIMIT = 2**63
_OWN_SCOPE = semconv.SCOPE_NAME
#: The phases by whose names a captured step's spans say which part of the step they are.
_STEP_PARTS = frozenset({semconv.SpanName.FORWARD, semconv.SpanName.BACKWARD, semconv.SpanName.OPTIMIZER})


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


class OpenSpan:
    """A span between its two lines: what the first one holds, and whether the second may have more to say."""

    __slots__ = ("attributes", "file", "id_hex", "is_in_file", "link_count", "may_have_changed", "span")

    def __init__(
        self, span: Span, file: _TraceFile, id_hex: str, attributes: Mapping[str, Any], link_count: int
    ) -> None:
        self.span = span
        self.file = file
        self.id_hex = id_hex
        self.attributes = attributes
        self.link_count = link_count
        #: Whether the start line was written: without it, there is no end line.
        self.is_in_file = False
        #: Whether the span must be looked at when it ends; who changes a span of the run's own says so.
        self.may_have_changed = False


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
        self._open: dict[int, OpenSpan] = {}

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

    def expect_change(self, span_id: int) -> None:
        """Look at an open span of the run's own tracer when it ends: something about it is about to be set."""
        entry = self._open.get(span_id)
        if entry is not None and not entry.may_have_changed:
            entry.attributes = _copy_of(entry.span.attributes)
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

    def keep_outside(self, span_ids: Iterable[int]) -> None:
        """Have no ``parent_id`` name these spans: they stand in a parent process's file."""
        self._outside |= frozenset(span_ids)

    def release(self) -> None:
        """Stop writing and let go of the run."""
        self._files = {}
        self._open = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - SpanProcessor's signature
        """Write the start of a span of this run; those of the run's own tracer are :meth:`write_start`'s."""
        context, scope = span.get_span_context(), span.instrumentation_scope
        if context is None or context.trace_id not in self._files or (scope is not None and scope.name == _OWN_SCOPE):
            return
        file = self._files[context.trace_id]
        attributes, links, state = _copy_of(span.attributes), span.links, context.trace_state
        now_ns = self._clock.monotonic_ns() - file.start.monotonic_ns
        parent = span.parent
        entry = OpenSpan(span, file, format_span_id(context.span_id), attributes, len(links))
        entry.may_have_changed = True
        self._open[context.span_id] = entry
        otel = OtelContext(
            file.trace_id_hex,
            None if parent is None else self._hex(parent.span_id),
            None if span.kind is SpanKind.INTERNAL else span.kind.name.lower(),
            None if scope is None else _scope_of(scope),
            state.to_header() or None if state else None,
            _unsampled_flags(context),
        )
        # A span may be told to have started earlier than now, by its creator.
        start_ns = now_ns - max(0, self._clock.time_ns() - (span.start_time or 0))
        self._write_start(entry, file_attributes(attributes), links, start_ns, otel)

    def write_start(
        self, span: Span, in_file: Mapping[str, Any], links: Sequence[Link] | None, monotonic_ns: int
    ) -> None:
        """Write the start of a span of the run's own tracer, without asking the span for what its creator knows.

        Args:
            span: the span; nobody changes it but through :meth:`expect_change`.
            in_file: its attributes as the file keeps them, see :func:`file_attributes`.
            links: its links.
            monotonic_ns: when it started, on the monotonic clock.
        """
        context = span.get_span_context()
        file = None if context is None else self._files.get(context.trace_id)
        if context is None or file is None:
            return
        entry = OpenSpan(span, file, format_span_id(context.span_id), in_file, len(links) if links else 0)
        self._open[context.span_id] = entry
        parent = span.parent
        otel = OtelContext(
            file.trace_id_hex,
            None if parent is None else self._hex(parent.span_id),
            flags=_unsampled_flags(context),
        )
        if file.is_capture:  # its spans' times count from the step's start
            start_ns = (span.start_time or 0) - file.start.time_unix_nano
        else:
            start_ns = monotonic_ns - file.start.monotonic_ns
        self._write_start(entry, in_file, links, start_ns, otel)

    def _write_start(
        self,
        entry: OpenSpan,
        in_file: Mapping[str, Any],
        links: Sequence[Link] | None,
        start_ns: int,
        otel: OtelContext,
    ) -> None:
        span, file = entry.span, entry.file
        parent, name, is_capture = span.parent, span.name, file.is_capture
        entry.is_in_file = file.writer.write_plain(
            SpanStart(
                id=entry.id_hex,
                parent_id=None if parent is None else self.parent_in_file(parent, otel.parent_span_id),
                name=name,
                start_ns=max(0, start_ns),
                time_unix_nano=span.start_time or 0,
                span_kind="function",
                measured=is_capture and parent is None,
                step=name if is_capture and name in _STEP_PARTS else None,
                attributes=in_file or None,
                otel=otel,
                links=[span_link(link) for link in links] if links else None,
            )
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Write the end of a span whose start was written."""
        self._write_end(span, max(0, (span.end_time or 0) - (span.start_time or 0)))

    def _write_end(self, span: ReadableSpan, duration_ns: int) -> None:
        context = span.get_span_context()
        entry = None if context is None else self._open.pop(context.span_id, None)
        if entry is None or not entry.is_in_file:
            return
        writer = entry.file.writer
        if entry.may_have_changed:
            writer.write(_end_event(span, entry, duration_ns))
        else:
            writer.write_plain(SpanEnd(id=entry.id_hex, duration_ns=duration_ns))

    def shutdown(self) -> None:
        """Do nothing: the run closes its file, whatever the provider does."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - SpanProcessor's signature
        """Return True: every line was written when it was made."""
        return True

    def _hex(self, span_id: int) -> str:
        """Return a span's id in hex; for an open span it is at hand."""
        known = self._open.get(span_id)
        return format_span_id(span_id) if known is None else known.id_hex


def _end_event(span: ReadableSpan, entry: OpenSpan, duration_ns: int) -> SpanEnd:
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
        links=[span_link(link) for link in span.links[entry.link_count :]] or None,
        dropped=_dropped_by_sdk(span),
    )


def is_exact(attributes: Mapping[str, Any]) -> bool:
    """Whether the file can keep attributes as they are: text, bools, integers of 64 bits, finite floats."""
    for value in attributes.values():
        kind = type(value)
        if kind is str or kind is bool:
            continue
        # `value - value` is 0.0 for finite floats alone.
        if not ((kind is int and -_INT_LIMIT <= value < _INT_LIMIT) or (kind is float and value - value == 0.0)):
            return False
    return True


def file_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as the file keeps them: whole, and exact where JSON can be."""
    if is_exact(attributes):
        return dict(attributes)
    return {key: jsonable(value) for key, value in attributes.items()}


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


def _unsampled_flags(context: SpanContext) -> int | None:
    """Return the flags of a span that is not exported; None for a sampled one, which is the rule."""
    flags = context.trace_flags
    return None if flags in _SAMPLED_FLAGS else flags & _SAMPLED


def _scope_of(scope: InstrumentationScope) -> Scope:
    return Scope(scope.name, scope.version or None, scope.schema_url or None)


def _status(span: ReadableSpan) -> SpanStatus | None:
    if span.status.status_code is StatusCode.UNSET:
        return None
    return SpanStatus(span.status.status_code.name.lower(), span.status.description or None)


def _span_event(event: Event) -> SpanEvent:
    attributes = file_attributes(event.attributes) if event.attributes else None
    return SpanEvent(event.name, event.timestamp, attributes)


def span_link(link: Link) -> SpanLink:
    """Return a link as the file keeps it."""
    context = link.context
    flags = context.trace_flags & _SAMPLED
    return SpanLink(
        trace_id=format_trace_id(context.trace_id),
        span_id=format_span_id(context.span_id),
        attributes=file_attributes(link.attributes) if link.attributes else None,
        trace_state=context.trace_state.to_header() or None if context.trace_state else None,
        flags=None if flags == _SAMPLED else flags,
    )
