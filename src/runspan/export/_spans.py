"""A trace's spans, each joined from the line of its start and the line of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runspan.tracefile.events import SpanEnd, SpanStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runspan.tracefile.reader import TraceReader

__all__ = ["JoinedSpan", "OpenSpans", "read_spans"]


class JoinedSpan(msgspec.Struct, frozen=True):
    """A span.

    Attributes:
        start: the line of its start.
        end: the line of its end; None while it is open.
        end_ns: when it ended, ns from the trace's start; of an open one when the trace was last seen.
    """

    start: SpanStart
    end: SpanEnd | None
    end_ns: int

    @property
    def name(self) -> str:
        """Its last name: its end tells one that it was given after its start."""
        return self.start.name if self.end is None or self.end.name is None else self.end.name

    @property
    def duration_ns(self) -> int:
        """How long it took, or has taken so far; never negative."""
        return self.end_ns - self.start.start_ns

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of its start, as far as its end did not change them, and those of its end."""
        at_end = self.end.attributes if self.end is not None else None
        return {**(self.start.attributes or {}), **(at_end or {})}


class OpenSpans:
    """Joins spans while a trace is read; holds those that are open."""

    def __init__(self) -> None:
        self._starts: dict[str, SpanStart] = {}

    def begin(self, start: SpanStart) -> None:
        """Take the start of a span."""
        self._starts[start.id] = start

    def finish(self, end: SpanEnd) -> JoinedSpan | None:
        """Return the span that ends; None for one whose id was used twice, the second time."""
        start = self._starts.pop(end.id, None)
        if start is None:
            return None
        return JoinedSpan(start, end, start.start_ns + max(0, end.duration_ns))

    def left_open(self, last_seen_ns: int) -> Iterator[JoinedSpan]:
        """Yield what nothing ended, the innermost first, up to when the trace was last seen, ns from its start."""
        while self._starts:
            _, start = self._starts.popitem()
            yield JoinedSpan(start, None, max(start.start_ns, last_seen_ns))


def read_spans(reader: TraceReader, begin: Callable[[SpanStart], None] = lambda _: None) -> Iterator[JoinedSpan]:
    """Yield the spans of a trace as they end, and last those that nothing ended.

    Args:
        reader: the trace, not read from yet.
        begin: called with the start of each span when that is read.

    Raises:
        TraceFormatError: the trace breaks the format.
    """
    spans = OpenSpans()
    for event in reader:
        if isinstance(event, SpanStart):
            spans.begin(event)
            begin(event)
        elif isinstance(event, SpanEnd) and (span := spans.finish(event)) is not None:
            yield span
    yield from spans.left_open(reader.last_seen_unix_nano - reader.meta.time_unix_nano)
