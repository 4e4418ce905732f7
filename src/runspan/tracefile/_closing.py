"""Ends the trace of a process that was killed: its open spans, its torn last line, its terminal event.

Every step leaves a trace that can be read, and that this can be done to again: a torn tail is cut first, then all
that is missing is appended in one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runspan.errors import ConfigError
from runspan.records import RunStatus
from runspan.semconv import Attr
from runspan.tracefile._file_end import append_events, cut_tail
from runspan.tracefile._state import event_time
from runspan.tracefile.events import (
    DeviceMemory,
    Dropped,
    Event,
    Memory,
    Metric,
    Metrics,
    Op,
    Param,
    SpanEnd,
    SpanStart,
    SpanStatus,
    Tag,
    Terminal,
    TraceEvent,
    Usage,
    jsonable,
)
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runspan.tracefile.events import Meta

__all__ = ["INTERRUPTED", "ClosedTrace", "close_trace"]

#: The reason of an end that a trace's own process did not write.
INTERRUPTED = "interrupted"
#: What tells the trace's own time, on its monotonic clock.
_ON_THE_CLOCK = (Op, Memory, DeviceMemory, Usage, Terminal)


class ClosedTrace(msgspec.Struct, frozen=True):
    """What was done to a trace.

    Attributes:
        path: any file of it.
        spans_ended: spans that were open.
        torn_bytes: bytes of a last line that was cut off, and is gone.
        last_seen_unix_nano: wall time of its last whole line.
    """

    path: str
    spans_ended: int
    torn_bytes: int
    last_seen_unix_nano: int


def close_trace(path: Path, *, needs_terminal: bool, max_metric_keys: int) -> ClosedTrace | None:
    """End the spans of a trace that are open, and the trace itself; None when there is nothing to end or to cut off.

    Nobody else may write to it meanwhile. Open spans end, innermost first, at the time of the last thing that the trace
    tells of, with the status ``error`` and the reason ``interrupted``.

    Args:
        path: any file of the trace.
        needs_terminal: whether it must have a terminal event, which a child process's trace need not.
        max_metric_keys: last values that the ``run`` span gets as attributes, at most.

    Raises:
        TraceFormatError: it cannot be read.
        ConfigError: it cannot be written.
    """
    scan = _scan(path, max_metric_keys)
    if scan.is_finished or not (needs_terminal or scan.open_count or scan.is_torn):
        return None
    try:
        cut = cut_tail(path)
        if cut is not None and cut.cut_bytes:
            scan = _scan(path, max_metric_keys)  # a line that only NUL bytes stood behind counts from now on
        torn_bytes = 0 if cut is None else cut.torn_bytes
        told: list[TraceEvent] = [Dropped("file", "torn", 1)] if torn_bytes else []
        ends = list(scan.ends())
        if not scan.is_finished:
            last = Terminal("failed", scan.elapsed_ns, RunStatus.FAILED, INTERRUPTED)
            appended = [*told, *ends, *([last] if needs_terminal else [])]
            if appended:
                append_events(path, scan.meta, appended)
            elif cut is None or not cut.cut_bytes:
                return None  # a compressed part's torn end stays
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror or error}): it must be possible to write to the run directory"
        ) from error
    return ClosedTrace(str(path), len(ends), torn_bytes, scan.last_seen_unix_nano)


def _scan(path: Path, max_metric_keys: int) -> _Scan:
    with read(path, lenient=True) as reader:
        scan = _Scan(reader.meta, max_metric_keys)
        for event in reader:
            scan.take(event)
        scan.last_seen_unix_nano, scan.is_finished = reader.last_seen_unix_nano, reader.terminal is not None
        scan.is_torn = bool(reader.torn)
    return scan


class _Scan:
    """What a trace leaves open, and when it was last heard of.

    Args:
        meta: its meta event.
        max_metric_keys: last values that are kept, at most.

    Attributes:
        elapsed_ns: the latest time that it tells of, from its start on.
        open_count: spans that are open.
        last_seen_unix_nano: the time of its last line, once it was read.
        is_finished: whether that is a terminal event.
        is_torn: whether a last line is cut off.
    """

    def __init__(self, meta: Meta, max_metric_keys: int) -> None:
        self.elapsed_ns = self.open_count = self.last_seen_unix_nano = 0
        self.is_finished = self.is_torn = False
        self.meta = meta
        self._max_metric_keys = max_metric_keys
        #: Oldest first; an id that is open more than once stands for as many spans.
        self._open: dict[str, list[SpanStart]] = {}
        #: What the wall clock shows at the trace's start, as far as it has not been set since.
        self._wall_start_unix_nano = meta.time_unix_nano
        self._told: dict[str, Any] = {}
        self._last_values: dict[str, float] = {}

    def take(self, event: TraceEvent) -> None:
        """Take the next event."""
        if isinstance(event, SpanStart):
            self._open.setdefault(event.id, []).append(event)
            self.open_count += 1
            self._see(self._start_ns(event))
        elif isinstance(event, SpanEnd):
            start = self._pop(event.id)
            if start is not None:
                self._see(self._start_ns(start) + event.duration_ns)
        elif isinstance(event, _ON_THE_CLOCK):
            self._see(event.timestamp_ns)
            if isinstance(event, Usage):
                self._wall_start_unix_nano = event.time_unix_nano - event.timestamp_ns
        else:
            self._note(event)
            time_unix_nano = event_time(event, self.meta)
            if time_unix_nano is not None:
                self._see(time_unix_nano - self._wall_start_unix_nano)

    def ends(self) -> Iterator[SpanEnd]:
        """Yield the ends of what is open, innermost first."""
        for starts in reversed(list(self._open.values())):
            for start in reversed(starts):
                yield SpanEnd(
                    id=start.id,
                    duration_ns=max(0, self.elapsed_ns - self._start_ns(start)),
                    status=SpanStatus("error", INTERRUPTED),
                    attributes=self._run_attributes() if start.id == self.meta.run_span_id else None,
                )

    def _run_attributes(self) -> dict[str, Any]:
        """Return what the ``run`` span is told at its end."""
        values = {f"{Attr.METRIC_PREFIX}{key}": value for key, value in self._last_values.items()}
        told = {**self._told, **values, Attr.RUN_STATUS: str(RunStatus.FAILED), Attr.RUN_END_REASON: INTERRUPTED}
        return {key: jsonable(value) for key, value in told.items()}

    def _start_ns(self, start: SpanStart) -> int:
        """Return when a span started; before the trace did where an earlier attempt began it."""
        before_ns = start.time_unix_nano - self.meta.time_unix_nano
        return before_ns if before_ns < 0 and start.start_ns == 0 else start.start_ns

    def _pop(self, span_id: str) -> SpanStart | None:
        starts = self._open.get(span_id)
        if starts is None:
            return None
        start = starts.pop()
        self.open_count -= 1
        if not starts:
            del self._open[span_id]
        return start

    def _note(self, event: TraceEvent) -> None:
        """Keep what the ``run`` span says at its end, and whether the wall clock was set."""
        match event:
            case Param():
                self._told[f"{Attr.PARAM_PREFIX}{event.key}"] = event.value
            case Tag():
                self._told[f"{Attr.TAG_PREFIX}{event.key}"] = event.value
            case Metric():
                self._value(event.key, event.value)
            case Metrics():
                for key, value in event.values.items():
                    self._value(key, value)
            case Event(name="clock_skew", attributes={"step_ns": int(step_ns)}):
                self._wall_start_unix_nano += step_ns
            case _:
                pass

    def _value(self, key: str, value: float) -> None:
        if key in self._last_values or len(self._last_values) < self._max_metric_keys:
            self._last_values[key] = value

    def _see(self, elapsed_ns: int) -> None:
        self.elapsed_ns = max(self.elapsed_ns, elapsed_ns)
