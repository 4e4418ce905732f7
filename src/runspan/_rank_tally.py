"""What a display shows of one rank, added up while its trace files are read."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import TraceFormatError
from runspan.frames import SHOWN_POINTS, FrameAlert, FrameMetric, FramePoint, FrameRank
from runspan.records import AlertLevel, MetricPoint, ResourceSnapshot, RunStatus, Trend
from runspan.tracefile._state import state_of
from runspan.tracefile._tail import TailPosition, TraceTail
from runspan.tracefile.events import Event, Metric, Metrics, Step, TraceEvent, Usage
from runspan.tracefile.steptimes import StepTimes, own_work_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runspan._clock import Clock
    from runspan.tracefile.layout import TraceName

__all__ = ["MAX_ALERTS", "RankTally", "SeriesTally", "TakenPoints", "TraceTally", "metric_points"]

#: How many of the newest alerts a frame has at most.
MAX_ALERTS = 20
#: How many of the newest steps durations and rate are taken from.
_STEP_WINDOW = 256
_RATE_WINDOW = 64


class TakenPoints(msgspec.Struct, frozen=True):
    """The metric points that were read from one trace at once.

    Attributes:
        rank: whose trace.
        attempt: the rank's attempt.
        before: how far the trace was read before them.
        after: how far it was read then.
        points: in the order of the file.
    """

    rank: int
    attempt: int
    before: TailPosition
    after: TailPosition
    points: tuple[MetricPoint, ...]


class SeriesTally:
    """The newest points of one metric of a rank.

    Args:
        kept: how many.
    """

    def __init__(self, kept: int) -> None:
        self._points: deque[MetricPoint] = deque(maxlen=kept)
        self._attempt = -1
        self._count = 0

    def add(self, point: MetricPoint) -> None:
        """Add a point; the first of a later attempt supersedes what earlier ones have from its step on."""
        if point.attempt != self._attempt:
            self._attempt = point.attempt
            kept = [each for each in self._points if each.step < point.step]
            self._points = deque(kept, maxlen=self._points.maxlen)
        self._points.append(point)
        self._count += 1

    def newest(self, limit: int) -> list[MetricPoint]:
        """Return the newest points, oldest first."""
        return list(self._points)[max(0, len(self._points) - limit) :]

    def frame(self, key: str, rank: int) -> FrameMetric:
        """Return what a frame has of it."""
        points = tuple(FramePoint(point.step, point.time_unix_nano, point.value) for point in self.newest(SHOWN_POINTS))
        return FrameMetric(key, rank, self._count, points, Trend.of([point.value for point in points]))


class RankTally:
    """What is known of one rank, over its attempts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.series: dict[str, SeriesTally] = {}
        self.alerts: deque[FrameAlert] = deque(maxlen=MAX_ALERTS)
        self.usage = ResourceSnapshot()
        #: By attempt, oldest first.
        self.traces: list[TraceTally] = []

    @property
    def newest(self) -> TraceTally:
        """The trace of the newest attempt."""
        return self.traces[-1]

    def frame(self, clock: Clock) -> FrameRank:
        """Return what a frame has of it."""
        newest, steps = self.newest, self.newest.step_times()
        meta, terminal = newest.tail.meta, newest.tail.terminal
        status, last_seen = str(RunStatus.PENDING), None
        if terminal is not None:
            status = str(terminal.final_status)
        if meta is not None:
            last_seen = newest.last_seen_unix_nano or meta.time_unix_nano
            if terminal is not None:
                last_seen = max(last_seen, meta.time_unix_nano + terminal.timestamp_ns)
            else:
                status = str(state_of(meta, last_seen, None, newest.path, clock).status)
        return FrameRank(
            rank=self.number,
            status=status,
            reason=None if terminal is None else terminal.reason,
            attempt=newest.attempt,
            host=None if meta is None else meta.process.host,
            last_seen_unix_nano=last_seen,
            steps=newest.step_count,
            last_step=newest.last_step,
            loop_done=newest.loop_done,
            loop_total=newest.loop_total,
            step_rate_hz=newest.rate_hz(),
            step_ns=steps.median_ns,
            own_step_ns=steps.own_median_ns,
            usage=self.usage,
        )


class TraceTally:
    """Adds up one trace.

    Args:
        rank: whose it is.
        name: the name of its first file.
        path: that file's path.
    """

    def __init__(self, rank: RankTally, name: TraceName, path: Path) -> None:
        self.path = path
        self.attempt = name.attempt
        self._name = msgspec.structs.replace(name, part=0)
        self.tail = TraceTail(path.parent, self._name)
        self.problem: str | None = None
        self.last_seen_unix_nano = 0
        self.step_count = 0
        self.last_step: int | None = None
        self.loop_done = 0
        self.loop_total: int | None = None
        self._rank = rank
        self._durations_ns: deque[int] = deque(maxlen=_STEP_WINDOW)
        self._own_ns: deque[int] = deque(maxlen=_STEP_WINDOW)
        self._ended_unix_nano: deque[int] = deque(maxlen=_RATE_WINDOW)

    def look(self, new_series: Callable[[], SeriesTally | None]) -> Iterator[TakenPoints]:
        """Read what is new, and yield its metric points."""
        try:
            before = self.tail.position
            for events in self.tail.batches():
                points = [point for event in events for point in self._take(event)]
                after = self.tail.position
                for point in points:
                    series = self._rank.series.get(point.key)
                    if series is None:
                        series = new_series()
                        if series is None:
                            continue
                        self._rank.series[point.key] = series
                    series.add(point)
                yield TakenPoints(self._rank.number, self.attempt, before, after, tuple(points))
                before = after
            self.problem = None
        except TraceFormatError as error:
            self.problem = str(error) if error.path is not None else f"{self.path}: {error}"
            self.tail.close()
            self.tail = TraceTail(self.path.parent, self._name, self.tail.position)

    def step_times(self) -> StepTimes:
        """Return how long the newest steps took."""
        return StepTimes(
            len(self._durations_ns),
            median(self._durations_ns) if self._durations_ns else None,
            median(self._own_ns) if self._own_ns else None,
        )

    def rate_hz(self) -> float | None:
        """Return how many of the newest steps there were a second."""
        if len(self._ended_unix_nano) < 2:  # noqa: PLR2004 - a rate is between two
            return None
        elapsed_ns = self._ended_unix_nano[-1] - self._ended_unix_nano[0]
        return (len(self._ended_unix_nano) - 1) * 1e9 / elapsed_ns if elapsed_ns > 0 else None

    def _take(self, event: TraceEvent) -> Iterator[MetricPoint]:
        match event:
            case Metric() | Metrics():
                self._see(event.time_unix_nano)
                yield from metric_points(event, self._rank.number, self.attempt)
            case Step():
                self._see(event.time_unix_nano)
                self._take_step(event)
            case Usage():
                self._see(event.time_unix_nano)
                self._rank.usage = event.snapshot
            case Event():
                self._see(event.time_unix_nano)
                self._take_event(event)
            case _:
                pass

    def _see(self, time_unix_nano: int) -> None:
        self.last_seen_unix_nano = max(self.last_seen_unix_nano, time_unix_nano)

    def _take_step(self, event: Step) -> None:
        self.step_count += 1
        self.last_step = event.step
        if event.total is None:
            self.loop_done, self.loop_total = 0, None
        else:
            is_new_loop = event.total != self.loop_total or self.loop_done >= event.total
            self.loop_done = 1 if is_new_loop else self.loop_done + 1
            self.loop_total = event.total
        self._durations_ns.append(max(0, event.duration_ns))
        self._own_ns.append(own_work_ns(event))
        self._ended_unix_nano.append(event.time_unix_nano)

    def _take_event(self, event: Event) -> None:
        if event.name != "alert":
            return
        attributes = event.attributes or {}
        level = AlertLevel(event.level) if event.level in set(AlertLevel) else AlertLevel.INFO
        self._rank.alerts.append(
            FrameAlert(
                rank=self._rank.number,
                time_unix_nano=event.time_unix_nano,
                level=level,
                title=event.message,
                text=str(attributes.get("text", "")),
                rule=str(attributes.get("rule", "user")),
            )
        )


def metric_points(event: TraceEvent, rank: int, attempt: int) -> Iterator[MetricPoint]:
    """Yield the points of an event; one that is no metric's has none.

    Args:
        event: the event.
        rank: whose it is.
        attempt: the rank's attempt.
    """
    if isinstance(event, Metric):
        yield MetricPoint(event.key, event.step, float(event.value), event.time_unix_nano, rank, attempt)
    elif isinstance(event, Metrics):
        for key, value in event.values.items():
            step = event.step_of(key)
            if step is not None:
                yield MetricPoint(key, step, float(value), event.time_unix_nano, rank, attempt)
