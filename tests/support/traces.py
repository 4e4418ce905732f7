"""Trace files for tests: events with sensible defaults, and files made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runspan.tracefile.events import (
    SCHEMA,
    Meta,
    Metric,
    OtelContext,
    ProcessInfo,
    SegmentEnd,
    SpanEnd,
    SpanStart,
    Terminal,
    TraceEvent,
    encode,
    jsonable,
)
from runspan.tracefile.meta import ExecutionPhase, TimingMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from runspan.tracefile.layout import TraceName

#: The wall time at which the traces of the tests start.
START_UNIX_NANO = 1_700_000_000_000_000_000
_NS_PER_S = 1_000_000_000


class FixedClock:
    """A clock that stands still so many seconds after the traces' start."""

    def __init__(self, seconds: float) -> None:
        self.now_ns = START_UNIX_NANO + int(seconds * _NS_PER_S)

    def time_ns(self) -> int:
        """Return the wall time."""
        return self.now_ns

    def monotonic_ns(self) -> int:
        """Return the same: nothing passes."""
        return self.now_ns


def make_meta(rank: int = 0, attempt: int = 0, **changes: Any) -> Meta:
    """Return a run trace's meta event."""
    meta = Meta(
        schema=SCHEMA,
        run_id="run-a",
        correlation_id="run-a",
        entrypoint="train:main",
        phase=ExecutionPhase.TRAIN,
        timestamp="2023-11-14T22:13:20.000Z",
        capture_step=1,
        warmup_steps=0,
        device="cpu",
        timing_mode=TimingMode.HOST,
        tags={},
        time_unix_nano=START_UNIX_NANO,
        process=ProcessInfo(rank, 4, rank, attempt, "node-1", 4242),
        heartbeat_s=10.0,
        resource={"service.name": "demo"},
    )
    return msgspec.structs.replace(meta, **changes)


def make_metric(step: int, *, at_s: float = 0.0, key: str = "loss", **changes: Any) -> Metric:
    """Return a metric event, logged so many seconds after the start."""
    metric = Metric(key, step, step / 4, START_UNIX_NANO + int(at_s * _NS_PER_S))
    return msgspec.structs.replace(metric, **changes)


def make_terminal(at_s: float = 1.0) -> Terminal:
    """Return the terminal event of a success, so many seconds after the start."""
    return Terminal("complete", int(at_s * _NS_PER_S), "success")


def make_span(span_id: str, *, start_s: float = 0.0, duration_s: float = 1.0) -> tuple[SpanStart, SpanEnd]:
    """Return a span's two events."""
    start_ns = int(start_s * _NS_PER_S)
    start = SpanStart(
        id=span_id,
        name="rank",
        start_ns=start_ns,
        time_unix_nano=START_UNIX_NANO + start_ns,
        span_kind="function",
        attributes={"nested": jsonable({"loss": float("inf"), "name": "é"})},
        otel=OtelContext("ab" * 16),
    )
    return start, SpanEnd(id=span_id, duration_ns=int(duration_s * _NS_PER_S))


def write_lines(path: Path, events: Iterable[TraceEvent]) -> bytes:
    """Write a file of these events, with the folders above it; return its bytes."""
    data = b"".join(map(encode, events))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


def write_parts(folder: Path, name: TraceName, parts: Sequence[Sequence[TraceEvent]]) -> list[Path]:
    """Write a trace in parts, each with its meta line and all but the last with its segment_end; return their paths."""
    paths = []
    for number, events in enumerate(parts):
        part = msgspec.structs.replace(name, part=number)
        meta = make_meta(name.rank, name.attempt, part=number or None)
        closing = [SegmentEnd(part.next_part().filename)] if number < len(parts) - 1 else []
        paths.append(folder / part.filename)
        write_lines(paths[-1], [meta, *events, *closing])
    return paths
