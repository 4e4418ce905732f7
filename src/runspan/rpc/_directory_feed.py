"""The points of a run directory: every point that its files have, in the order of each trace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from runspan._rank_tally import metric_points
from runspan.directory_frames import DirectoryFrames
from runspan.rpc._feed import Batch, LostPositionError, PointFeed, selected
from runspan.tracefile._tail import TailPosition, TraceTail
from runspan.tracefile.layout import TraceName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runspan._clock import Clock
    from runspan._rank_tally import TakenPoints
    from runspan.records import MetricPoint
    from runspan.rpc._feed import Cursor, Subscriber

__all__ = ["DirectoryFeed"]

_SOURCE = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)
_START = TailPosition()


class DirectoryFeed(PointFeed):
    """A feed over a run directory; its cursors hold, by ``<rank>.<attempt>``, the part and line of each trace.

    Args:
        directory: the run directory.
        interval_s: seconds between two looks.
        clock: tells a running rank from an interrupted one; None: the system's.

    Raises:
        TraceFormatError: there is no trace file in it.
    """

    def __init__(self, directory: Path, *, interval_s: float, clock: Clock | None = None) -> None:
        super().__init__(interval_s)
        self.frames = DirectoryFrames(directory, clock=clock, taken=self._take)

    def look(self) -> None:
        """Read what was written since the last look."""
        self.frames.look()
        self.set_status(self.frames.status())

    def catch_up(self, subscriber: Subscriber) -> Iterator[list[MetricPoint]]:
        """Yield what the files have beyond the cursor, without holding up anybody else."""
        _check(subscriber.cursor)
        while True:
            with self._lock:
                behind = self._sources_behind(subscriber.cursor)
                kept = self._kept_since(subscriber.cursor, behind)
                if kept is not None:
                    self._add(subscriber)
                    for batch in kept:
                        subscriber.offer(batch)
                    return
            for source, until in behind.items():
                yield from self._read(subscriber, source, until)

    def _take(self, taken: TakenPoints) -> None:
        source = f"{taken.rank}.{taken.attempt}"
        self.publish(Batch({source: taken.before}, {source: taken.after}, taken.points))

    def _sources_behind(self, cursor: Cursor) -> dict[str, TailPosition]:
        """Return the sources that the feed has read further than a cursor, and how far.

        Raises:
            LostPositionError: the cursor is ahead of the files.
        """
        for source, position in cursor.items():
            if _position(position) > self.cursor.get(source, _START):
                raise LostPositionError(
                    "the resume token points behind what the run's files have: they were replaced, or it is another"
                    " run's; subscribe anew"
                )
        return {
            source: position
            for source, position in self.cursor.items()
            if _position(cursor.get(source, _START)) < position
        }

    def _kept_since(self, cursor: Cursor, behind: dict[str, TailPosition]) -> list[Batch] | None:
        """Return the kept batches that a cursor lacks; None when they do not reach back so far."""
        missing = set(behind)
        found: list[Batch] = []
        for batch in reversed(self._kept):
            (source,) = batch.before
            if source not in missing:
                continue
            found.append(batch)
            if batch.before[source] == _position(cursor.get(source, _START)):
                missing.discard(source)
            if not missing:
                return found[::-1]
        return None if missing else []

    def _read(self, subscriber: Subscriber, source: str, until: TailPosition) -> Iterator[list[MetricPoint]]:
        rank, attempt = map(int, source.split("."))
        folder = self.frames.trace_folder(rank, attempt)
        if folder is None:
            raise LostPositionError(f"the trace of rank {rank}, attempt {attempt} is gone")
        tail = TraceTail(folder, TraceName(rank, attempt), _position(subscriber.cursor.get(source, _START)))
        try:
            for events in tail.batches(until):
                subscriber.cursor[source] = tail.position
                points = [point for event in events for point in metric_points(event, rank, attempt)]
                yield list(selected(points, subscriber.rank))
        finally:
            tail.close()
        if tail.position < until:
            raise LostPositionError(f"the trace of rank {rank}, attempt {attempt} is shorter than it was")
        # Past the end of a part: the same place as the beginning of the next one.
        subscriber.cursor[source] = until


def _check(cursor: Cursor) -> None:
    """Turn a client's cursor into positions.

    Raises:
        LostPositionError: it has something else.
    """
    for source, position in cursor.items():
        if _SOURCE.fullmatch(source) is None:
            raise LostPositionError(f"the resume token names {source[:40]!r}, which is no trace of this run")
        cursor[source] = _position(position)


def _position(value: Any) -> TailPosition:
    if isinstance(value, TailPosition):
        return value
    try:
        position = msgspec.convert(value, TailPosition)
    except msgspec.ValidationError as error:
        raise LostPositionError("the resume token has no position of a trace") from error
    if position.part < 0 or position.line < 0:
        raise LostPositionError("the resume token has no position of a trace")
    return position
