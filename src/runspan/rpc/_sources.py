"""The runs that a server shows: one live run, one run directory, or those of a storage."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from runspan._rank_tally import SeriesTally
from runspan.directory_frames import KEPT_POINTS
from runspan.errors import ConfigError, RunNotFoundError, TraceFormatError
from runspan.frames import SHOWN_POINTS, Frame, FrameMetric, FramePoint, FrameRank, RunIdentity
from runspan.records import MetricPoint, ResourceSnapshot, Trend
from runspan.rpc._directory_feed import DirectoryFeed
from runspan.rpc._feed import Batch, LostPositionError, PointFeed
from runspan.rpc._storage_feed import MAX_STORED_RANKS, StorageFeed
from runspan.tracefile.layout import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runspan.records import RunInfo
    from runspan.rpc._feed import Subscriber
    from runspan.run import Run
    from runspan.storage.base import ExperimentStorage

__all__ = ["Runs", "ServedRun", "live_run", "runs_of"]

#: Runs of a storage that are kept open while nobody subscribes to them.
_MAX_IDLE_RUNS = 8


class ServedRun(Protocol):
    """One run that is shown; every method is thread-safe."""

    feed: PointFeed
    run_id: str

    def frame(self) -> Frame:
        """Return how it stands now."""

    def recent_points(self, limit: int, rank: int) -> dict[str, list[MetricPoint]]:
        """Return the newest points of each metric of a rank, keys in first-logged order."""

    def usage(self, rank: int) -> ResourceSnapshot:
        """Return the newest resource sample of a rank."""

    def close(self) -> None:
        """End its subscriptions, and let go of its files."""


class Runs(Protocol):
    """The runs of one server."""

    def open(self, run_id: str) -> ServedRun:
        """Return a run; the empty id means the only one, or the one that started last.

        Raises:
            RunNotFoundError: there is no such run.
        """

    def states(self, limit: int) -> tuple[list[Frame], int]:
        """Return where the newest runs stand, frames with nothing else in them, and how many are left out."""

    def close(self) -> None:
        """Close what is open."""


def live_run(target: object) -> Run | None:
    """Return a live run that has files; None for all else."""
    from runspan.run import Run  # noqa: PLC0415 - whoever serves a directory needs no Run

    return target if isinstance(target, Run) and target.directory is not None else None


def runs_of(target: object, *, trace_dir: Path | None, interval_s: float) -> Runs:
    """Return the runs of what is to be served.

    Args:
        target: a Run without files, a storage, or the path of a run directory.
        trace_dir: the folder that holds the run directories of a storage's runs.
        interval_s: seconds between two updates of a subscriber.

    Raises:
        ConfigError: it is none of these.
        TraceFormatError: it is a path, but of no run directory.
    """
    from runspan.run import Run  # noqa: PLC0415 - whoever serves a directory needs no Run
    from runspan.storage.base import ExperimentStorage  # noqa: PLC0415

    if isinstance(target, Run):
        return _OneRun(_LiveRun(target, interval_s))
    if isinstance(target, str | Path):
        return _OneRun(_DirectoryRun(Path(target), interval_s))
    if isinstance(target, ExperimentStorage):
        return _StoredRuns(target, trace_dir, interval_s)
    raise ConfigError(
        f"{type(target).__name__} cannot be served: give a Run, a storage such as open_storage(url) returns, or a run"
        " directory"
    )


class _OneRun:
    """The runs of a server that has but one."""

    def __init__(self, run: ServedRun) -> None:
        self._run = run

    def open(self, run_id: str) -> ServedRun:
        """Return the run."""
        if run_id not in {"", self._run.run_id}:
            raise RunNotFoundError(f"no run {run_id!r} here: this server shows the run {self._run.run_id!r}")
        return self._run

    def states(self, limit: int) -> tuple[list[Frame], int]:  # noqa: ARG002 - one run is never too many
        """Return where the run stands."""
        return [self._run.frame()], 0

    def close(self) -> None:
        """Close the run."""
        self._run.close()


class _StoredRuns:
    """The runs of a storage; one that has its run directory here is read from there."""

    def __init__(self, storage: ExperimentStorage, trace_dir: Path | None, interval_s: float) -> None:
        self._storage = storage
        self._trace_dir = trace_dir
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._open: dict[str, ServedRun] = {}

    def open(self, run_id: str) -> ServedRun:
        """Return a run by its id."""
        with self._lock:
            if not run_id:
                run_id = self._newest()
            run = self._open.pop(run_id, None) or self._opened(run_id)
            self._open[run_id] = run  # the last one used is the last one
            idle = [key for key, each in self._open.items() if not each.feed.has_subscribers and key != run_id]
            for key in idle[:-_MAX_IDLE_RUNS]:
                self._open.pop(key).close()
            return run

    def states(self, limit: int) -> tuple[list[Frame], int]:
        """Return where the newest runs stand, as storage has it."""
        infos = self._storage.list_runs()
        names = {each.experiment_id: each.name for each in self._storage.list_experiments()}
        return [_state(info, names.get(info.experiment_id)) for info in infos[:limit]], max(0, len(infos) - limit)

    def close(self) -> None:
        """Close what is open; the storage belongs to the caller."""
        with self._lock:
            for run in self._open.values():
                run.close()
            self._open.clear()

    def _newest(self) -> str:
        runs = [info for info in self._storage.list_runs() if info.start_time is not None]
        if not runs:
            raise RunNotFoundError("this server has no run that was started")
        return runs[0].run_id

    def _opened(self, run_id: str) -> ServedRun:
        if self._trace_dir is not None:
            folder = RunDirectory.of_run(self._trace_dir, run_id).path
            if folder.is_dir():
                try:
                    return _DirectoryRun(folder, self._interval_s)
                except TraceFormatError:  # no file of it can be read: storage may still have it
                    pass
        return _StoredRun(self._storage, run_id, self._interval_s)


class _DirectoryRun:
    """A run by its files; what has been read of it is read once for frames and subscribers.

    Args:
        directory: the run directory.
        interval_s: seconds between two updates of a subscriber.

    Raises:
        TraceFormatError: no trace can be read.
    """

    def __init__(self, directory: Path, interval_s: float) -> None:
        self._frames_feed = DirectoryFeed(directory, interval_s=interval_s)
        self.feed: PointFeed = self._frames_feed
        try:
            self.run_id = self.frame().run.run_id
        except TraceFormatError:
            self.close()
            raise

    def frame(self) -> Frame:
        """Return how it stands now."""
        return self._frames_feed.frames.frame()

    def recent_points(self, limit: int, rank: int) -> dict[str, list[MetricPoint]]:
        """Return the newest points of each metric of a rank."""
        self._frames_feed.frames.look()
        return self._frames_feed.frames.recent_points(limit, rank)

    def usage(self, rank: int) -> ResourceSnapshot:
        """Return the newest resource sample of a rank."""
        return next((each.usage for each in self.frame().ranks if each.rank == rank), ResourceSnapshot())

    def close(self) -> None:
        """End its subscriptions and close its files."""
        self.feed.close()
        self._frames_feed.frames.close()


class _StoredRun:
    """A run by what storage has of it."""

    def __init__(self, storage: ExperimentStorage, run_id: str, interval_s: float) -> None:
        self._storage = storage
        self.run_id = run_id
        self.feed: PointFeed = StorageFeed(storage, run_id, interval_s=interval_s)

    def frame(self) -> Frame:
        """Return how it stands, with the metrics of the first rank that logs each."""
        info = self._storage.get_run(self.run_id)
        names = {each.experiment_id: each.name for each in self._storage.list_experiments()}
        metrics: dict[str, FrameMetric] = {}
        for rank in range(min(info.world_size, MAX_STORED_RANKS)):
            for key, points in self._storage.recent_metrics(self.run_id, SHOWN_POINTS, rank=rank).items():
                summary = info.summary.get(key)
                count = len(points) if summary is None else max(summary.count, len(points))
                shown = tuple(FramePoint(point.step, point.time_unix_nano, point.value) for point in points)
                trend = Trend.of([point.value for point in points])
                metrics.setdefault(key, FrameMetric(key, rank, count, shown, trend))
        last = max((metric.points[-1].time_unix_nano for metric in metrics.values() if metric.points), default=None)
        return msgspec.structs.replace(
            _state(info, names.get(info.experiment_id)),
            last_seen_unix_nano=info.end_time or last,
            metrics=tuple(metrics.values()),
        )

    def recent_points(self, limit: int, rank: int) -> dict[str, list[MetricPoint]]:
        """Return the newest points of each metric of a rank."""
        return self._storage.recent_metrics(self.run_id, limit, rank=rank)

    def usage(self, rank: int) -> ResourceSnapshot:  # noqa: ARG002 - storage has none of any rank
        """Return a sample with nothing in it: storage keeps no usage."""
        return ResourceSnapshot()

    def close(self) -> None:
        """End its subscriptions."""
        self.feed.close()


def _state(info: RunInfo, experiment: str | None) -> Frame:
    return Frame(
        run=RunIdentity(
            run_id=info.run_id,
            experiment_id=info.experiment_id,
            experiment=experiment or info.experiment_id,
            name=info.name,
            group=info.group,
            trace_id=info.trace_id,
            world_size=info.world_size,
        ),
        status=str(info.status),
        reason=info.reason,
        start_unix_nano=info.start_time,
        end_unix_nano=info.end_time,
    )


class _LiveFeed(PointFeed):
    """A feed over a live run without a file: what it logs from now on."""

    def __init__(self, run: Run, interval_s: float) -> None:
        super().__init__(interval_s)
        self._shown = run
        self._count = 0
        self._series: dict[str, SeriesTally] = {}
        self.cursor = {"live": 0}
        self._subscription = run.subscribe(self._take)

    def look(self) -> None:
        """Note where the run stands; its points come by themselves."""
        self.set_status(str(self._shown.status()))

    def catch_up(self, subscriber: Subscriber) -> Iterator[list[MetricPoint]]:
        """Let a subscriber go on whose cursor is among what is kept."""
        with self._lock:
            at = subscriber.cursor.get("live", 0)
            kept = [batch for batch in self._kept if batch.before["live"] >= at] if isinstance(at, int) else []
            if at != self.cursor["live"] and not (kept and kept[0].before["live"] == at):
                raise LostPositionError("this server does not have the points behind the resume token: subscribe anew")
            self._add(subscriber)
            for batch in kept:
                subscriber.offer(batch)
        yield []

    def newest(self, limit: int) -> dict[str, list[MetricPoint]]:
        """Return the newest points of each metric."""
        with self._lock:
            return {key: series.newest(limit) for key, series in self._series.items()}

    def metrics(self, rank: int) -> tuple[FrameMetric, ...]:
        """Return what a frame has of the metrics."""
        with self._lock:
            return tuple(series.frame(key, rank) for key, series in self._series.items())

    def close(self) -> None:
        """End all subscriptions."""
        super().close()
        self._subscription.close()

    def _take(self, point: MetricPoint) -> None:
        with self._lock:
            self._series.setdefault(point.key, SeriesTally(KEPT_POINTS)).add(point)
            self._count += 1
            self.publish(Batch({"live": self._count - 1}, {"live": self._count}, (point,)))


class _LiveRun:
    """A live run of this process that has no file; shows its own rank."""

    def __init__(self, run: Run, interval_s: float) -> None:
        self._run = run
        self.run_id = run.id
        self._live = _LiveFeed(run, interval_s)
        self.feed: PointFeed = self._live

    def frame(self) -> Frame:
        """Return how it stands now."""
        run, context = self._run, self._run.rank_context
        status, rank = str(run.status()), context.rank
        identity = RunIdentity(
            run_id=run.id,
            experiment_id=run.experiment_id,
            experiment=run.experiment_id,
            name=run.name,
            trace_id=run.trace_id,
            world_size=context.world_size,
        )
        own = FrameRank(
            rank=rank, status=status, attempt=context.attempt, host=context.host, usage=run.resource_usage()
        )
        return Frame(run=identity, status=status, ranks=(own,), metrics=self._live.metrics(rank))

    def recent_points(self, limit: int, rank: int) -> dict[str, list[MetricPoint]]:
        """Return the newest points of each metric that this rank has logged since it is served."""
        if rank != self._run.rank_context.rank:
            return {}
        return self._live.newest(limit)

    def usage(self, rank: int) -> ResourceSnapshot:
        """Sample what this process's machine and device are busy with."""
        return self._run.resource_usage() if rank == self._run.rank_context.rank else ResourceSnapshot()

    def close(self) -> None:
        """End its subscriptions."""
        self.feed.close()
