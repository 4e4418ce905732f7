"""An SDK span's parts as the trace file keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from runspan.tracefile.events import Scope, SpanEnd, SpanEvent, SpanLink, SpanStatus, jsonable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext

__all__ = ["copy_of", "end_event", "file_attributes", "is_exact", "scope_of", "span_link", "unsampled_flags"]

#: Of the W3C trace flags only the sampled bit is kept: the others say how the trace id was made.
_SAMPLED = 0x01
#: The W3C trace flags of a sampled span: with, and without, a random trace id.
_SAMPLED_FLAGS = frozenset({0x01, 0x03})
_INT_LIMIT = 2**63


def end_event(
    span: ReadableSpan,
    span_id: str,
    before: Mapping[str, Any],
    link_count: int,
    duration_ns: int,
    *,
    named: str | None,
) -> SpanEnd:
    """Describe an ended span by what its start line does not say.

    Args:
        span: the span.
        span_id: its id in hex.
        before: the attributes of its start line.
        link_count: how many links that line has.
        duration_ns: how long it took.
        named: the name that it has there.
    """
    attributes = copy_of(span.attributes)
    changed = {
        key: value
        for key, value in attributes.items()
        if key not in before or (before[key] is not value and before[key] != value)  # NaN differs from itself
    }
    return SpanEnd(
        id=span_id,
        duration_ns=duration_ns,
        status=_status(span),
        attributes=file_attributes(changed) or None,
        events=[_span_event(item) for item in span.events] or None,
        links=[span_link(link) for link in span.links[link_count:]] or None,
        dropped=_dropped_by_sdk(span),
        name=None if span.name == named else span.name,
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


def copy_of(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
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


def unsampled_flags(context: SpanContext) -> int | None:
    """Return the flags of a span that is not exported; None for a sampled one, which is the rule."""
    flags = context.trace_flags
    return None if flags in _SAMPLED_FLAGS else flags & _SAMPLED


def scope_of(scope: InstrumentationScope) -> Scope:
    """Return an instrumentation scope as the file keeps it."""
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
