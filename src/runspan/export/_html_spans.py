"""Spans in bounded memory: the longest ones, and how many there were beside them."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import msgspec

from runspan._plain import scrub_text
from runspan.export._values import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan.tracefile.events import Meta, SpanEnd, SpanStart, Step

__all__ = ["LongestSpans", "OpenSpans", "embeddable", "page_mapping", "page_name", "page_value", "step_bar"]

#: A value on the page is cut behind so many characters, and a map behind so many entries.
_MAX_TEXT = 1_000
#: Of a longer name so many characters of its beginning and its end are kept: names differ at both.
_NAME_HEAD, _NAME_TAIL = 140, 60
_MAX_ENTRIES = 64
_MAX_SPAN_EVENTS = 16


def page_value(value: Any) -> str | int | float | bool | None:
    """Return a value as the page shows it: what JSON in a browser does not keep exact, and all nested, is text."""
    plain = readable(value)
    if plain is None or isinstance(plain, bool | int | float):
        return plain
    text = plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


def page_name(text: str) -> str:
    """Return a name as the page shows it."""
    name = scrub_text(text)
    return name if len(name) <= _NAME_HEAD + _NAME_TAIL else f"{name[:_NAME_HEAD]}…{name[-_NAME_TAIL:]}"


def embeddable(value: Any) -> bytes:
    """Return JSON that no text in it can end the element of: a ``<`` stands in JSON only inside strings."""
    return msgspec.json.encode(value).replace(b"<", b"\\u003c")


def page_mapping(mapping: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the first entries of a map as the page shows them."""
    shown: dict[str, Any] = {}
    for key, value in (mapping or {}).items():
        if len(shown) == _MAX_ENTRIES:
            shown["…"] = f"{len(mapping or {}) - _MAX_ENTRIES} more in the trace file"
            break
        shown[page_name(key)] = page_value(value)
    return shown


class LongestSpans:
    """Keeps the spans that took longest, as JSON, within a number of bytes.

    Args:
        max_bytes: of the JSON.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._number = 0
        self.left_out = 0
        #: (duration, number, JSON): the shortest on top; of equal ones the one that came last.
        self._heap: list[tuple[int, int, bytes]] = []

    def add(self, span: Mapping[str, Any]) -> None:
        """Add a span; it has ``duration_ns``."""
        self._number -= 1
        duration_ns = span["duration_ns"]
        if self.left_out and self._heap and duration_ns <= self._heap[0][0]:
            self.left_out += 1
            return
        encoded = embeddable(span)
        heapq.heappush(self._heap, (duration_ns, self._number, encoded))
        self._bytes += len(encoded)
        while self._bytes > self._max_bytes:
            self._bytes -= len(heapq.heappop(self._heap)[2])
            self.left_out += 1

    def finish(self) -> list[msgspec.Raw]:
        """Return the spans in the order in which they came."""
        kept = sorted(self._heap, key=lambda item: -item[1])
        return [msgspec.Raw(encoded) for _, _, encoded in kept]


class OpenSpans:
    """Joins the two events of each span of one trace.

    Args:
        trace: the trace's position on the page.
        meta: the trace's meta, from whose time spans count.
        origin_unix_nano: the wall time from which the page counts.
        spans: takes the spans.
    """

    def __init__(self, trace: int, meta: Meta, origin_unix_nano: int, spans: LongestSpans) -> None:
        self._trace = trace
        self._offset_ns = meta.time_unix_nano - origin_unix_nano
        self._spans = spans
        self._starts: dict[str, SpanStart] = {}
        self.count = 0
        self.measured_ns: int | None = None

    def start(self, event: SpanStart) -> None:
        """Take a span's start."""
        self._starts[event.id] = event

    def end(self, event: SpanEnd) -> None:
        """Take a span's end."""
        start = self._starts.pop(event.id, None)
        if start is None:
            return  # a line between was skipped, which is told elsewhere
        if start.measured:
            self.measured_ns = event.duration_ns
        status = event.status
        self._add(
            start,
            event.duration_ns,
            "unset" if status is None else status.code,
            message=None if status is None else status.message,
            attributes={**(start.attributes or {}), **(event.attributes or {})},
            events=[
                {
                    "name": page_name(each.name),
                    "after_ns": each.time_unix_nano - start.time_unix_nano,
                    "attributes": page_mapping(each.attributes),
                }
                for each in (event.events or [])[:_MAX_SPAN_EVENTS]
            ],
        )

    def finish(self, last_seen_unix_nano: int) -> None:
        """Add the spans that never ended: they last until the trace does."""
        for start in self._starts.values():
            lasted_ns = max(0, last_seen_unix_nano - start.time_unix_nano)
            self._add(start, lasted_ns, "open", attributes=start.attributes)
        self._starts.clear()

    def _add(
        self,
        start: SpanStart,
        duration_ns: int,
        status: str,
        *,
        message: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        events: list[dict[str, Any]] | None = None,
    ) -> None:
        self.count += 1
        span = {
            "trace": self._trace,
            "id": start.id,
            "parent": start.parent_id,
            "name": page_name(start.name),
            "phase": start.step,
            "start_ns": self._offset_ns + start.start_ns,
            "duration_ns": duration_ns,
            "status": status,
            "message": page_value(message),
            "attributes": page_mapping(attributes),
            "events": events,
        }
        self._spans.add({field: value for field, value in span.items() if value not in (None, [], {})})


def step_bar(trace: int, event: Step, origin_unix_nano: int) -> dict[str, Any]:
    """Return a step that was not captured as a bar of the waterfall."""
    phases = {f"{name} (ns)": duration_ns for name, duration_ns in (event.phases or {}).items()}
    counts = {"data (ns)": event.data_ns, "samples": event.samples, "tokens": event.tokens}
    return {
        "trace": trace,
        "name": f"step {event.step}",
        "phase": "step",
        "start_ns": event.time_unix_nano - event.duration_ns - origin_unix_nano,
        "duration_ns": event.duration_ns,
        "status": "unset",
        "attributes": page_mapping({**phases, **{name: count for name, count in counts.items() if count is not None}}),
    }
