"""Which runs there are, in storage and in run directories, how each stands, and which one a user means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runspan._clock import SystemClock
from runspan.cli._ranks import RankState, RunFiles, read_run_files
from runspan.cli._references import named_folder
from runspan.errors import ConfigError, RunNotFoundError, TraceFormatError
from runspan.records import RunInfo, RunStatus
from runspan.tracefile.layout import RunDirectory
from runspan.tracefile.reader import peek

if TYPE_CHECKING:
    from runspan._clock import Clock
    from runspan.cli._workspace import Workspace
    from runspan.storage.base import ExperimentStorage

__all__ = ["INTERRUPTED", "Catalog", "CatalogRun"]

#: Shown for a run that was killed: no :class:`RunStatus`, since nobody was left to record one.
INTERRUPTED = "interrupted"
_LATEST = "latest"
#: How many candidates an error names.
_MAX_CANDIDATES = 5
_NS_PER_S = 1_000_000_000


class CatalogRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, from wherever it is known.

    Attributes:
        info: what storage knows, or as much of it as the first lines of the trace files tell.
        experiment: the experiment's name.
        status: pending, running, success, failed, cancelled or interrupted.
        last_seen_unix_nano: when the newest trace file was last written to; None where that was not looked at.
        directory: the run directory, None when it is not on this machine.
        in_storage: whether storage has it.
    """

    info: RunInfo
    experiment: str
    status: str
    last_seen_unix_nano: int | None
    directory: Path | None
    in_storage: bool

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.info.run_id

    @property
    def is_running(self) -> bool:
        """Whether a process may be writing to it."""
        return self.status == RunStatus.RUNNING

    @property
    def last_time_unix_nano(self) -> int | None:
        """When it ended, else when it was last seen, else when it started."""
        return self.info.end_time or self.last_seen_unix_nano or self.info.start_time

    def took_ns(self, now_unix_nano: int) -> int | None:
        """Return how long it ran, or has been running; None where a time is not known."""
        ended = self.info.end_time or (now_unix_nano if self.is_running else self.last_seen_unix_nano)
        if self.info.start_time is None or ended is None:
            return None
        return max(0, ended - self.info.start_time)

    def document(self) -> dict[str, Any]:
        """Return what commands print of every run with ``--json``."""
        info = self.info
        return {
            "run_id": self.run_id,
            "experiment": self.experiment,
            "experiment_id": info.experiment_id,
            "name": info.name,
            "group": info.group,
            "status": self.status,
            "reason": info.reason,
            "start_time_unix_nano": info.start_time,
            "end_time_unix_nano": info.end_time,
            "last_seen_unix_nano": self.last_seen_unix_nano,
            "world_size": info.world_size,
            "attempts": info.attempts,
            "directory": None if self.directory is None else str(self.directory),
            "in_storage": self.in_storage,
        }


class Catalog:
    """The runs of a workspace.

    Args:
        workspace: where to look.
        storage: its storage; None when there is none.
        clock: tells the present.
    """

    def __init__(self, workspace: Workspace, storage: ExperimentStorage | None, clock: Clock | None = None) -> None:
        self._workspace = workspace
        self._storage = storage
        self._clock = clock or SystemClock()
        #: What is wrong with the run directories that :meth:`runs` could not read, a line each.
        self.problems: list[str] = []

    def runs(self) -> list[CatalogRun]:
        """Return all runs, newest start first, those that never started last.

        A run that storage calls finished is not looked at further; of the others the trace files say how they stand.

        Raises:
            StorageError: the storage cannot be read.
        """
        self.problems = []
        names = self._experiment_names()
        found = [self._stored(info, names) for info in (self._storage.list_runs() if self._storage else [])]
        known = {RunDirectory.of_run(self._workspace.trace_dir, run.run_id).path.name for run in found}
        found += [run for folder in self._folders() if folder.name not in known and (run := self._unstored(folder))]
        return sorted(found, key=lambda run: run.info.start_time or 0, reverse=True)

    def find(self, reference: str) -> CatalogRun:
        """Return the run that a user means: by id, run directory, ``latest``, or the beginning of an id.

        Raises:
            RunNotFoundError: there is none; the message names the newest ones.
            ConfigError: several ids begin like that; the message names them.
            StorageError: the storage cannot be read.
            TraceFormatError: it is a run directory of which no trace can be read.
        """
        run = self._by_id(reference) or self._by_path(reference)
        if run is not None:
            return run
        runs = self.runs()
        if reference == _LATEST and runs:
            return runs[0]
        matches = [run for run in runs if reference and run.run_id.startswith(reference)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ConfigError(f"{reference!r} is the beginning of {len(matches)} runs: {_named(matches)}")
        self._refuse_unreadable(reference)
        where = f"storage or {self._workspace.trace_dir}"
        if not runs:
            raise RunNotFoundError(f"no run {reference!r}: there are no runs in {where}; see --dir and --storage")
        raise RunNotFoundError(
            f"no run {reference!r} in {where}: give a run id, the beginning of one, `latest` or a run directory;"
            f" the newest are {_named(runs)}"
        )

    def _by_id(self, run_id: str) -> CatalogRun | None:
        if not run_id:
            return None
        if self._storage is not None:
            try:
                return self._stored(self._storage.get_run(run_id), self._experiment_names())
            except RunNotFoundError:
                pass
        return self._unstored(RunDirectory.of_run(self._workspace.trace_dir, run_id).path)

    def _by_path(self, reference: str) -> CatalogRun | None:
        path = named_folder(reference)
        if path is None:
            return None
        files = read_run_files(path.absolute(), self._clock)
        if files is None:
            return None
        if self._storage is not None:
            try:
                return self._stored(self._storage.get_run(files.run_id), self._experiment_names(), files)
            except RunNotFoundError:
                pass
        return _of_files(files)

    def _refuse_unreadable(self, reference: str) -> None:
        """Raise what is wrong with the traces of a run directory that a user means, if that is what it is."""
        if not reference:
            return
        for folder in (RunDirectory.of_run(self._workspace.trace_dir, reference).path, named_folder(reference)):
            if folder is not None:
                self._refuse_unreadable_in(folder)

    def _refuse_unreadable_in(self, folder: Path) -> None:
        RunDirectory(folder).check_readable()
        for _, path in RunDirectory(folder).trace_files():
            peek(path, clock=self._clock)

    def _folders(self) -> list[Path]:
        try:
            return sorted(Path(entry.path) for entry in os.scandir(self._workspace.trace_dir) if entry.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(
                f"{self._workspace.trace_dir} cannot be read ({error.strerror}): see --dir and RUNSPAN_DIR"
            ) from error

    def _experiment_names(self) -> dict[str, str]:
        experiments = self._storage.list_experiments() if self._storage is not None else []
        return {experiment.experiment_id: experiment.name for experiment in experiments}

    def _stored(self, info: RunInfo, names: dict[str, str], files: RunFiles | None = None) -> CatalogRun:
        folder = RunDirectory.of_run(self._workspace.trace_dir, info.run_id).path
        status, last_seen = str(info.status), None
        if files is None and not info.status.is_final:
            files = read_run_files(folder, self._clock)
        if files is not None:
            last_seen = files.last_seen_unix_nano
            if not info.status.is_final:
                status = _status_of(files, info.world_size, instead=status)
        return CatalogRun(
            info=info,
            experiment=names.get(info.experiment_id, info.experiment_id),
            status=status,
            last_seen_unix_nano=last_seen,
            directory=files.directory if files is not None else folder if folder.is_dir() else None,
            in_storage=True,
        )

    def _unstored(self, folder: Path) -> CatalogRun | None:
        files = read_run_files(folder, self._clock)
        if files is not None:
            return _of_files(files)
        try:
            self._refuse_unreadable_in(folder)
        except TraceFormatError as error:
            self.problems.append(f"{folder} cannot be read: {error}")
        return None


def _of_files(files: RunFiles) -> CatalogRun:
    status = _status_of(files, files.world_size, instead=INTERRUPTED)
    final = next((each for each in RunStatus if each == status and each.is_final), None)
    info = RunInfo(
        run_id=files.run_id,
        experiment_id=files.experiment_id,
        name=files.name,
        group=files.group,
        status=final or RunStatus.RUNNING,
        reason=next((rank.reason for rank in files.ranks if rank.status == status and rank.reason), None),
        start_time=files.start_unix_nano,
        end_time=files.last_seen_unix_nano if final is not None else None,
        world_size=files.world_size,
        attempts=max((len(rank.attempts) for rank in files.ranks), default=0),
        trace_id=files.trace_id,
        span_id=files.run_span_id,
    )
    return CatalogRun(
        info=info,
        experiment=files.experiment,
        status=status,
        last_seen_unix_nano=files.last_seen_unix_nano,
        directory=files.directory,
        in_storage=False,
    )


def _status_of(files: RunFiles, world_size: int, *, instead: str) -> str:
    """Return how a run stands whose end storage does not have: by the newest attempt of each rank.

    Args:
        files: the files on this machine.
        world_size: how many ranks there must be.
        instead: the answer when all that is here has ended, but a rank has no file here.
    """
    by_rank: list[RankState] = [rank for rank in files.ranks if rank.rank < world_size]
    statuses = {rank.status for rank in by_rank}
    if RunStatus.RUNNING in statuses:
        return RunStatus.RUNNING
    if INTERRUPTED in statuses:
        return INTERRUPTED
    if len(by_rank) < world_size:
        return instead
    return RunStatus.worst([RunStatus(status) for status in statuses])


def _named(runs: list[CatalogRun]) -> str:
    named = ", ".join(run.run_id for run in runs[:_MAX_CANDIDATES])
    left = len(runs) - _MAX_CANDIDATES
    return named if left <= 0 else f"{named} and {left} more"
