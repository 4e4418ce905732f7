"""From a user's values and a whole span to the bounded copy that is exported.

The trace file has everything; what leaves over OTLP is cut here, by pure functions, so that a live export and a later
replay of the file send the same copy.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import Link, Status

from runspan._plain import float_name, int_text, plain_value, scrub_text
from runspan.semconv import Attr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from runspan._otel_env import SpanLimitSettings

__all__ = ["MAX_VALUE_BYTES", "cut_text", "exportable", "trim_span", "with_dropped"]

#: Longest exported string, UTF-8 bytes, the mark that says so included.
MAX_VALUE_BYTES = 4096
#: OpenTelemetry's default for each count limit that no variable sets.
_DEFAULT_COUNT = 128
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_MAX_UTF8_BYTES_A_CHARACTER = 4
_EXCEPTION_EVENT = "exception"

#: ``runspan.*`` attributes of which there may be any number; all others say what the span is and are never cut off.
_COUNTLESS = (Attr.PARAM_PREFIX, Attr.TAG_PREFIX, Attr.METRIC_PREFIX)
#: What every exported span says, wherever it was made.
_COMMON = (Attr.RUN_ID, Attr.RANK, Attr.ATTEMPT)

T = TypeVar("T")

Scalar = str | bool | int | float
Exportable = Scalar | tuple[str, ...] | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...]


def exportable(value: Any, *, max_characters: int | None = None) -> Exportable:
    """Return the exported form of an attribute's value.

    NaN and infinities become the strings ``NaN``, ``Infinity``, ``-Infinity``; integers beyond int64 decimal strings;
    lone surrogates U+FFFD; numpy scalars Python numbers; bytes their UTF-8 text; None ``None``; mappings, mixed and
    nested lists JSON text. Text over 4 KiB is cut to it and ends in ``…[cut from <n> bytes]``.

    Args:
        value: whatever a user gave.
        max_characters: ``OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT``; None: only the 4 KiB.
    """
    plain = plain_value(value)
    if isinstance(plain, dict):
        return cut_text(_json_text(plain), max_characters)
    if isinstance(plain, list):
        return _exportable_list(plain, max_characters)
    scalar = _exportable_scalar(plain)
    return cut_text(scalar, max_characters) if isinstance(scalar, str) else scalar


def cut_text(text: str, max_characters: int | None = None) -> str:
    """Return text any receiver takes: valid UTF-8, at most 4 KiB and ``max_characters``, marked where it was cut."""
    text = scrub_text(text)
    if len(text) * _MAX_UTF8_BYTES_A_CHARACTER > MAX_VALUE_BYTES:
        encoded = text.encode()
        if len(encoded) > MAX_VALUE_BYTES:
            mark = f"…[cut from {len(encoded)} bytes]"
            head = encoded[: MAX_VALUE_BYTES - len(mark.encode())].decode(errors="ignore")
            if max_characters is None or len(head) + len(mark) <= max_characters:
                return head + mark
    if max_characters is None or len(text) <= max_characters:
        return text
    mark = f"…[cut from {len(text.encode())} bytes]"
    room = max_characters - len(mark)
    return text[:room] + mark if room > 0 else text[:max_characters]


def trim_span(span: ReadableSpan, limits: SpanLimitSettings) -> ReadableSpan:
    """Return the copy of a span that is exported.

    It says of which run, rank and attempt it is, as its Resource does: a store finds spans by their own attributes.
    Counts are bounded by the ``OTEL_*`` limits (128 where none is set). The attributes that say what the span is always
    stay; of the others, and of events and links, the newest go, exceptions last. How many went stands in
    ``runspan.dropped.attributes``, ``.events``, ``.links`` and in OTLP's own counts.

    Args:
        span: an ended span; unchanged.
        limits: the ``OTEL_*`` limits.
    """
    length = limits.attribute_value_length
    events, lost_events = _trim_events(span, limits, length)
    links, lost_links = _trim_links(span, limits, length)
    lost = {Attr.DROPPED_EVENTS: lost_events, Attr.DROPPED_LINKS: lost_links}
    attributes = _trim_attributes(span, _count_of(limits.attribute_count), lost, length)
    status = span.status
    if status.description:
        status = Status(status.status_code, cut_text(status.description))
    start, end = span.start_time, span.end_time
    return ReadableSpan(
        name=cut_text(span.name),
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=attributes,
        events=with_dropped(events, lost_events),
        links=with_dropped(links, lost_links),
        kind=span.kind,
        status=status,
        start_time=start,
        end_time=end if start is None or end is None else max(start, end),
        instrumentation_scope=span.instrumentation_scope,
    )


def _count_of(limit: int | None) -> int:
    return _DEFAULT_COUNT if limit is None else limit


def _trim_attributes(
    span: ReadableSpan, limit: int, lost: Mapping[str, int], max_characters: int | None
) -> BoundedAttributes:
    """Convert and bound a span's attributes; ``lost`` counts what the rest of the span lost."""
    identity_of = span.resource.attributes
    attributes = {name: identity_of[name] for name in _COMMON if name in identity_of} | dict(span.attributes or {})
    counts = {name: count for name, count in lost.items() if count}
    identity = sum(map(_identifies, attributes))
    room = max(0, limit - identity - len(counts))
    dropped = span.dropped_attributes
    if dropped or len(attributes) - identity > room:
        room = max(0, room - 1)  # for the count itself
        dropped += max(0, len(attributes) - identity - room)
        counts[Attr.DROPPED_ATTRIBUTES] = dropped
    kept: dict[str, Exportable] = {}
    for key, value in attributes.items():
        if not _identifies(key):
            if not room:
                continue
            room -= 1
        kept[cut_text(key)] = exportable(value, max_characters=max_characters)
    bounded = BoundedAttributes(attributes={**kept, **counts}, immutable=True)
    bounded.dropped = dropped
    return bounded


def _identifies(key: str) -> bool:
    return (key.startswith("runspan.") and not key.startswith(_COUNTLESS)) or key == Attr.VCS_REVISION


def _trim_events(span: ReadableSpan, limits: SpanLimitSettings, max_characters: int | None) -> tuple[list[Event], int]:
    kept, lost = _oldest(span.events, _count_of(limits.event_count), lambda event: event.name == _EXCEPTION_EVENT)
    bound = _count_of(limits.event_attribute_count)
    return [
        Event(
            cut_text(event.name),
            _first(event.attributes, event.dropped_attributes, bound, max_characters),
            event.timestamp,
        )
        for event in kept
    ], lost + span.dropped_events


def _trim_links(span: ReadableSpan, limits: SpanLimitSettings, max_characters: int | None) -> tuple[list[Link], int]:
    kept, lost = _oldest(span.links, _count_of(limits.link_count), lambda _: False)
    bound = _count_of(limits.link_attribute_count)
    return [
        Link(link.context, _first(link.attributes, link.dropped_attributes, bound, max_characters)) for link in kept
    ], lost + span.dropped_links


def _oldest(items: Sequence[T], limit: int, important: Callable[[T], bool]) -> tuple[Sequence[T], int]:
    """Return the oldest ``limit`` items, important ones before others, in their order, and how many were left out."""
    if len(items) <= limit:
        return items, 0
    ranked = sorted(range(len(items)), key=lambda index: (not important(items[index]), index))
    return [items[index] for index in sorted(ranked[:limit])], len(items) - limit


def _first(
    attributes: Mapping[str, Any] | None, already_dropped: int, limit: int, max_characters: int | None
) -> BoundedAttributes:
    """Convert the first ``limit`` attributes of an event or link."""
    items = list((attributes or {}).items())
    kept = {cut_text(key): exportable(value, max_characters=max_characters) for key, value in items[:limit]}
    bounded = BoundedAttributes(attributes=kept, immutable=True)
    bounded.dropped = already_dropped + max(0, len(items) - limit)
    return bounded


def with_dropped(items: Iterable[T], dropped: int) -> BoundedList[T]:
    """Wrap events or links so that the encoder finds how many others were dropped."""
    bounded: BoundedList[T] = BoundedList(None)
    bounded.extend(list(items))
    bounded.dropped = dropped
    return bounded


def _exportable_scalar(plain: Any) -> Scalar:
    if plain is None:
        return "None"
    if isinstance(plain, float) and not math.isfinite(plain):
        return float_name(plain)
    if isinstance(plain, int) and not _INT64_MIN <= plain <= _INT64_MAX:
        return int_text(plain)
    scalar: Scalar = plain
    return scalar


def _exportable_list(plain: list[Any], max_characters: int | None) -> Exportable:
    """Return a tuple of one type, or JSON text where there is no such tuple or it would be too long."""
    if not any(isinstance(item, dict | list) or item is None for item in plain):
        scalars = [_exportable_scalar(item) for item in plain]
        kinds = set(map(type, scalars))
        if kinds == {int, float}:
            scalars = [float(item) for item in scalars]
        if len(kinds) <= 1 or kinds == {int, float}:
            if kinds == {str}:
                scalars = [cut_text(str(item), max_characters) for item in scalars]
            if sum(len(item.encode()) if isinstance(item, str) else 9 for item in scalars) <= MAX_VALUE_BYTES:
                homogeneous: Any = tuple(scalars)
                exported: Exportable = homogeneous
                return exported
    return cut_text(_json_text(plain), max_characters)


def _json_text(plain: Any) -> str:
    return json.dumps(_json_value(plain), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json_value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _json_value(item) for key, item in plain.items()}
    if isinstance(plain, list):
        return [_json_value(item) for item in plain]
    return None if plain is None else _exportable_scalar(plain)
