"""Spans in bounded memory: the longest ones, and how many there were beside them."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import msgspec

from runspan._plain import scrub_text
from runspan.export._values import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan.export._spans import JoinedSpan
    from runspan.tracefile.events import Step

__all__ = ["LongestSpans", "TraceSpans", "embeddable", "page_mapping", "page_name", "page_value", "step_bar"]

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


class TraceSpans:
    """Shows the spans of one trace.

    Args:
        trace: the trace's position on the page.
        offset_ns: when the trace starts, on the page's clock.
        spans: takes the spans.

    Attributes:
        count: how many there are.
        measured_ns: how long the measured span took; None where none has ended.
    """

    def __init__(self, trace: int, offset_ns: int, spans: LongestSpans) -> None:
        self.count = 0
        self.measured_ns: int | None = None
        self._trace = trace
        self._offset_ns = offset_ns
        self._spans = spans

    def add(self, span: JoinedSpan) -> None:
        """Add a span that ended, or that nothing ended."""
        self.count += 1
        start, end = span.start, span.end
        status = None if end is None else end.status
        if start.measured and end is not None:
            self.measured_ns = span.duration_ns
        shown = {
            "trace": self._trace,
            "id": start.id,
            "parent": start.parent_id,
            "name": page_name(span.name),
            "phase": start.step,
            "start_ns": self._offset_ns + start.start_ns,
            "duration_ns": span.duration_ns,
            "status": "open" if end is None else "unset" if status is None else status.code,
            "message": None if status is None else page_value(status.message),
            "attributes": page_mapping(span.attributes),
            "events": [
                {
                    "name": page_name(each.name),
                    "after_ns": each.time_unix_nano - start.time_unix_nano,
                    "attributes": page_mapping(each.attributes),
                }
                for each in ((None if end is None else end.events) or [])[:_MAX_SPAN_EVENTS]
            ],
        }
        self._spans.add({field: value for field, value in shown.items() if value not in (None, [], {})})


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
