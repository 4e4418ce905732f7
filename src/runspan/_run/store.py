"""The run's tie to its storage: set up at the start, completed at the end, given up without harm in between."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from runspan._env import EnvReader, means_none
from runspan.errors import ConfigError, ExperimentNotFoundError, InvalidStateError, TraceFormatError
from runspan.importer import import_run_directory
from runspan.storage import open_storage
from runspan.tracefile.reader import peek

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from runspan._run.notices import Notices
    from runspan._run.place import Place
    from runspan._run.spec import RunSpec
    from runspan.records import MetricSummary, RunStatus
    from runspan.storage.base import ArtifactRecord, ExperimentStorage

__all__ = ["StorageLink"]

#: From more ranks than this on, rank 0 alone writes to SQLite.
_MAX_SQLITE_WRITERS = 16


class StorageLink:
    """Where one attempt of one rank keeps its rows, or nowhere.

    Args:
        spec: the run.
        storage: the storage, None for nowhere.
        notices: told once when the storage cannot be used.
        owned: whether the run opened the storage, and so closes it.
    """

    def __init__(self, spec: RunSpec, storage: ExperimentStorage | None, notices: Notices, *, owned: bool) -> None:
        self.storage = storage
        #: Whether the storage knows of this attempt.
        self.has_begun = False
        self._spec = spec
        self._notices = notices
        self._owned = owned

    @classmethod
    def open(
        cls, spec: RunSpec, storage: ExperimentStorage | None, notices: Notices, *, open_default: bool
    ) -> StorageLink:
        """Open the default storage where none is given, and decide whether this rank writes to it.

        Raises:
            ConfigError: ``storage`` is no storage, or ``RUNSPAN_STORAGE`` cannot be used.
            StorageError: it cannot be opened, and the run is strict.
        """
        if storage is not None and not callable(getattr(storage, "create_run", None)):
            raise ConfigError(
                f"storage of type {type(storage).__name__} cannot be used: it takes an ExperimentStorage, such as"
                " open_storage(url) returns"
            )
        if spec.parent is not None:
            return cls(spec, None, notices, owned=False)
        owned = storage is None and open_default
        if owned:
            storage = cls._open_default(spec, notices)
        if storage is not None and spec.context.rank > 0 and not _takes_every_rank(storage, spec.context.world_size):
            if owned:
                storage.close()
            storage = None
        return cls(spec, storage, notices, owned=owned)

    @staticmethod
    def _open_default(spec: RunSpec, notices: Notices) -> ExperimentStorage | None:
        url = EnvReader(os.environ).text("RUNSPAN_STORAGE")
        if url is not None and means_none(url):
            return None
        try:
            return open_storage(url)
        except Exception as error:
            if url is not None and isinstance(error, ConfigError):
                raise ConfigError(f"RUNSPAN_STORAGE cannot be used: {error}") from error
            if spec.config.strict:
                raise
            notices.warn_once("storage", _unusable(error))
            return None

    def begin(self, attempt: int, *, trace_id: str | None, span_id: str | None, time_unix_nano: int) -> None:
        """Create experiment and run where they are missing, and start this attempt of this rank.

        A storage that cannot be reached is given up for this attempt.

        Raises:
            ExperimentNotFoundError: the explicit experiment id is unknown.
            InvalidStateError: the run belongs to another experiment, or the attempt was started before.
            StorageError: it cannot be reached, and the run is strict.
        """
        spec, storage = self._spec, self.storage
        if storage is None:
            return
        try:
            experiment_id = spec.experiment_id
            if spec.experiment_name is not None:
                experiment_id = storage.create_experiment(spec.experiment_name)
            storage.create_run(
                experiment_id,
                spec.run_id,
                spec.context.world_size,
                name=spec.name,
                group=spec.group,
                trace_id=trace_id,
            )
            storage.start_run(spec.run_id, spec.context.rank, attempt, time_unix_nano=time_unix_nano)
            self.has_begun = True
            if span_id is not None:
                storage.set_span_id(spec.run_id, span_id)
        except (ExperimentNotFoundError, InvalidStateError):
            raise
        except Exception as error:
            if spec.config.strict:
                raise
            self._notices.warn_once("storage", _unusable(error))
            self.storage = None

    def catch_up(self, storage: ExperimentStorage, place: Place, attempt: int) -> None:
        """Import what earlier attempts of this rank wrote and could not store: those that were killed."""
        directory, rank = place.directory, self._spec.context.rank
        if directory is None:
            return
        killed = {
            name.attempt
            for name, file in directory.trace_files()
            if name.rank == rank and name.child is None and name.attempt < attempt and _was_cut_off(file)
        }
        if killed:
            import_run_directory(
                directory.path, storage, select=lambda name: name.rank == rank and name.attempt in killed
            )

    def set_counts(self, storage: ExperimentStorage, attempt: int, counts: Mapping[str, float]) -> None:
        """Write this attempt's totals so far."""
        storage.set_counts(self._spec.run_id, counts, self._spec.context.rank, attempt)

    def complete(
        self,
        storage: ExperimentStorage,
        attempt: int,
        *,
        status: RunStatus,
        reason: str | None,
        summary: Mapping[str, MetricSummary],
        counts: Mapping[str, float],
        time_unix_nano: int,
    ) -> None:
        """Write what is known at the end, and end this attempt."""
        run_id, rank = self._spec.run_id, self._spec.context.rank
        storage.set_summary(run_id, summary, rank=rank)
        storage.set_counts(run_id, counts, rank, attempt)
        storage.complete_run(run_id, status, rank, attempt, reason, time_unix_nano=time_unix_nano)

    def log_params(self, storage: ExperimentStorage, params: Mapping[str, Any]) -> None:
        """Write parameters."""
        storage.log_params(self._spec.run_id, params, rank=self._spec.context.rank)

    def set_tags(self, storage: ExperimentStorage, tags: Mapping[str, str]) -> None:
        """Write tags."""
        storage.set_tags(self._spec.run_id, tags, rank=self._spec.context.rank)

    def log_artifact(self, storage: ExperimentStorage, artifact: ArtifactRecord) -> None:
        """Register an artifact."""
        storage.log_artifact(self._spec.run_id, artifact)

    def after_fork_in_child(self) -> None:
        """Let go of the storage in a child process: it is the parent's, and so are its connections."""
        self.storage = None

    def close(self) -> None:
        """Close the storage if the run opened it."""
        if self._owned and self.storage is not None:
            self.storage.close()


def _takes_every_rank(storage: ExperimentStorage, world_size: int) -> bool:
    """Whether every rank may write: anything but a SQLite file that many ranks, or many machines, would share."""
    if not getattr(storage, "is_single_file", False):
        return True
    return world_size <= _MAX_SQLITE_WRITERS and not getattr(storage, "on_network_file_system", False)


def _was_cut_off(file: Path) -> bool:
    """Whether a trace has no end; one that cannot be read has nothing to import either."""
    try:
        return peek(file).terminal is None
    except (OSError, TraceFormatError):
        return False


def _unusable(error: Exception) -> str:
    return f"storage cannot be used ({error}); the trace file goes on, and `runspan import` fills storage from it"
