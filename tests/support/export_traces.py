"""Runs for the tests of the exports: spans that overlap, captured steps, values that are no numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import strategies as st

from runspan.tracefile.events import Event, SpanEnd, SpanStart, Step, TraceEvent, jsonable
from runspan.tracefile.layout import RunDirectory, TraceName
from support.traces import START_UNIX_NANO, make_meta, make_metric, make_span, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["CAPTURE", "any_spans", "make_exported_run", "span_events", "spans_of", "trace_files", "write_trace"]

CAPTURE = "update-000000101"


def span_events(
    span_id: str, name: str, start_ns: int, end_ns: int, parent: str | None = None
) -> tuple[SpanStart, SpanEnd]:
    """Return a span's two events."""
    start, _ = make_span(span_id)
    time_unix_nano = START_UNIX_NANO + start_ns
    changes: dict[str, Any] = {"name": name, "start_ns": start_ns, "time_unix_nano": time_unix_nano}
    start = msgspec.structs.replace(start, parent_id=parent, **changes)
    return start, SpanEnd(id=span_id, duration_ns=end_ns - start_ns)


def write_trace(folder: Path, *events: TraceEvent, rank: int = 0, **name: Any) -> Path:
    """Write a complete trace of these events."""
    trace = TraceName(rank, **name)
    path = folder / trace.filename
    write_lines(path, [make_meta(rank, trace.attempt), *events, make_terminal(at_s=2)])
    return path


def make_exported_run(directory: Path, *, ranks: int = 2) -> list[Path]:
    """Write a run whose ranks have spans, steps, metrics (one NaN), an event and a captured step; return its traces."""
    for rank in range(ranks):
        outer, outer_end = span_events("aa" * 8, "rank", 0, 1_000_000_007)
        inner, inner_end = span_events("ab" * 8, "evaluate", 1_500, 2_001, "aa" * 8)
        steps = [
            Step(step=number, duration_ns=1_000_000, time_unix_nano=START_UNIX_NANO + 2_000_000 * (number + 1))
            for number in range(3)
        ]
        write_trace(
            directory,
            outer,
            inner,
            inner_end,
            *steps,
            make_metric(0),
            make_metric(1, value=float("nan")),
            Event(
                name="note",
                level="info",
                message="hello",
                attributes={"ratio": jsonable(float("inf"))},
                time_unix_nano=START_UNIX_NANO + 5,
            ),
            outer_end,
            rank=rank,
        )
        root, root_end = span_events("ba" * 8, "step", 10 * rank, 5_000)
        child, child_end = span_events("bb" * 8, "forward", 100 + 10 * rank, 3_000, "ba" * 8)
        write_trace(directory / "captures" / CAPTURE, root, child, child_end, root_end, rank=rank)
    return trace_files(directory)


def trace_files(directory: Path) -> list[Path]:
    """Return the first part of each run trace of a directory."""
    return [path for name, path in RunDirectory(directory).trace_files() if name.part == 0]


@st.composite
def any_spans(draw: st.DrawFn) -> list[TraceEvent]:
    """Draw the lines of spans that begin and end in any order, whose times may contradict that order."""
    events: list[TraceEvent] = []
    opened: list[SpanStart] = []
    begun: list[str] = []
    for number in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from([None, *begun]))
        start, _ = span_events(f"{number:02x}", draw(st.sampled_from("abc")), draw(st.integers(0, 20)), 0, parent)
        events.append(start)
        opened.append(start)
        begun.append(start.id)
        events.extend(_end(draw, opened) for _ in range(draw(st.integers(0, len(opened)))))
    for _ in range(draw(st.integers(0, len(opened)))):
        events.append(_end(draw, opened))  # noqa: PERF401 - it takes from what is counted
    return events


def _end(draw: st.DrawFn, opened: list[SpanStart]) -> SpanEnd:
    start = opened.pop(draw(st.integers(0, len(opened) - 1)))
    return SpanEnd(id=start.id, duration_ns=draw(st.integers(0, 15)))


def spans_of(events: Iterable[TraceEvent]) -> int:
    """Return how many spans begin in these events."""
    return sum(isinstance(event, SpanStart) for event in events)
