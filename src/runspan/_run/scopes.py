"""Spans as context managers: what is current while a span is open, and what is put back behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.context import attach, get_current
from opentelemetry.trace import TraceFlags, get_current_span, set_span_in_context

from runspan.telemetry.processor import FileParent, file_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from opentelemetry import trace
    from opentelemetry.context import Context

    from runspan._run.captured_step import Capture
    from runspan._run.spans import RecordedSpan, Spans

__all__ = ["FileSpanScope", "HiddenSpanScope", "SpanScope", "make_current", "restore"]

_UNSAMPLED = TraceFlags(TraceFlags.DEFAULT)


def make_current(span: trace.Span, previous: Context) -> Context:
    """Make a span the current one; return the context that is then current, for :func:`restore`."""
    entered = set_span_in_context(span, previous)
    attach(entered)
    return entered


def restore(entered: Context, previous: Context) -> None:
    """Put back what was current before, unless something else is current now.

    ``context.detach`` logs an error when a generator is closed in another context than it was started in; setting the
    earlier context again does the same work without.
    """
    if get_current() is entered:
        attach(previous)


class SpanScope:
    """A span as a context manager: current while it is entered.

    Entering returns the span, whose attributes may be any Python values.

    Args:
        spans: where it is started.
        name: its name.
        attributes: its first attributes.
        on_start: called with the started span.
        capture: the captured step that it is part of.
        span_kind: function, op or module.
    """

    __slots__ = (
        "_attributes",
        "_capture",
        "_entered",
        "_name",
        "_on_start",
        "_previous",
        "_span",
        "_span_kind",
        "_spans",
    )

    def __init__(
        self,
        spans: Spans,
        name: str,
        attributes: Mapping[str, Any],
        on_start: Callable[[RecordedSpan], None] | None = None,
        *,
        capture: Capture | None = None,
        span_kind: str = "function",
    ) -> None:
        self._spans = spans
        self._name = name
        self._attributes = attributes
        self._on_start = on_start
        self._capture = capture
        self._span_kind = span_kind

    def __enter__(self) -> trace.Span:
        spans = self._spans
        self._previous = previous = get_current()
        capture = self._capture
        if capture is None:
            span = spans.begin(self._name, self._attributes, context=spans.parent(previous))
        else:
            span = spans.begin(
                self._name,
                self._attributes,
                context=capture.parent(previous),
                origin=capture.start,
                span_kind=self._span_kind,
            )
        self._span = span
        self._entered = entered = set_span_in_context(span, previous)
        attach(entered)
        if self._on_start is not None:
            self._on_start(span)
        return span

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        exception_traceback: TracebackType | None,
    ) -> None:
        if exception is not None and not isinstance(exception, GeneratorExit):
            self._spans.fail(self._span, exception)
        if get_current() is self._entered:  # see restore
            attach(self._previous)
        self._span.end()


class FileSpanScope:
    """A span of the file as a context manager, which nobody exports: current like any other while it is entered.

    Entering returns the span, whose attributes may be any Python values.

    Args:
        spans: where it is started.
        name: its name.
        attributes: its first attributes.
    """

    __slots__ = ("_attributes", "_entered", "_name", "_previous", "_span", "_spans")

    def __init__(self, spans: Spans, name: str, attributes: Mapping[str, Any]) -> None:
        self._spans = spans
        self._name = name
        self._attributes = attributes

    def __enter__(self) -> trace.Span:
        spans = self._spans
        self._previous = previous = get_current()
        parent = get_current_span(previous).get_span_context()
        self._span = span = spans.begin_in_file(self._name, self._attributes, parent, spans.rank_context.trace_flags)
        self._entered = entered = set_span_in_context(span, previous)
        attach(entered)
        return span

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        exception_traceback: TracebackType | None,
    ) -> None:
        if exception is not None and not isinstance(exception, GeneratorExit):
            self._spans.fail(self._span, exception)
        if get_current() is self._entered:  # see restore
            attach(self._previous)
        self._spans.end_in_file(self._span)


class HiddenSpanScope:
    """A span of the file that the OpenTelemetry context does not show, so that no exported span names it as parent.

    It is the parent of the file's spans that are started inside. Entering returns the span, whose attributes may be any
    Python values.

    Args:
        spans: where it is started.
        name: its name.
        attributes: its first attributes.
    """

    __slots__ = ("_attributes", "_name", "_outer", "_span", "_spans")

    def __init__(self, spans: Spans, name: str, attributes: Mapping[str, Any]) -> None:
        self._spans = spans
        self._name = name
        self._attributes = attributes

    def __enter__(self) -> trace.Span:
        spans = self._spans
        parent = get_current_span().get_span_context()
        if parent.trace_id != spans.rank_context.trace_id:
            parent = spans.rank_context
        self._span = span = spans.begin_in_file(self._name, self._attributes, parent, _UNSAMPLED)
        self._outer = file_parent.get()
        file_parent.set(FileParent(span.id_hex, parent.span_id))
        return span

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        exception_traceback: TracebackType | None,
    ) -> None:
        if exception is not None and not isinstance(exception, GeneratorExit):
            self._spans.fail(self._span, exception)
        file_parent.set(self._outer)
        self._spans.end_in_file(self._span)
