"""RunTraceProcessor: the span processor that writes a run's spans to its trace file."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

from runspan import semconv
from runspan.telemetry._span_parts import copy_of, end_event, file_attributes, scope_of, span_link, unsampled_flags
from runspan.tracefile.events import OtelContext, SpanEnd, SpanStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span
    from opentelemetry.trace import Link, SpanContext

    from runspan._clock import Clock
    from runspan.tracefile.writer import TraceWriter

__all__ = ["FileParent", "OpenSpan", "RunTraceProcessor", "SpanWatcher", "TraceStart", "file_parent"]

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


class SpanWatcher(Protocol):
    """Told of each span of a captured step that stands in its file, on the thread that starts or ends it."""

    def started(self, start: SpanStart) -> None:
        """Hear of a span that began."""

    def ended(self, span_id: str) -> None:
        """Hear of the end of one."""


class _TraceFile:
    """Where one trace's spans are written: the run's trace, or a captured step's."""

    __slots__ = ("is_capture", "start", "trace_id_hex", "watcher", "writer")

    def __init__(self, writer: TraceWriter, start: TraceStart, trace_id: int, *, is_capture: bool = False) -> None:
        self.writer = writer
        self.start = start
        self.trace_id_hex = format_trace_id(trace_id)
        self.is_capture = is_capture
        self.watcher: SpanWatcher | None = None


class OpenSpan:
    """A span between its two lines: what the first one holds, and whether the second may have more to say."""

    __slots__ = ("attributes", "file", "id_hex", "is_in_file", "link_count", "may_have_changed", "name", "span")

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
        #: Its name as the start line has it, from when on it may have changed.
        self.name: str | None = None


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
        self._at_end: dict[int, Callable[[ReadableSpan], None]] = {}
        #: Why what was to be done at a span's end could not be done.
        self.end_error: Exception | None = None

    @property
    def open_spans(self) -> list[Span]:
        """The spans that were started and have not ended, oldest first."""
        return [entry.span for entry in list(self._open.values())]  # copied at once: other threads start and end spans

    def add_capture(
        self, trace_id: int, writer: TraceWriter, start: TraceStart, watcher: SpanWatcher | None = None
    ) -> None:
        """Write a captured step's trace to a file of its own, until :meth:`remove_capture`.

        The start times of its spans must count from ``start`` on the monotonic clock.
        """
        self._files[trace_id] = file = _TraceFile(writer, start, trace_id, is_capture=True)
        file.watcher = watcher

    def remove_capture(self, trace_id: int) -> None:
        """Ignore spans of a captured step's trace that start from now on."""
        self._files.pop(trace_id, None)

    def when_ended(self, span_id: int, act: Callable[[ReadableSpan], None]) -> None:
        """Call back once when a span of the run has ended; what that raises is kept as :attr:`end_error`."""
        self._at_end[span_id] = act

    def has_trace(self, trace_id: int) -> bool:
        """Whether spans of this trace are written."""
        return trace_id in self._files

    def is_open(self, span_id: int) -> bool:
        """Whether a span stands in a file of this process, and has not ended."""
        return span_id in self._open

    def cut_off(self, span: Span, end_time: int | None = None) -> None:
        """End an open span because the file ends.

        A host program's span is not ours to end, and an exception may have cut the end of one of ours in two: of those
        the end is written alone.

        Args:
            span: the span.
            end_time: when one of ours ends, unix ns; None: now.
        """
        scope = span.instrumentation_scope
        if scope is not None and scope.name == _OWN_SCOPE and span.is_recording():
            span.end(end_time)
        else:
            ended = self._clock.time_ns() if span.end_time is None else span.end_time
            self._write_end(span, max(0, ended - (span.start_time or 0)))

    def expect_change(self, span_id: int) -> None:
        """Look at an open span of the run's own tracer when it ends: something about it is about to be set."""
        entry = self._open.get(span_id)
        if entry is not None and not entry.may_have_changed:
            entry.attributes, entry.name = copy_of(entry.span.attributes), entry.span.name
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
        attributes, links, state = copy_of(span.attributes), span.links, context.trace_state
        now_ns = self._clock.monotonic_ns() - file.start.monotonic_ns
        parent = span.parent
        entry = OpenSpan(span, file, format_span_id(context.span_id), attributes, len(links))
        entry.may_have_changed, entry.name = True, span.name
        self._open[context.span_id] = entry
        otel = OtelContext(
            file.trace_id_hex,
            None if parent is None else self._hex(parent.span_id),
            None if span.kind is SpanKind.INTERNAL else span.kind.name.lower(),
            None if scope is None else scope_of(scope),
            state.to_header() or None if state else None,
            unsampled_flags(context),
        )
        # A span may be told to have started earlier than now, by its creator.
        start_ns = now_ns - max(0, self._clock.time_ns() - (span.start_time or 0))
        self._write_start(entry, file_attributes(attributes), links, start_ns, otel)

    def write_start(
        self,
        span: Span,
        in_file: Mapping[str, Any],
        links: Sequence[Link] | None,
        monotonic_ns: int,
        span_kind: str = "function",
    ) -> None:
        """Write the start of a span of the run's own tracer, without asking the span for what its creator knows.

        Args:
            span: the span; nobody changes it but through :meth:`expect_change`.
            in_file: its attributes as the file keeps them, see :func:`file_attributes`.
            links: its links.
            monotonic_ns: when it started, on the monotonic clock.
            span_kind: function, op or module.
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
            flags=unsampled_flags(context),
        )
        if file.is_capture:  # its spans' times count from the step's start
            start_ns = (span.start_time or 0) - file.start.time_unix_nano
        else:
            start_ns = monotonic_ns - file.start.monotonic_ns
        self._write_start(entry, in_file, links, start_ns, otel, span_kind)

    def _write_start(  # noqa: PLR0917 - called by position: the hot path of every span
        self,
        entry: OpenSpan,
        in_file: Mapping[str, Any],
        links: Sequence[Link] | None,
        start_ns: int,
        otel: OtelContext,
        span_kind: str = "function",
    ) -> None:
        span, file = entry.span, entry.file
        parent, name, is_capture = span.parent, span.name, file.is_capture
        start = SpanStart(
            id=entry.id_hex,
            parent_id=None if parent is None else self.parent_in_file(parent, otel.parent_span_id),
            name=name,
            start_ns=max(0, start_ns),
            time_unix_nano=span.start_time or 0,
            span_kind=span_kind,
            measured=is_capture and parent is None,
            step=name if is_capture and name in _STEP_PARTS else None,
            attributes=in_file or None,
            otel=otel,
            links=[span_link(link) for link in links] if links else None,
        )
        entry.is_in_file = True  # a signal may end the run at the end of this very write
        entry.is_in_file = file.writer.write_plain(start)
        if file.watcher is not None and entry.is_in_file:
            file.watcher.started(start)

    def on_end(self, span: ReadableSpan) -> None:
        """Write the end of a span whose start was written."""
        self._write_end(span, max(0, (span.end_time or 0) - (span.start_time or 0)))
        context = span.get_span_context() if self._at_end else None
        act = None if context is None else self._at_end.pop(context.span_id, None)
        if act is not None:
            try:
                act(span)
            except Exception as error:  # noqa: BLE001 - a span processor never throws
                self.end_error = error

    def _write_end(self, span: ReadableSpan, duration_ns: int) -> None:
        context = span.get_span_context()
        entry = None if context is None else self._open.pop(context.span_id, None)
        if entry is None or not entry.is_in_file:
            return
        writer, watcher = entry.file.writer, entry.file.watcher
        if watcher is not None:
            watcher.ended(entry.id_hex)
        if entry.may_have_changed:
            named = entry.name
            writer.write(end_event(span, entry.id_hex, entry.attributes, entry.link_count, duration_ns, named=named))
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
