"""Hands the points of one run to all who subscribe: read once for all of them, and never waited for.

A feed looks at its run once a second while somebody subscribes. Each subscriber has a bounded queue; one that is too
slow loses the oldest points that wait, and is told how many. A cursor says how far a subscriber is; with it a
subscription goes on behind what was sent before, after a restart of the server too.
"""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from runspan.errors import RunspanError
from runspan.records import RunStatus
from runspan.rpc._convert import from_point
from runspan.rpc._pb import dashboard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from runspan.records import MetricPoint

__all__ = [
    "Batch",
    "Cursor",
    "DrainingError",
    "LostPositionError",
    "PointFeed",
    "Subscriber",
    "Taken",
    "encoded",
    "pause_s",
    "selected",
]

_LOGGER = logging.getLogger("runspan")
#: Points that may wait for one subscriber, about 2 MB; and batches, which may be empty.
_MAX_PENDING_POINTS = 10_000
_MAX_PENDING_BATCHES = 2_000
#: Points that are kept for those who come back: fewer than may wait, so that coming back loses none.
_MAX_KEPT_POINTS = 8_000
_MAX_KEPT_BATCHES = 1_500
#: Messages are cut at about so many bytes; and what a point takes beside its key, at most.
_PAGE_BYTES = 1 << 18
_POINT_BYTES = 56

#: How far each source of a run (a trace, a stored series) was read; JSON can hold it.
Cursor: TypeAlias = dict[str, Any]


class LostPositionError(RunspanError):
    """The server does not have what a resume token points at."""


class DrainingError(RunspanError):
    """The server is shutting down, and takes no more calls."""


class Batch:
    """Points that were read at once; written for the wire once for all who get them.

    Args:
        before: how far their sources were read before; empty where nobody can join here.
        after: how far they were read then.
        points: in the order of their sources.
    """

    def __init__(self, before: Cursor, after: Cursor, points: tuple[MetricPoint, ...]) -> None:
        self.before = before
        self.after = after
        self.points = points
        self._pages: dict[int | None, list[bytes]] = {}
        self._counts: dict[int | None, int] = {None: len(points)}

    def count(self, rank: int | None) -> int:
        """Return how many points there are of a rank; None: of all."""
        if rank not in self._counts:
            self._counts[rank] = len(selected(self.points, rank))
        return self._counts[rank]

    def pages(self, rank: int | None) -> list[bytes]:
        """Return the points of a rank, or of all, as messages of at most about a page."""
        if rank not in self._pages:
            self._pages[rank] = encoded(selected(self.points, rank))
        return self._pages[rank]


class Taken(msgspec.Struct, frozen=True):
    """What waited for a subscriber.

    Attributes:
        pages: the points in order, as messages.
        dropped: how many points were lost before these.
        cursor: how far they go.
        status: of the run, when these were taken.
        is_last: whether nothing more comes: the run has ended.
    """

    pages: list[bytes]
    dropped: int
    cursor: Cursor
    status: str
    is_last: bool


class Subscriber:
    """One who subscribes to a feed.

    Args:
        rank: whose points; None: those of all ranks.

    Attributes:
        rank: whose points; None: those of all ranks.
        cursor: how far the points that were taken go.
        ended: set when the subscriber has left, or the feed was closed.
    """

    def __init__(self, rank: int | None) -> None:
        self.cursor: Cursor = {}
        self.ended = threading.Event()
        self.rank = rank
        self._news = threading.Event()
        self._batches: deque[Batch] = deque()
        self._pending = 0
        self._dropped = 0

    def leave(self) -> None:
        """End the subscription; whoever waits for news wakes up."""
        self.ended.set()
        self._news.set()

    def tell(self) -> None:
        """Wake up who waits for news."""
        self._news.set()

    def wait(self, pause_s: float) -> None:
        """Wait for news, and at least so long."""
        if not self.ended.wait(pause_s):
            self._news.wait()
        self._news.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to be taken."""
        return self._pending > 0 or self._dropped > 0

    def offer(self, batch: Batch) -> None:
        """Queue a batch; called under the feed's lock, as is :meth:`take`."""
        self._batches.append(batch)
        self._pending += batch.count(self.rank)
        while self._pending > _MAX_PENDING_POINTS or len(self._batches) > _MAX_PENDING_BATCHES:
            oldest = self._batches.popleft()
            self._pending -= oldest.count(self.rank)
            self._dropped += oldest.count(self.rank)
            self.cursor.update(oldest.after)

    def take(self) -> tuple[list[Batch], int]:
        """Return all that waits, and how many points were lost before it; the cursor moves behind it."""
        batches = list(self._batches)
        for batch in batches:
            self.cursor.update(batch.after)
        self._batches.clear()
        dropped, self._dropped, self._pending = self._dropped, 0, 0
        return batches, dropped


class PointFeed(abc.ABC):
    """The points of one run, for any number of subscribers.

    Args:
        interval_s: seconds between two looks.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.cursor: Cursor = {}
        self.status = str(RunStatus.PENDING)
        self._lock = threading.RLock()
        self._subscribers: tuple[Subscriber, ...] = ()
        self._kept: deque[Batch] = deque()
        self._kept_points = 0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @abc.abstractmethod
    def look(self) -> None:
        """Read what is new, publish it and set the status.

        Raises:
            RunspanError: the run cannot be read.
        """

    @abc.abstractmethod
    def catch_up(self, subscriber: Subscriber) -> Iterator[list[MetricPoint]]:
        """Yield the points between the subscriber's cursor and the present, and let it join; the cursor moves along.

        Raises:
            LostPositionError: what the cursor points at is not there.
            RunspanError: the run cannot be read.
        """

    def close(self) -> None:
        """End all subscriptions, after what has been written until now."""
        if self._closed.is_set():
            return
        self._look_safely(has_failed=True)
        self._closed.set()
        with self._lock:
            for subscriber in self._subscribers:
                subscriber.leave()

    @property
    def is_closed(self) -> bool:
        """Whether the server is shutting down."""
        return self._closed.is_set()

    @property
    def has_subscribers(self) -> bool:
        """Whether anybody subscribes."""
        return bool(self._subscribers)

    def follow(self, subscriber: Subscriber, *, cursor: Cursor | None) -> Iterator[list[MetricPoint]]:
        """Begin a subscription: yield what the run has beyond a cursor; then the subscriber is told of what is new.

        Args:
            subscriber: the one.
            cursor: how far it is; None: where the run is now.
        """
        self.look()
        if cursor is None:
            with self._lock:
                subscriber.cursor = dict(self.cursor)
                self._add(subscriber)
        else:
            subscriber.cursor = dict(cursor)
            yield from self.catch_up(subscriber)

    def take(self, subscriber: Subscriber) -> Taken:
        """Return what waits for a subscriber."""
        with self._lock:
            batches, dropped = subscriber.take()
            cursor, status = dict(subscriber.cursor), self.status
        # Outside of the lock: the first to write a batch holds nobody up.
        pages = [page for batch in batches for page in batch.pages(subscriber.rank)]
        return Taken(pages, dropped, cursor, status, status in set(RunStatus) and RunStatus(status).is_final)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a subscriber."""
        with self._lock:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)
        subscriber.leave()

    def publish(self, batch: Batch) -> None:
        """Hand a batch to every subscriber, and keep it for those who come back."""
        with self._lock:
            self.cursor.update(batch.after)
            for subscriber in self._subscribers:
                subscriber.offer(batch)
            if not batch.before:
                return
            self._kept.append(batch)
            self._kept_points += len(batch.points)
            while self._kept_points > _MAX_KEPT_POINTS or len(self._kept) > _MAX_KEPT_BATCHES:
                self._kept_points -= len(self._kept.popleft().points)

    def set_status(self, status: str) -> None:
        """Note where the run stands, after the points up to there were published."""
        with self._lock:
            self.status = status

    def _add(self, subscriber: Subscriber) -> None:
        """Let a subscriber be told of what is published from now on; called under the lock."""
        if self._closed.is_set():
            subscriber.leave()
        self._subscribers = (*self._subscribers, subscriber)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="runspan-rpc-feed", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        has_failed, told = False, ""
        while not self._closed.wait(self.interval_s):
            if not self._subscribers:
                continue
            has_failed = self._look_safely(has_failed=has_failed)
            with self._lock:
                for subscriber in self._subscribers:
                    if subscriber.is_waiting or self.status != told:
                        subscriber.tell()
                told = self.status

    def _look_safely(self, *, has_failed: bool) -> bool:
        """Look; a run that cannot be read is logged once, and looked at again. Return whether it failed."""
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - a database or file system may raise anything
            if not has_failed:
                _LOGGER.warning("cannot read new points to serve, will go on trying: %s", error)
            return True
        return False


def selected(points: Sequence[MetricPoint], rank: int | None) -> Sequence[MetricPoint]:
    """Return those of the points that are a rank's; None: all."""
    return points if rank is None else [point for point in points if point.rank == rank]


def encoded(points: Sequence[MetricPoint]) -> list[bytes]:
    """Return points as the bytes of messages, each of about a page."""
    pages: list[bytes] = []
    message, size = pb.SubscribeResponse(), 0
    for point in points:
        if size >= _PAGE_BYTES:
            pages.append(message.SerializeToString())
            message, size = pb.SubscribeResponse(), 0
        message.points.append(from_point(point))
        size += len(point.key) * 4 + _POINT_BYTES
    if size:
        pages.append(message.SerializeToString())
    return pages


def pause_s(interval_s: float, began_monotonic_s: float) -> float:
    """Return the seconds that are left of an interval."""
    return max(0.0, interval_s - (time.monotonic() - began_monotonic_s))
