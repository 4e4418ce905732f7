"""Frames of a run directory, finished or being written: each look reads only what is new."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from runspan._clock import SystemClock
from runspan._rank_tally import MAX_ALERTS, RankTally, SeriesTally, TakenPoints, TraceTally
from runspan.errors import TraceFormatError
from runspan.frames import INTERRUPTED, SHOWN_POINTS, Frame, FrameAlert, FrameMetric, FrameRank, RunIdentity
from runspan.ids import experiment_id
from runspan.records import MetricPoint, RunStatus
from runspan.tracefile.layout import RunDirectory
from runspan.tracefile.steptimes import find_slow_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runspan._clock import Clock
    from runspan.tracefile._tail import TailPosition
    from runspan.tracefile.events import Meta

__all__ = ["KEPT_POINTS", "DirectoryFrames", "TakenPoints", "allow_many_files"]

#: How many of a metric's newest points are kept to be asked for; with many metrics fewer, so that memory is bounded.
KEPT_POINTS = 1_000
_GENEROUS_SERIES = 200
_MAX_SERIES = 10_000
#: How many metrics and problems a frame has at most: it is to be sent once a second.
_MAX_METRICS = 500
_MAX_PROBLEMS = 5
#: No run has so many ranks or attempts: a file that is named like that is none of a rank's.
_MAX_RANKS = 1_000_000_000
#: Files that a program wants to have open at once: one for each rank that runs, and connections.
_WANTED_FILES = 65_536


def allow_many_files() -> None:
    """Let this process open as many files as it may: it is often allowed fewer than a large run has ranks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, _WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # some systems have another limit behind this one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _most_open_files() -> int:
    """Return how many files stay open between two looks: half of what the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (_WANTED_FILES if soft == resource.RLIM_INFINITY else soft) // 2


class DirectoryFrames:
    """A :class:`runspan.frames.FrameSource` over a run directory; child processes' files are left aside.

    Args:
        directory: the run directory.
        clock: tells a running rank from an interrupted one; None: the system's.
        taken: called with the points as they are read, each once, under this object's lock.

    Raises:
        TraceFormatError: there is no trace file in it.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        clock: Clock | None = None,
        taken: Callable[[TakenPoints], None] | None = None,
    ) -> None:
        self.directory = RunDirectory(Path(directory))
        self._clock = clock or SystemClock()
        self._taken = taken
        self._lock = threading.RLock()
        self._ranks: dict[int, RankTally] = {}
        self._traces: dict[tuple[int, int], TraceTally] = {}
        self._is_gone = self._has_too_many_metrics = False
        if not self.directory.trace_files():
            raise TraceFormatError("no run directory: expected rank-*.jsonl files in it", path=str(directory))

    def close(self) -> None:
        """Close the files that are open."""
        with self._lock:
            for trace in self._traces.values():
                trace.tail.close()

    def look(self) -> None:
        """Read what has been written since the last look."""
        with self._lock:
            files = [
                (name, path)
                for name, path in self.directory.trace_files()
                if name.child is None and name.rank < _MAX_RANKS and name.attempt < _MAX_RANKS
            ]
            self._is_gone = not files
            left_open, most_open = 0, _most_open_files()
            for (number, attempt), of_trace in groupby(files, key=lambda file: (file[0].rank, file[0].attempt)):
                trace = self._traces.get((number, attempt))
                if trace is None:
                    rank = self._ranks.setdefault(number, RankTally(number))
                    trace = self._traces[number, attempt] = TraceTally(rank, *next(of_trace))
                    rank.traces.append(trace)
                for taken in trace.look(self._new_series):
                    if self._taken is not None:
                        self._taken(taken)
                left_open += trace.tail.is_open
                if left_open > most_open:  # its file is read from its beginning at the next look
                    trace.tail.close()

    def positions(self) -> dict[tuple[int, int], TailPosition]:
        """Return how far the trace of each rank and attempt was read."""
        with self._lock:
            return {key: trace.tail.position for key, trace in self._traces.items()}

    def status(self) -> str:
        """Return the status of the run as of the last look, as a frame has it."""
        with self._lock:
            ranks = [self._ranks[number].frame(self._clock) for number in sorted(self._ranks)]
            metas = [trace.tail.meta for trace in self._traces.values() if trace.tail.meta is not None]
            return _status_of(ranks, _world_size(metas))

    def trace_folder(self, rank: int, attempt: int) -> Path | None:
        """Return where the files of an attempt's trace are; None when the last look saw none."""
        with self._lock:
            trace = self._traces.get((rank, attempt))
            return None if trace is None else trace.path.parent

    def recent_points(self, limit: int, rank: int = 0) -> dict[str, list[MetricPoint]]:
        """Return the newest ``limit`` points of each metric of a rank as of the last look, at most 1,000.

        Keys are in first-logged order; points that a later attempt supersedes are left out.
        """
        with self._lock:
            found = self._ranks.get(rank)
            if found is None:
                return {}
            return {key: series.newest(limit) for key, series in found.series.items()}

    def frame(self) -> Frame:
        """Look, and return how the run stands.

        Raises:
            TraceFormatError: no trace can be read.
        """
        with self._lock:
            self.look()
            return self._frame()

    def _frame(self) -> Frame:
        traces = [self._traces[key] for key in sorted(self._traces)]
        metas = [trace.tail.meta for trace in traces if trace.tail.meta is not None]
        problems = self._problems()
        if not metas:
            first = problems[0] if problems else "the process ended, or has not come, to its first line"
            raise TraceFormatError(f"no trace can be read: {first}", path=str(self.directory.path))
        identity = _identity(metas)
        numbers = sorted(self._ranks)
        ranks = tuple(self._ranks[number].frame(self._clock) for number in numbers)
        status = _status_of(ranks, identity.world_size)
        last_seen = max((rank.last_seen_unix_nano or 0 for rank in ranks), default=0)
        slow = find_slow_rank({number: self._ranks[number].newest.step_times() for number in numbers})
        metrics = self._metrics(numbers)
        return Frame(
            run=identity,
            status=status,
            reason=next((rank.reason for rank in ranks if rank.status == status and rank.reason), None),
            start_unix_nano=min(meta.time_unix_nano for meta in metas),
            end_unix_nano=last_seen if status in set(RunStatus) and RunStatus(status).is_final else None,
            last_seen_unix_nano=last_seen,
            ranks=ranks,
            slow_rank=None if slow is None else slow.rank,
            metrics=metrics[:_MAX_METRICS],
            metrics_left_out=max(0, len(metrics) - _MAX_METRICS),
            alerts=self._alerts(),
            problems=tuple(problems[:_MAX_PROBLEMS]),
        )

    def _problems(self) -> list[str]:
        found = sorted({trace.problem for trace in self._traces.values() if trace.problem is not None})
        if self._has_too_many_metrics:
            found.insert(0, f"the run has more than {_MAX_SERIES:,} metrics: the others are left out")
        if self._is_gone:
            found.insert(0, f"{self.directory.path}: the files of the run are gone")
        return found

    def _metrics(self, numbers: Sequence[int]) -> tuple[FrameMetric, ...]:
        found: dict[str, tuple[int, SeriesTally]] = {}
        for number in numbers:
            for key, series in self._ranks[number].series.items():
                found.setdefault(key, (number, series))
        return tuple(series.frame(key, number) for key, (number, series) in found.items())

    def _alerts(self) -> tuple[FrameAlert, ...]:
        alerts = (alert for rank in self._ranks.values() for alert in rank.alerts)
        return tuple(sorted(alerts, key=lambda alert: (alert.time_unix_nano, alert.rank))[-MAX_ALERTS:])

    def _new_series(self) -> SeriesTally | None:
        known = sum(len(rank.series) for rank in self._ranks.values())
        if known >= _MAX_SERIES:
            self._has_too_many_metrics = True
            return None
        return SeriesTally(KEPT_POINTS if known < _GENEROUS_SERIES else SHOWN_POINTS)


def _identity(metas: Sequence[Meta]) -> RunIdentity:
    first = metas[0]
    return RunIdentity(
        run_id=first.run_id,
        experiment_id=first.experiment_id or experiment_id(first.experiment_name),
        experiment=first.experiment_name,
        name=first.run_name,
        group=first.run_group,
        trace_id=first.trace_id,
        world_size=_world_size(metas),
    )


def _world_size(metas: Sequence[Meta]) -> int:
    """Return the world size that the newest ranks know; at least 1, whatever a damaged file says."""
    return max((meta.process.world_size for meta in metas if meta.process.world_size > 0), default=1)


def _status_of(ranks: Sequence[FrameRank], world_size: int) -> str:
    """Return how the run stands by its ranks; one whose end is not here counts as interrupted."""
    statuses = Counter(rank.status for rank in ranks if rank.rank < world_size)
    for status in (RunStatus.RUNNING, INTERRUPTED, RunStatus.PENDING):
        if statuses[status]:
            return str(status)
    if statuses.total() < world_size:
        return INTERRUPTED
    return str(RunStatus.worst([RunStatus(status) for status in statuses]))
