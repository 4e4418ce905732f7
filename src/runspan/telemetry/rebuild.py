"""Spans read back from a trace file, as the SDK's own: what a child process recorded, a parent can export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from runspan import semconv
from runspan._version import __version__
from runspan.tracefile.events import Meta, SpanEnd, SpanStart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runspan.tracefile.events import SpanLink, TraceEvent

__all__ = ["rebuild_spans"]

_SAMPLED = 0x01
_OWN_SCOPE = InstrumentationScope(semconv.SCOPE_NAME, __version__, semconv.SCHEMA_URL)


def rebuild_spans(events: Iterable[TraceEvent]) -> Iterator[ReadableSpan]:
    """Yield each span that ended, in the order of the ends; one that was never exported is not sampled.

    Args:
        events: one trace's, its meta first.
    """
    resource = Resource.get_empty()
    started: dict[str, SpanStart] = {}
    for event in events:
        if isinstance(event, Meta):
            resource = Resource(event.resource, semconv.SCHEMA_URL)
        elif isinstance(event, SpanStart):
            started[event.id] = event
        elif isinstance(event, SpanEnd) and event.id in started:
            yield _rebuild(started.pop(event.id), event, resource)


def _rebuild(start: SpanStart, end: SpanEnd, resource: Resource) -> ReadableSpan:
    otel = start.otel
    parent = None
    if otel.parent_span_id is not None:
        parent = _context(otel.trace_id, otel.parent_span_id, _SAMPLED, None)
    scope = _OWN_SCOPE
    if otel.scope is not None:
        scope = InstrumentationScope(otel.scope.name, otel.scope.version, otel.scope.schema_url)
    return ReadableSpan(
        name=start.name,
        context=_context(otel.trace_id, start.id, otel.flags, otel.trace_state),
        parent=parent,
        resource=resource,
        attributes={**(start.attributes or {}), **(end.attributes or {})},
        events=[Event(item.name, item.attributes, item.time_unix_nano) for item in end.events or ()],
        links=[_link(link) for link in (*(start.links or ()), *(end.links or ()))],
        kind=SpanKind.INTERNAL if otel.kind is None else SpanKind[otel.kind.upper()],
        status=Status() if end.status is None else Status(StatusCode[end.status.code.upper()], end.status.message),
        start_time=start.time_unix_nano,
        end_time=start.time_unix_nano + end.duration_ns,
        instrumentation_scope=scope,
    )


def _context(trace_id: str, span_id: str, flags: int | None, state: str | None) -> SpanContext:
    return SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=False,
        trace_flags=TraceFlags(_SAMPLED if flags is None else flags),
        trace_state=TraceState.from_header([state]) if state else None,
    )


def _link(link: SpanLink) -> Link:
    attributes: Any = link.attributes
    return Link(_context(link.trace_id, link.span_id, link.flags, link.trace_state), attributes)
