"""Metrics read back from a trace file: the requests that a live export would have sent, at the file's own times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource

from runspan import semconv
from runspan.records import RunStatus
from runspan.semconv import SpanName
from runspan.telemetry._readings import as_float
from runspan.telemetry.collector import MetricsCollector
from runspan.telemetry.instruments import RunMetrics
from runspan.tracefile._state import event_time
from runspan.tracefile.events import (
    Count,
    Dropped,
    Event,
    Metric,
    Metrics,
    Observe,
    SpanEnd,
    SpanStart,
    Step,
    Terminal,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    from runspan.tracefile.events import Meta, TraceEvent

__all__ = ["RecordedMetrics"]

_NS_A_SECOND = 1_000_000_000
_NS_A_MILLISECOND = 1_000_000


class RecordedMetrics:
    """Feeds a rank's trace into a collector whose clock is the file's.

    What a live export measures itself, of process, machine and device, is no part of it.

    Args:
        meta: the trace's meta.
        interval_s: the file's time between two collections.
        max_metric_keys: user keys that are exported.
        since_unix_nano: nothing is collected for a time before this one; counters count from the start all the same.

    Attributes:
        too_old: values, steps and counts that were recorded before that time.
    """

    def __init__(self, meta: Meta, *, interval_s: float, max_metric_keys: int, since_unix_nano: int = 0) -> None:
        self.too_old = 0
        self._meta = meta
        self._interval_ns = int(interval_s * _NS_A_SECOND)
        self._since_unix_nano = since_unix_nano
        self._now_unix_nano = meta.time_unix_nano
        self._collected_unix_nano = 0
        self._next_unix_nano = meta.time_unix_nano + self._interval_ns
        self._nonfinite: dict[str, int] = {}
        self._latest: dict[str, float] = {}
        self._dropped: dict[tuple[str, str], int] = {}
        self._checkpoints: set[str] = set()
        self._state = RunMetrics(
            latest=self._latest,
            nonfinite=self._nonfinite,
            # A later attempt's file does not tell when the run began.
            start_time_unix_nano=None if meta.process.attempt else meta.time_unix_nano,
            heartbeat_time_unix_nano=meta.time_unix_nano,
            status=RunStatus.RUNNING,
            dropped=lambda: self._dropped,
        )
        self._collector = MetricsCollector(
            Resource(meta.resource, semconv.SCHEMA_URL),
            self._state,
            max_metric_keys=max_metric_keys,
            local_rank=meta.process.local_rank,
            clock=self,
        )

    def time_ns(self) -> int:
        """Return the file's present, which never steps back."""
        return self._now_unix_nano

    def monotonic_ns(self) -> int:
        """Return the same."""
        return self._now_unix_nano

    def requests(self, events: Iterable[TraceEvent]) -> Iterator[ExportMetricsServiceRequest]:
        """Yield the requests, in the order of their times; the last one ends the series of a run that has ended.

        Args:
            events: the trace's; other kinds than those that count are passed over.
        """
        terminal: Terminal | None = None
        for event in events:
            time_unix_nano = event_time(event, self._meta)
            if isinstance(event, Terminal):
                terminal = event
            elif time_unix_nano is not None and time_unix_nano >= self._next_unix_nano:
                yield from self._collect(max(self._next_unix_nano, self._now_unix_nano))
                self._next_unix_nano = max(self._next_unix_nano, time_unix_nano) + self._interval_ns
            self._now_unix_nano = max(self._now_unix_nano, time_unix_nano or 0)
            self._take(event)
        if terminal is not None:
            self._state.status = terminal.final_status
        # A metrics store takes one point of a series a millisecond.
        last_unix_nano = max(self._now_unix_nano, self._collected_unix_nano + _NS_A_MILLISECOND)
        yield from self._collect(last_unix_nano, final=terminal is not None)

    def _collect(self, time_unix_nano: int, *, final: bool = False) -> Iterator[ExportMetricsServiceRequest]:
        self._now_unix_nano = self._collected_unix_nano = time_unix_nano
        if time_unix_nano >= self._since_unix_nano:
            yield self._collector.collect(final=final)
        else:
            self._collector.fold()  # keeps the buffers small

    def _take(self, event: TraceEvent) -> None:
        match event:
            case Metric():
                self._value(event.key, event.value)
            case Metrics():
                for key, value in event.values.items():
                    self._value(key, value)
            case Step():
                self._step(event)
            case Count() | Observe():
                self._amount(event)
            case Usage():
                self._state.heartbeat_time_unix_nano = event.time_unix_nano
            case Event(name="alert") | Dropped():
                self._incident(event)
            case SpanStart() | SpanEnd():
                self._checkpoint(event)
            case _:
                pass

    def _amount(self, event: Count | Observe) -> None:
        self._tally()
        state, unit = self._state, event.unit or ""
        if isinstance(event, Observe):
            state.observations.append((event.key, unit, event.value))
        else:
            state.counts[event.key, unit] = state.counts.get((event.key, unit), 0) + event.value

    def _incident(self, event: Event | Dropped) -> None:
        alerts = self._state.alerts
        if isinstance(event, Dropped):
            lost = event.signal, event.reason
            self._dropped[lost] = self._dropped.get(lost, 0) + event.count
        else:
            alert = event.level, str((event.attributes or {}).get("rule", ""))
            alerts[alert] = alerts.get(alert, 0) + 1

    def _checkpoint(self, event: SpanStart | SpanEnd) -> None:
        if isinstance(event, SpanStart):
            if event.name == SpanName.CHECKPOINT:
                self._checkpoints.add(event.id)
        elif event.id in self._checkpoints:
            self._checkpoints.discard(event.id)
            if event.status is None:
                self._state.checkpoint_durations.append(event.duration_ns)
                self._state.checkpoint_last_time_unix_nano = self._now_unix_nano

    def _value(self, key: str, value: float) -> None:
        self._tally()
        self._latest[key] = value
        if not math.isfinite(as_float(value)):
            self._nonfinite[key] = self._nonfinite.get(key, 0) + 1

    def _step(self, event: Step) -> None:
        self._tally()
        state = self._state
        state.steps += 1
        state.samples += event.samples or 0
        state.tokens += event.tokens or 0
        state.last_step, state.last_step_time_unix_nano = event.step, event.time_unix_nano
        state.ended_steps.append(event)  # as an uncaptured one: which of them were captured stands in other files

    def _tally(self) -> None:
        self.too_old += self._now_unix_nano < self._since_unix_nano
