"""Pending spans: what shows an open span before it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from runspan import ids
from runspan.semconv import Attr, SpanName

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span

__all__ = ["pending_span"]


def pending_span(span: Span) -> ReadableSpan:
    """Return the short child that shows an open span: ``<name> (started)``, its attributes, its start as both times.

    Args:
        span: an SDK span that has started.
    """
    context = span.get_span_context()
    return ReadableSpan(
        name=SpanName.pending(span.name),
        context=SpanContext(
            context.trace_id, ids.pending_span_id(context.span_id), is_remote=False, trace_flags=context.trace_flags
        ),
        parent=context,
        resource=span.resource,
        attributes={**(span.attributes or {}), Attr.PENDING: True},
        start_time=span.start_time,
        end_time=span.start_time,
        instrumentation_scope=span.instrumentation_scope,
    )
