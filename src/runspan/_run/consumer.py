"""The consuming side of metrics: a background thread that keeps statistics, tells subscribers and fills storage.

Nothing here runs on the training's threads but :meth:`PointConsumer.refresh`, which a reader of the statistics calls.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from runspan.errors import InvalidStateError
from runspan.records import MetricPoint, MetricSnapshot, MetricSummary

if TYPE_CHECKING:
    from collections.abc import Callable

    from runspan._run.notices import Notices
    from runspan.storage.base import ExperimentStorage
    from runspan.tracefile.events import Metric

__all__ = ["PointConsumer", "SeriesStatistics"]

#: How long a point may wait before it is folded and stored.
_PERIOD_S = 0.25
#: Points folded at once; bounds how long the statistics' lock is held.
_BATCH = 8_192
#: Newest points of each key kept for displays.
_RECENT = 1_024
#: Points that may wait for a storage that fails before the oldest are given up.
_BACKLOG_BOUND = 262_144
#: Other writes that may wait for it.
_TASK_BOUND = 1_024
#: How often a write is tried that a storage refuses while it answers other questions.
_MAX_TRIES = 3


class _Outcome(Enum):
    """How a write to the storage went."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class SeriesStatistics:
    """The running statistics of one key."""

    __slots__ = ("count", "last", "max", "min", "nonfinite", "recent")

    def __init__(self) -> None:
        self.last = math.nan
        self.min: float | None = None
        self.max: float | None = None
        self.count = 0
        self.nonfinite = 0
        self.recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def add(self, points: list[tuple[int, float]]) -> None:
        """Fold (time_unix_nano, value) pairs in."""
        values = [value for _, value in points]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            low, high = min(finite), max(finite)
            self.min = low if self.min is None or low < self.min else self.min
            self.max = high if self.max is None or high > self.max else self.max
        self.last = values[-1]
        self.count += len(values)
        self.nonfinite += len(values) - len(finite)
        self.recent.extend(points)

    def summary(self) -> MetricSummary:
        """Return last, min, max and count."""
        return MetricSummary(self.last, self.min, self.max, self.count)


class _Task:
    """A write that is no point, and how often it has failed."""

    __slots__ = ("failures", "write")

    def __init__(self, write: Callable[[ExperimentStorage], None]) -> None:
        self.write = write
        self.failures = 0


class PointConsumer:
    """Folds queued points into statistics, publishes them, and writes them to storage in batches.

    Args:
        queue: where the recording side puts points.
        run_id: the run.
        rank: this process's rank.
        attempt: its attempt.
        storage: where batches go; None: nowhere.
        publish: called with each batch after the write.
        notices: told what storage lost.
    """

    def __init__(
        self,
        queue: deque[Metric],
        *,
        run_id: str,
        rank: int,
        attempt: int,
        storage: ExperimentStorage | None,
        publish: Callable[[list[MetricPoint]], None],
        notices: Notices,
    ) -> None:
        self._queue = queue
        self._run_id = run_id
        self._rank = rank
        self._attempt = attempt
        self._storage = storage
        self._publish = publish
        self._notices = notices
        self._statistics: dict[str, SeriesStatistics] = {}
        self._statistics_lock = threading.Lock()
        self._backlog: list[MetricPoint] = []
        self._tasks: SimpleQueue[Callable[[ExperimentStorage], None] | None] = SimpleQueue()
        self._waiting_tasks: deque[_Task] = deque()
        self._progress = 0
        #: Whether the last write failed.
        self.is_failing = False
        self._is_closed = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runspan-recorder", daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[ExperimentStorage], None]) -> None:
        """Do something with the storage on the background thread; nothing without a storage, or after the end."""
        if self._storage is not None and not self._is_closed:
            self._tasks.put(task)

    def refresh(self) -> None:
        """Fold what is queued, so that the statistics hold every point logged before the call."""
        while self._fold():
            pass

    def summary(self) -> dict[str, MetricSummary]:
        """Return last, min, max and count of every key."""
        self.refresh()
        with self._statistics_lock:
            return {key: statistics.summary() for key, statistics in self._statistics.items()}

    def latest(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return the newest value of each key, and how many non-finite values each has had."""
        self.refresh()
        with self._statistics_lock:
            statistics = self._statistics.items()
            return {key: item.last for key, item in statistics}, {key: item.nonfinite for key, item in statistics}

    def tallies(self) -> dict[str, tuple[int, int, float]]:
        """Return how many points each key has, how many of them are not finite, and the newest value."""
        self.refresh()
        with self._statistics_lock:
            return {key: (item.count, item.nonfinite, item.last) for key, item in self._statistics.items()}

    def recent(self, key: str, limit: int) -> list[float]:
        """Return the newest values of a key (at most 1,024) that have been folded, oldest first."""
        with self._statistics_lock:
            statistics = self._statistics.get(key)
            return [] if statistics is None else [value for _, value in list(statistics.recent)[-limit:]]

    def snapshots(self, limit: int) -> dict[str, MetricSnapshot]:
        """Return the last ``limit`` (at most 1,024) points of every key."""
        self.refresh()
        with self._statistics_lock:
            recent = {key: list(statistics.recent) for key, statistics in self._statistics.items()}
        return {
            key: MetricSnapshot.from_points(key, points[-limit:] if limit else []) for key, points in recent.items()
        }

    def close(self) -> None:
        """Store what waits and end the thread; does not wait."""
        self._is_closed = True
        self._tasks.put(None)

    def finish(self, patience_s: float) -> bool:
        """Close, and wait until everything is stored; give up after ``patience_s`` seconds without progress.

        Returns:
            Whether everything was stored.
        """
        self.close()
        progress = -1
        while self._thread.is_alive() and progress != self._progress:
            progress = self._progress
            self._done.wait(patience_s)
        self.refresh()
        if self._done.is_set():
            self._store()  # what another thread was logging at the moment of the end
        return self._done.is_set() and not self._backlog and not self._waiting_tasks

    def _run(self) -> None:
        last = False
        while not last:
            try:
                task = self._tasks.get(timeout=_PERIOD_S)
                if task is None:
                    last = True
                elif len(self._waiting_tasks) < _TASK_BOUND:
                    self._waiting_tasks.append(_Task(task))
                else:
                    self._notices.lose("storage", "unavailable", 1)
            except Empty:
                pass
            self.refresh()
            self._store()
        for _ in range(_MAX_TRIES - 1):
            if self._backlog or self._waiting_tasks:
                self._store()
        self._done.set()

    def _fold(self) -> bool:
        """Take one batch from the queue into statistics and backlog; return whether there was one."""
        with self._statistics_lock:
            queue = self._queue
            batch = [queue.popleft() for _ in range(min(len(queue), _BATCH))]
            if not batch:
                return False
            series: dict[str, list[tuple[int, float]]] = {}
            points = []
            rank, attempt = self._rank, self._attempt
            for item in batch:
                value = float(item.value)
                series.setdefault(item.key, []).append((item.time_unix_nano, value))
                points.append(MetricPoint(item.key, item.step, value, item.time_unix_nano, rank, attempt))
            for key, pairs in series.items():
                statistics = self._statistics.get(key)
                if statistics is None:
                    statistics = self._statistics[key] = SeriesStatistics()
                statistics.add(pairs)
            self._backlog.extend(points)
            return True

    def _store(self) -> None:
        """Write the backlog, then the other tasks in order; keep what fails for the next time."""
        with self._statistics_lock:
            points, self._backlog = self._backlog, []
        if points:
            outcome = self._write(lambda storage: storage.log_metrics(self._run_id, points), len(points))
            if outcome is _Outcome.DONE:
                self._publish(points)
            elif outcome is _Outcome.FAILED:
                self._keep(points)
        while self._waiting_tasks and self._is_through(self._waiting_tasks[0]):
            self._waiting_tasks.popleft()

    def _is_through(self, task: _Task) -> bool:
        """Try a task; return whether it succeeded or never will, so that it does not stand in the way of others."""
        if self._write(task.write, 1) is not _Outcome.FAILED:
            return True
        task.failures += 1
        if task.failures < _MAX_TRIES or not self._answers():
            return False
        self._notices.lose("storage", "refused", 1)
        return True

    def _answers(self) -> bool:
        """Whether the storage can be reached at all."""
        try:
            if self._storage is not None:
                self._storage.get_run_status(self._run_id)
        except Exception:  # noqa: BLE001 - a storage of the user's may raise anything
            return False
        return True

    def _write(self, task: Callable[[ExperimentStorage], None], size: int) -> _Outcome:
        """Do one write of so many items; what the storage refuses is counted, what fails is told of."""
        if self._storage is None:
            return _Outcome.DONE
        outcome = _Outcome.DONE
        try:
            task(self._storage)
        except (InvalidStateError, LookupError) as error:  # storage works, and will say the same again
            self._notices.warn_once("storage", f"storage refused: {error}")
            self._notices.lose("storage", "refused", size)
            outcome = _Outcome.REFUSED
        except Exception as error:  # noqa: BLE001 - a storage of the user's may raise anything
            self._notices.warn_once(
                "storage",
                f"storage failed ({error}); recording goes on in the trace file, `runspan import` completes storage",
            )
            self.is_failing = True
            return _Outcome.FAILED
        self.is_failing = False
        self._progress += 1
        return outcome

    def _keep(self, points: list[MetricPoint]) -> None:
        with self._statistics_lock:
            self._backlog[:0] = points
            excess = len(self._backlog) - _BACKLOG_BOUND
            if excess > 0:
                del self._backlog[:excess]
        if excess > 0:
            self._notices.lose("storage", "unavailable", excess)

    def unstored(self) -> int:
        """Return how many points have not been stored."""
        with self._statistics_lock:
            return len(self._backlog)
