"""The points of a stored run: found by polling the storage, all ranks that it knows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from runspan.dashboard import PointPoller
from runspan.records import MetricPoint
from runspan.rpc._feed import Batch, LostPositionError, PointFeed, selected

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runspan.rpc._feed import Cursor, Subscriber
    from runspan.storage.base import ExperimentStorage

__all__ = ["MAX_STORED_RANKS", "StorageFeed"]

#: Ranks beyond these are not looked for in storage, where each costs a query a second.
MAX_STORED_RANKS = 16
_SOURCE = re.compile(r"(\d{1,9})/(.+)", re.ASCII | re.DOTALL)
#: Times that a subscriber tries to be as far as the feed, while points come in.
_MAX_TRIES = 50


class _Last(msgspec.Struct, frozen=True, array_like=True):
    """The newest known point of a series; the value as text, since NaN equals nothing."""

    attempt: int
    step: int
    time_unix_nano: int
    value: str


class StorageFeed(PointFeed):
    """A feed over a stored run; its cursors hold the newest point of each series, by ``<rank>/<key>``.

    Args:
        storage: where the run is.
        run_id: the run.
        interval_s: seconds between two looks.

    Raises:
        RunNotFoundError: storage has no such run.
    """

    def __init__(self, storage: ExperimentStorage, run_id: str, *, interval_s: float) -> None:
        super().__init__(interval_s)
        self._storage = storage
        self._run_id = run_id
        self._pollers: dict[int, PointPoller] = {}
        storage.get_run_status(run_id)
        with self._lock:
            self._find_ranks(self._pollers, {}, are_known=True)
            self.cursor = _cursor(self._pollers)

    def look(self) -> None:
        """Read what storage got since the last look."""
        with self._lock:
            # The status first: what a run writes before its end is found behind it.
            status = str(self._storage.get_run_status(self._run_id))
            self._find_ranks(self._pollers, {})
            points = [point for poller in self._pollers.values() for point in poller.new_points()]
            if points:
                self.publish(Batch({}, _cursor(self._pollers), tuple(points)))
            self.set_status(status)

    def catch_up(self, subscriber: Subscriber) -> Iterator[list[MetricPoint]]:
        """Yield what storage has beyond the cursor, until it is as far as the feed."""
        known = _known(subscriber.cursor)
        pollers: dict[int, PointPoller] = {}
        for _ in range(_MAX_TRIES):
            self._find_ranks(pollers, known)
            for poller in pollers.values():
                points = selected(poller.new_points(), subscriber.rank)
                subscriber.cursor = _cursor(pollers)
                yield list(points)
            with self._lock:
                subscriber.cursor = _cursor(pollers)
                self.look()
                if subscriber.cursor == self.cursor:
                    self._add(subscriber)
                    return
        raise LostPositionError("the resume token is not of this run, or the run is written too fast to catch up with")

    def _find_ranks(
        self,
        pollers: dict[int, PointPoller],
        known: Mapping[int, Mapping[str, MetricPoint]],
        *,
        are_known: bool = False,
    ) -> None:
        """Begin to poll the ranks that have come.

        Args:
            pollers: gets a poller a rank.
            known: the newest known points, by rank and key.
            are_known: whether all that storage has is known.
        """
        for rank in range(min(self._storage.get_run(self._run_id).world_size, MAX_STORED_RANKS)):
            if rank not in pollers and self._storage.attempts(self._run_id, rank):
                last = None if are_known else known.get(rank, {})
                pollers[rank] = PointPoller(self._storage, self._run_id, rank, last)


def _cursor(pollers: Mapping[int, PointPoller]) -> Cursor:
    return {
        f"{rank}/{key}": _Last(point.attempt, point.step, point.time_unix_nano, repr(point.value))
        for rank, poller in pollers.items()
        for key, point in poller.last.items()
    }


def _known(cursor: Cursor) -> dict[int, dict[str, MetricPoint]]:
    """Return the newest known points of a client's cursor, by rank and key.

    Raises:
        LostPositionError: it has something else.
    """
    known: dict[int, dict[str, MetricPoint]] = {}
    for source, value in cursor.items():
        found, last = _SOURCE.fullmatch(source), _last(value)
        if found is None or last is None:
            raise LostPositionError("the resume token is not of a stored run")
        rank, key = int(found[1]), found[2]
        point = MetricPoint(key, last.step, float(last.value), last.time_unix_nano, rank, last.attempt)
        known.setdefault(rank, {})[key] = point
    return known


def _last(value: Any) -> _Last | None:
    try:
        last = value if isinstance(value, _Last) else msgspec.convert(value, _Last)
        float(last.value)
    except (msgspec.ValidationError, ValueError):
        return None
    return last
