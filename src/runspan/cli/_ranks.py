"""How the ranks of a run stand, by the first and last lines of their trace files."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations of its records
from typing import TYPE_CHECKING

import msgspec

from runspan import ids
from runspan.errors import TraceFormatError
from runspan.tracefile.layout import RunDirectory, TraceName
from runspan.tracefile.reader import TraceStatus, peek
from runspan.tracefile.steptimes import StepTimes, read_step_times

if TYPE_CHECKING:
    from runspan._clock import Clock
    from runspan.tracefile.events import Meta
    from runspan.tracefile.reader import TracePeek

__all__ = ["RankState", "RunFiles", "read_run_files"]


class RankState(msgspec.Struct, frozen=True):
    """One rank.

    Attributes:
        rank: which one.
        attempts: the attempts that it has files of.
        status: of its newest attempt: running, success, failed, cancelled or interrupted.
        reason: why it ended as it did.
        last_seen_unix_nano: time of the last line that tells one; None when no file can be read.
        host: the machine of its newest attempt.
        folder: where its files are.
        parts: the files of its newest attempt.
    """

    rank: int
    attempts: list[int]
    status: str
    reason: str | None
    last_seen_unix_nano: int | None
    host: str | None
    folder: Path
    parts: list[TraceName]

    def step_times(self) -> StepTimes:
        """Read the durations of the newest attempt's steps.

        Raises:
            TraceFormatError: a file cannot be read.
        """
        return read_step_times(self.folder, self.parts)


class RunFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What the trace files of one run directory say; ``problems`` names the files that cannot be read."""

    directory: Path
    run_id: str
    experiment_id: str
    experiment: str
    name: str | None
    group: str | None
    world_size: int
    start_unix_nano: int
    last_seen_unix_nano: int
    trace_id: str | None
    run_span_id: str | None
    ranks: list[RankState]
    problems: list[str]


def read_run_files(folder: Path, clock: Clock) -> RunFiles | None:
    """Look at a run directory; None when it is none, or no file of it can be read."""
    files = [(name, path) for name, path in RunDirectory(folder).trace_files() if name.child is None]
    metas: list[Meta] = []
    ranks: list[RankState] = []
    problems: list[str] = []
    for rank, of_rank in groupby(files, key=lambda file: file[0].rank):
        peeks: list[TracePeek | None] = []
        attempts, newest = [], []
        for attempt, of_attempt in groupby(of_rank, key=lambda file: file[0].attempt):
            attempts.append(attempt)
            newest = list(of_attempt)
            try:
                peeks.append(peek(newest[0][1], clock=clock))
            except TraceFormatError as error:
                problems.append(str(error))
                peeks.append(None)
        metas += [each.meta for each in peeks if each is not None]
        ranks.append(_rank_state(rank, attempts, peeks[-1], newest))
    if not metas:
        return None
    first = metas[0]
    return RunFiles(
        directory=folder,
        run_id=first.run_id,
        experiment_id=first.experiment_id or ids.experiment_id(first.experiment_name),
        experiment=first.experiment_name,
        name=first.run_name,
        group=first.run_group,
        world_size=max(meta.process.world_size for meta in metas),
        start_unix_nano=min(meta.time_unix_nano for meta in metas),
        last_seen_unix_nano=max(
            (rank.last_seen_unix_nano for rank in ranks if rank.last_seen_unix_nano is not None),
            default=first.time_unix_nano,
        ),
        trace_id=first.trace_id,
        run_span_id=first.run_span_id,
        ranks=ranks,
        problems=problems,
    )


def _rank_state(
    rank: int, attempts: list[int], newest: TracePeek | None, files: list[tuple[TraceName, Path]]
) -> RankState:
    folder, parts = files[0][1].parent, [name for name, _ in files]
    if newest is None:  # the process ended before it wrote its first line
        return RankState(rank, attempts, str(TraceStatus.INTERRUPTED), None, None, None, folder, parts)
    status = str(newest.state.status) if newest.terminal is None else str(newest.terminal.final_status)
    return RankState(
        rank,
        attempts,
        status,
        None if newest.terminal is None else newest.terminal.reason,
        newest.state.last_seen_unix_nano,
        newest.meta.process.host,
        folder,
        parts,
    )
