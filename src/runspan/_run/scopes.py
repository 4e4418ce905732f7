"""Spans as context managers: what is current while a span is open, and what is put back behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace

from runspan.telemetry.processor import file_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from runspan._run.spans import RecordedSpan, Spans
    from runspan.telemetry.processor import TraceStart

__all__ = ["FileSpanScope", "SpanScope", "make_current", "restore"]


def make_current(span: trace.Span, previous: otel_context.Context) -> otel_context.Context:
    """Make a span the current one; return the context that is then current, for :func:`restore`."""
    entered = trace.set_span_in_context(span, previous)
    otel_context.attach(entered)
    return entered


def restore(entered: otel_context.Context, previous: otel_context.Context) -> None:
    """Put back what was current before, unless something else is current now.

    ``context.detach`` logs an error when a generator is closed in another context than it was started in; setting the
    earlier context again does the same work without.
    """
    if otel_context.get_current() is entered:
        otel_context.attach(previous)


class SpanScope:
    """A span as a context manager: current while it is entered.

    Entering returns the span, whose attributes may be any Python values.

    Args:
        spans: where it is started.
        name: its name.
        attributes: its first attributes.
        on_start: called with the started span.
        origin: what its start counts from on the monotonic clock, inside a captured step.
    """

    __slots__ = ("_attributes", "_entered", "_name", "_on_start", "_origin", "_previous", "_span", "_spans")

    def __init__(
        self,
        spans: Spans,
        name: str,
        attributes: Mapping[str, Any],
        on_start: Callable[[RecordedSpan], None] | None = None,
        origin: TraceStart | None = None,
    ) -> None:
        self._spans = spans
        self._name = name
        self._attributes = attributes
        self._on_start = on_start
        self._origin = origin

    def __enter__(self) -> trace.Span:
        spans = self._spans
        self._previous = previous = otel_context.get_current()
        self._span = span = spans.begin(
            self._name, self._attributes, context=spans.parent(previous), origin=self._origin
        )
        self._entered = make_current(span, previous)
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
        restore(self._entered, self._previous)
        self._span.end()


class FileSpanScope:
    """A span of the file alone as a context manager: the parent of the file's spans that are started inside.

    Entering returns the span, whose attributes may be any Python values.

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
        self._span, own = self._spans.begin_in_file(self._name, self._attributes)
        self._outer = file_parent.get()
        file_parent.set(own)
        return self._span

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
