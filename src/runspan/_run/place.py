"""Where a run's files go, and which attempt of its rank this is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan._root import default_root, ensure_root
from runspan.errors import ConfigError, InvalidStateError
from runspan.tracefile.layout import RunDirectory, TraceName
from runspan.tracefile.writer import FileWriter, NullWriter, TraceWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from runspan._run.spec import RunSpec
    from runspan.storage.base import ExperimentStorage
    from runspan.tracefile.events import Meta

__all__ = ["ChildFileWriter", "Place", "find_place", "open_attempt"]


class Place(msgspec.Struct, frozen=True):
    """The run directory (None: no file), the rank's folder in it, and the attempt."""

    directory: RunDirectory | None
    folder: Path | None
    attempt: int
    earlier_attempts: list[int]


def find_place(spec: RunSpec, storage: ExperimentStorage | None) -> Place:
    """Create the run directory and choose the attempt: one more than any earlier one, or what the launcher counts.

    Raises:
        ConfigError: the directory cannot be created.
        InvalidStateError: ``resume`` does not allow what is there.
    """
    trace_dir, rank = spec.config.trace_dir, spec.context.rank
    if trace_dir is None:
        directory, folder, earlier = None, None, []
    else:
        directory = RunDirectory.of_run(trace_dir, spec.run_id)
        folder = directory.rank_folder(rank, spec.context.world_size)
        try:
            earlier = directory.attempts_of(rank)
        except OSError as error:
            raise _unusable(folder, error) from error
    if spec.parent is not None:
        _create(folder, trace_dir)
        return Place(directory, folder, spec.parent.attempt, [])
    if not earlier and storage is not None:
        earlier = _stored_attempts(storage, spec.run_id, rank)
    if spec.resume == "never" and earlier:
        raise InvalidStateError(
            f"run {spec.run_id!r} has {len(earlier)} earlier attempt(s) of rank {rank} and resume is 'never': use"
            " another run id, or resume='allow'"
        )
    if spec.resume == "must" and not earlier:
        raise InvalidStateError(
            f"run {spec.run_id!r} has no earlier attempt of rank {rank} and resume is 'must': check the run id and"
            " RUNSPAN_DIR, or use resume='allow'"
        )
    attempt = max(spec.context.attempt, 1 + max(earlier, default=-1))
    _create(folder, trace_dir)
    return Place(directory, folder, attempt, earlier)


def open_attempt(
    place: Place, rank: int, meta_of: Callable[[int], Meta], max_file_bytes: int
) -> tuple[TraceWriter, int]:
    """Open the attempt's file; where another process takes the name at the same moment, the next attempt's.

    Raises:
        ConfigError: the file cannot be written.
    """
    attempt = place.attempt
    if place.folder is None:
        return NullWriter(), attempt
    while True:
        try:
            name = TraceName(rank, attempt)
            return FileWriter(place.folder, name, meta_of(attempt), max_file_bytes=max_file_bytes), attempt
        except FileExistsError:
            attempt += 1
        except OSError as error:
            raise ConfigError(f"the trace file in {place.folder} cannot be written: {error.strerror}") from error


class ChildFileWriter(TraceWriter):
    """A child process's trace file, opened with its first line: a child that records nothing leaves none.

    Args:
        folder: the rank's folder.
        rank: the rank whose child this is.
        attempt: its attempt.
        meta: the first line.
        max_file_bytes: size from which the trace goes on in another part.
    """

    def __init__(self, folder: Path, rank: int, attempt: int, meta: Meta, max_file_bytes: int) -> None:
        super().__init__()
        self._folder = folder
        self._rank = rank
        self._attempt = attempt
        self._meta = meta
        self._max_file_bytes = max_file_bytes
        self._file: FileWriter | None = None
        self._closed = False

    def append(self, data: bytes) -> bool:
        """Append whole lines; the caller holds the lock."""
        if self._closed:
            return False
        if self._file is None:
            try:
                self._file = self._open()
            except OSError:
                return False
        return self._file.append(data)

    def close(self) -> None:
        """Close for good."""
        with self.lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def sync(self) -> None:
        """Force what was written to the disk."""
        if self._file is not None:
            self._file.sync()

    def abandon(self) -> None:
        """Close the descriptor without touching the file."""
        self._closed = True
        if self._file is not None:
            self._file.abandon()

    @property
    def path(self) -> Path | None:
        """The file, None before its first line."""
        return None if self._file is None else self._file.path

    def _open(self) -> FileWriter:
        pid = os.getpid()
        ordinal = 0
        while True:
            child = f"{pid}-{ordinal}" if ordinal else str(pid)
            name = TraceName(self._rank, self._attempt, child=child)
            try:
                return FileWriter(self._folder, name, self._meta, max_file_bytes=self._max_file_bytes)
            except FileExistsError:
                ordinal += 1


def _create(folder: Path | None, trace_dir: Path | None) -> None:
    if folder is None or trace_dir is None:
        return
    try:
        # A folder that the user has named for the traces may be one of theirs: no .gitignore is written into it.
        if trace_dir.name == "runs" and _is_root(trace_dir.parent):
            ensure_root(trace_dir.parent)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error


def _is_root(folder: Path) -> bool:
    return folder.name == ".runspan" or folder == Path(os.path.abspath(default_root()))  # noqa: PTH100 - keeps links


def _stored_attempts(storage: ExperimentStorage, run_id: str, rank: int) -> list[int]:
    try:
        return storage.attempts(run_id, rank)
    except Exception:  # noqa: BLE001 - a storage that cannot answer must not stop a training
        return []


def _unusable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the run directory {folder} cannot be created ({error.strerror}): set RUNSPAN_DIR or trace_dir to a folder"
        " that can be written to"
    )
