"""What a display shows of a run, live or stored, and how it is told of new points."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from runspan.errors import ConfigError, InvalidStateError, StorageError
from runspan.records import MetricPoint, MetricSnapshot, ResourceSnapshot, RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runspan.storage.base import ExperimentStorage

__all__ = ["DashboardSource", "PointPoller", "StorageDashboard", "Subscription", "SubscriptionHub"]

_LOGGER = logging.getLogger("runspan")
_MAX_PENDING = 10_000
#: How many of each key's newest points a poll looks at first; doubled until it meets one that is known.
_FIRST_READ = 16


@runtime_checkable
class DashboardSource(Protocol):
    """What a display reads; every method is thread-safe and returns the caller's own copies."""

    def status(self) -> RunStatus:
        """Return where the run stands."""

    def recent_metrics(self, limit: int) -> dict[str, MetricSnapshot]:
        """Return the last ``limit`` points of each key, keys in first-logged order; 0: every key without points.

        Raises:
            ValueError: the limit is negative.
        """

    def subscribe(self, callback: Callable[[MetricPoint], object]) -> Subscription:
        """Call ``callback`` with each point written from now on, in order, on a thread of its own."""

    def resource_usage(self) -> ResourceSnapshot:
        """Return what machine and device are busy with; what is unmeasured is None."""


class Subscription:
    """One subscriber: a bounded queue, and a daemon thread that takes points from it to the callback.

    A callback that is too slow loses the newest points, which are counted. One that raises is logged the first time and
    goes on to be called.

    Args:
        callback: called with one point at a time.
        max_pending: points that may wait for the callback.
    """

    def __init__(self, callback: Callable[[MetricPoint], object], *, max_pending: int = _MAX_PENDING) -> None:
        self._callback = callback
        self._max_pending = max_pending
        # A SimpleQueue's put may be interrupted by a signal handler that puts too; a Queue's would deadlock.
        self._pending: queue.SimpleQueue[MetricPoint | None] = queue.SimpleQueue()
        self._dropped = 0
        self._dropped_lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._deliver, name="runspan-subscription", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise InvalidStateError(f"cannot subscribe: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """How many points the callback missed because too many were waiting for it."""
        return self._dropped

    @property
    def is_closed(self) -> bool:
        """Whether no further call begins."""
        return self._closed.is_set()

    def close(self) -> None:
        """Drop what is waiting and begin no further call; may be called twice, and from the callback itself."""
        self._closed.set()
        self._pending.put(None)

    def lose(self, count: int) -> None:
        """Count points that were lost on the way here."""
        with self._dropped_lock:
            self._dropped += count

    def drain(self, deadline_monotonic_s: float) -> None:
        """Close once the callback has had what is waiting, or at a deadline of ``time.monotonic()``."""
        self._pending.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, deadline_monotonic_s - time.monotonic()))
        self.close()

    def offer(self, points: Sequence[MetricPoint]) -> None:
        """Queue points for the callback without waiting; those that find the queue full are counted."""
        if self._closed.is_set():
            return
        room = max(0, self._max_pending - self._pending.qsize())
        for point in points[:room]:
            self._pending.put(point)
        if len(points) > room:
            self.lose(len(points) - room)

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait for the subscription to be closed and return whether it is."""
        return self._closed.wait(timeout_s)

    def _deliver(self) -> None:
        has_failed = False
        while (point := self._pending.get()) is not None and not self._closed.is_set():
            try:
                self._callback(point)
            except Exception:
                if not has_failed:
                    _LOGGER.exception("a subscriber of metrics raised; it goes on, and is not logged again")
                has_failed = True
        self._closed.set()


class SubscriptionHub:
    """Hands the points of one run to all its subscribers; those of a forked child reach nobody."""

    def __init__(self, *, max_pending: int = _MAX_PENDING) -> None:
        self._max_pending = max_pending
        self._lock = threading.Lock()
        self._pid = os.getpid()
        # Replaced as a whole, so that publishing takes no lock.
        self._subscriptions: tuple[Subscription, ...] = ()

    def subscribe(self, callback: Callable[[MetricPoint], object]) -> Subscription:
        """Begin to call ``callback`` with each point published from now on.

        Raises:
            ConfigError: ``callback`` cannot be called.
            InvalidStateError: no thread can be started, since this is a forked child or the interpreter is ending.
        """
        if os.getpid() != self._pid:
            raise InvalidStateError("cannot subscribe in a forked child: its points are in its own file")
        if not callable(callback):
            raise ConfigError(f"callback={callback!r} cannot be used: it takes a function of a MetricPoint")
        subscription = Subscription(callback, max_pending=self._max_pending)
        with self._lock:
            self._subscriptions = (*(each for each in self._subscriptions if not each.is_closed), subscription)
        return subscription

    def publish(self, points: Sequence[MetricPoint]) -> None:
        """Hand points that have been written to every subscriber, without waiting for any."""
        if self._subscriptions and os.getpid() == self._pid:
            for subscription in self._subscriptions:
                subscription.offer(points)

    def close(self, timeout_s: float = 0.0) -> None:
        """End every subscription; ``timeout_s`` bounds the wait for what is still on its way, over all of them."""
        if os.getpid() != self._pid:
            return
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            subscriptions, self._subscriptions = self._subscriptions, ()
        for subscription in subscriptions:
            subscription.drain(deadline_s)


class StorageDashboard:
    """A :class:`DashboardSource` over a run in storage, running or ended, written by this process or another.

    Args:
        storage: where the run is.
        run_id: the run.
        rank: whose metrics are shown.
        poll_interval_s: how often subscriptions look for new points.

    Raises:
        RunNotFoundError: storage has no such run.
        ConfigError: the rank is negative or the interval not above 0.
    """

    def __init__(self, storage: ExperimentStorage, run_id: str, rank: int = 0, *, poll_interval_s: float = 1.0) -> None:
        if rank < 0:
            raise ConfigError(f"rank={rank} cannot be used: ranks count from 0")
        if not poll_interval_s > 0:
            raise ConfigError(f"poll_interval_s={poll_interval_s} cannot be used: it takes seconds above 0")
        self._storage = storage
        self._run_id = run_id
        self._rank = rank
        self._poll_interval_s = poll_interval_s
        self.status()

    def status(self) -> RunStatus:
        """Return the run's status over all ranks."""
        return self._storage.get_run_status(self._run_id)

    def recent_metrics(self, limit: int) -> dict[str, MetricSnapshot]:
        """Return the last ``limit`` points of each key of the rank.

        Raises:
            ValueError: the limit is negative.
        """
        if limit < 0:
            raise ValueError(f"limit={limit} cannot be used: it takes a number from 0 up")
        return {
            key: MetricSnapshot.from_points(key, [(point.time_unix_nano, point.value) for point in points])
            for key, points in self._storage.recent_metrics(self._run_id, limit, rank=self._rank).items()
        }

    def subscribe(self, callback: Callable[[MetricPoint], object]) -> Subscription:
        """Call ``callback`` with each point that storage gets from now on, found by polling."""
        poller = PointPoller(self._storage, self._run_id, self._rank)
        subscription = Subscription(callback)
        threading.Thread(
            target=poller.run, args=(subscription, self._poll_interval_s), name="runspan-poll", daemon=True
        ).start()
        return subscription

    def resource_usage(self) -> ResourceSnapshot:
        """Return a snapshot with nothing in it: storage keeps no usage."""
        return ResourceSnapshot()


#: Tells a point of a key from the others; a value's text, since NaN equals nothing.
_Identity = tuple[int, int, int, str]


class PointPoller:
    """Finds the points that storage got since the last look.

    Args:
        storage: where the run is.
        run_id: the run.
        rank: whose points.
        last: the newest known point of each key; None: all that storage has at construction is known.
    """

    def __init__(
        self, storage: ExperimentStorage, run_id: str, rank: int, last: Mapping[str, MetricPoint] | None = None
    ) -> None:
        self._storage = storage
        self._run_id = run_id
        self._rank = rank
        if last is None:
            last = {key: points[-1] for key, points in self._read(1).items() if points}
        self._last = dict(last)

    @property
    def last(self) -> dict[str, MetricPoint]:
        """The newest known point of each key."""
        return dict(self._last)

    def run(self, subscription: Subscription, interval_s: float) -> None:
        """Offer new points until the subscription is closed; a storage that fails is logged once and asked again."""
        has_failed = False
        while not subscription.wait_closed(interval_s):
            try:
                points = self.new_points()
            except StorageError as error:
                if not has_failed:
                    _LOGGER.warning("cannot read new points of run %s, will go on trying: %s", self._run_id, error)
                has_failed = True
            else:
                has_failed = False
                subscription.offer(points)

    def new_points(self) -> list[MetricPoint]:
        """Return the points since the last call, by time."""
        newest = self._read(1)
        changed = {key for key, points in newest.items() if points and not _is_same(points[-1], self._last.get(key))}
        found: dict[str, list[MetricPoint]] = {}
        limit = _FIRST_READ
        while changed:
            recent = self._read(limit)
            for key in tuple(changed):
                points = recent.get(key, [])
                new = self._after_last(key, points)
                # All of them being new may mean that older ones are new too.
                if len(new) < len(points) or len(points) < limit:
                    found[key] = new
                    changed.remove(key)
            limit *= 2
        for key, new in found.items():
            if new:
                self._last[key] = new[-1]
        return sorted((point for new in found.values() for point in new), key=lambda point: point.time_unix_nano)

    def _read(self, limit: int) -> dict[str, list[MetricPoint]]:
        return self._storage.recent_metrics(self._run_id, limit, rank=self._rank)

    def _after_last(self, key: str, points: list[MetricPoint]) -> list[MetricPoint]:
        last = self._last.get(key)
        if last is None:
            return points
        for index in range(len(points) - 1, -1, -1):
            if _is_same(points[index], last):
                return points[index + 1 :]
        # A later attempt may have superseded the last known point: what it wrote is new.
        return [
            point for point in points if (point.attempt, point.time_unix_nano) > (last.attempt, last.time_unix_nano)
        ]


def _is_same(point: MetricPoint, other: MetricPoint | None) -> bool:
    return other is not None and _identity(point) == _identity(other)


def _identity(point: MetricPoint) -> _Identity:
    return point.attempt, point.step, point.time_unix_nano, repr(point.value)
