"""The run's own thread: heartbeats with resource usage, clock steps, fsync, and what a signal handler hands over."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from runspan.records import ResourceSnapshot
from runspan.tracefile.events import Event, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from runspan._clock import Clock
    from runspan.telemetry.processor import TraceStart
    from runspan.tracefile.writer import TraceWriter

__all__ = ["ClockWatch", "Heartbeat"]

#: Wall time may drift from the monotonic clock by so much between two looks before it counts as a step.
_CLOCK_STEP_NS = 1_000_000_000


class ClockWatch:
    """Writes an event when the wall clock has stepped since the last look."""

    def __init__(self, writer: TraceWriter, clock: Clock, start: TraceStart) -> None:
        self._writer = writer
        self._clock = clock
        self._offset_ns = start.time_unix_nano - start.monotonic_ns

    def look(self) -> None:
        """Compare the two clocks."""
        time_unix_nano = self._clock.time_ns()
        offset_ns = time_unix_nano - self._clock.monotonic_ns()
        step_ns = offset_ns - self._offset_ns
        if abs(step_ns) < _CLOCK_STEP_NS:
            return
        self._offset_ns = offset_ns
        self._writer.write(
            Event(
                name="clock_skew",
                level="warning",
                message=f"the wall clock stepped by {step_ns / 1e9:+.3f} s",
                attributes={"step_ns": step_ns},
                time_unix_nano=time_unix_nano,
            )
        )


class Heartbeat:
    """A daemon thread that beats every ``interval_s`` seconds, and does one job at a time in between.

    Args:
        writer: the trace file.
        clock: the clocks.
        start: the start of the trace.
        interval_s: seconds between two usage lines.
        fsync_interval_s: seconds between two fsyncs; 0: none in between.
        sample: takes a resource sample.
        beaten: called with the wall time of each beat, ns.
    """

    def __init__(
        self,
        writer: TraceWriter,
        clock: Clock,
        start: TraceStart,
        *,
        interval_s: float,
        fsync_interval_s: float,
        sample: Callable[[], ResourceSnapshot],
        beaten: Callable[[int], None],
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._start = start
        self._interval_ns = int(interval_s * 1e9)
        self._fsync_interval_ns = int(fsync_interval_s * 1e9)
        self._sample = sample
        self._beaten = beaten
        # A signal handler may put a job at any moment: SimpleQueue.put is reentrant.
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="runspan-heartbeat", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Have a job done on the thread, without waiting for it."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End the thread after its present work; does not wait."""
        self._jobs.put(None)

    def _run(self) -> None:
        next_beat = self._clock.monotonic_ns()
        next_fsync = next_beat + self._fsync_interval_ns
        while True:
            now = self._clock.monotonic_ns()
            if now >= next_beat:
                self._beat()
                next_beat = now + self._interval_ns
            if self._fsync_interval_ns and now >= next_fsync:
                self._writer.sync()
                next_fsync = now + self._fsync_interval_ns
            next_look = min(next_beat, next_fsync) if self._fsync_interval_ns else next_beat
            try:
                job = self._jobs.get(timeout=max(0.0, (next_look - self._clock.monotonic_ns()) / 1e9))
            except Empty:
                continue
            if job is None:
                return
            job()

    def _beat(self) -> None:
        self._writer.reclaim()
        try:
            usage = self._sample()
        except Exception:  # noqa: BLE001 - the heart must beat, whatever a driver has thrown
            usage = ResourceSnapshot()
        time_unix_nano = self._clock.time_ns()
        timestamp_ns = self._clock.monotonic_ns() - self._start.monotonic_ns
        fields = {name: getattr(usage, name) for name in usage.__struct_fields__}
        self._writer.write(Usage(**fields, timestamp_ns=timestamp_ns, time_unix_nano=time_unix_nano))
        self._beaten(time_unix_nano)
