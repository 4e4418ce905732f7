"""Everything that is known of one run: from storage, or where that does not have it from its run directory alone."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan.cli._catalog import Catalog, CatalogRun
from runspan.cli._ranks import read_run_files
from runspan.errors import TraceFormatError
from runspan.redaction import Redactor
from runspan.tracefile.layout import RunDirectory
from runspan.tracefile.losses import read_losses
from runspan.tracefile.steptimes import SlowRank, StepTimes, find_slow_rank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runspan._clock import Clock
    from runspan.cli._ranks import RankState
    from runspan.cli._workspace import Workspace
    from runspan.records import RunInfo
    from runspan.storage.base import ExperimentStorage

__all__ = ["OpenedRun", "RankReport", "opened_run", "rank_reports", "run_losses"]


class OpenedRun(msgspec.Struct, frozen=True):
    """A run, and a storage that can be asked about it.

    Attributes:
        run: the run.
        info: what the storage knows of it, with no secrets in parameters and tags.
        storage: has the run; a temporary one, filled from the run directory, where the real one does not.
        warnings: what could not be read on the way.
    """

    run: CatalogRun
    info: RunInfo
    storage: ExperimentStorage
    warnings: tuple[str, ...] = ()


class RankReport(msgspec.Struct, frozen=True):
    """How a rank stands, and how long its steps take."""

    state: RankState
    steps: StepTimes


@contextmanager
def opened_run(workspace: Workspace, reference: str) -> Iterator[OpenedRun]:
    """Find a run and open a storage that has it.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: the reference is ambiguous, or the storage URL cannot be used.
        StorageError: the storage cannot be read.
    """
    with workspace.reading() as storage:
        run = Catalog(workspace, storage).find(reference)
        if storage is not None and run.in_storage:
            yield OpenedRun(run, _redacted(run.info), storage)
            return
    if run.directory is None:
        raise TraceFormatError(f"run {run.run_id!r} is neither in storage nor on this machine")
    with _filled_from(run.directory) as (filled, warnings):
        yield OpenedRun(run, _redacted(filled.get_run(run.run_id)), filled, warnings)


@contextmanager
def _filled_from(directory: Path) -> Iterator[tuple[ExperimentStorage, tuple[str, ...]]]:
    """Import a run directory into a database that is gone afterwards: memory does not grow with the trace."""
    from runspan.importer import import_run_directory  # noqa: PLC0415 - loads SQLAlchemy, as does the storage
    from runspan.storage.sql import SqlStorage  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="runspan-show-") as folder:
        storage = SqlStorage(Path(folder) / "run.db")
        try:
            yield storage, import_run_directory(directory, storage).warnings
        finally:
            storage.close()


def _redacted(info: RunInfo) -> RunInfo:
    """Return the record with ``***`` for secrets: another program may have written it, or an older configuration."""
    redactor = Redactor()
    return msgspec.structs.replace(
        info, params=redactor.redact_mapping(info.params), tags=redactor.redact_mapping(info.tags)
    )


def rank_reports(directory: Path, clock: Clock) -> tuple[list[RankReport], SlowRank | None, list[str]]:
    """Return the ranks that have files in a run directory, the slow one, and what could not be read."""
    files = read_run_files(directory, clock)
    if files is None:
        return [], None, []
    problems = list(files.problems)
    reports = []
    for state in files.ranks:
        try:
            reports.append(RankReport(state, state.step_times()))
        except TraceFormatError as error:
            problems.append(str(error))
            reports.append(RankReport(state, StepTimes()))
    return reports, find_slow_rank({report.state.rank: report.steps for report in reports}), problems


def run_losses(directory: Path) -> tuple[dict[tuple[str, str], int], list[str]]:
    """Return what a run lost by (signal, reason), over all ranks, attempts and children; and what could not be read."""
    losses: Counter[tuple[str, str]] = Counter()
    problems = []
    for name, path in RunDirectory(directory).trace_files():
        try:
            losses += read_losses(path.parent, name)
        except TraceFormatError as error:
            problems.append(str(error))
    return dict(sorted(losses.items())), problems
