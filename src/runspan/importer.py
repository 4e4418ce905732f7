"""Run directories into storage: what a live run could not write, or what another machine recorded."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import InvalidStateError, TraceFormatError
from runspan.records import MetricPoint, MetricSummary
from runspan.storage.base import ArtifactRecord
from runspan.tracefile.events import Artifact, Count, Metric, Metrics, Param, Step, Tag
from runspan.tracefile.layout import RunDirectory
from runspan.tracefile.reader import TraceStatus, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runspan.storage.base import ExperimentStorage
    from runspan.tracefile.events import Meta, TraceEvent
    from runspan.tracefile.layout import TraceName
    from runspan.tracefile.reader import TraceReader

__all__ = ["ImportFailure", "ImportReport", "ImportSummary", "import_run_directory", "import_runs"]

#: Points of one storage transaction.
_BATCH = 8192

#: What makes two points of one series the same one; NaN equals NaN here.
_Identity = tuple[int, float | str, int]


class ImportReport(msgspec.Struct, frozen=True):
    """What the import of one run directory did.

    Attributes:
        run_id: the run.
        path: its directory.
        points_added: metric points that the storage did not have.
        points_known: metric points that it had already.
        traces: how many traces were read: one a rank's attempt, and one a child process.
        warnings: what could not be read, or is not final yet; each names its file.
    """

    run_id: str
    path: str
    points_added: int
    points_known: int
    traces: int
    warnings: tuple[str, ...] = ()


class ImportFailure(msgspec.Struct, frozen=True):
    """A run directory that could not be imported, and why."""

    path: str
    error: str


class ImportSummary(msgspec.Struct, frozen=True):
    """What the import of a folder of run directories did."""

    reports: tuple[ImportReport, ...]
    failures: tuple[ImportFailure, ...]


def import_runs(
    path: str | Path, storage: ExperimentStorage, *, progress: Callable[[Path], None] | None = None
) -> ImportSummary:
    """Import a run directory, or every run directory in a folder; a broken one does not stop the others.

    Args:
        path: a run directory, or the folder that holds run directories.
        storage: where to.
        progress: called with each trace file's path before it is read.

    Raises:
        TraceFormatError: it is neither.
        StorageError: the storage cannot be read or written.
    """
    path = Path(path)
    directories = [path]
    if path.is_dir() and not RunDirectory(path).trace_files():
        directories = sorted(folder for folder in path.iterdir() if folder.is_dir())
    if not any(RunDirectory(directory).trace_files() for directory in directories):
        raise TraceFormatError("expected a run directory (rank-*.jsonl files), or a folder of them", path=str(path))
    reports: list[ImportReport] = []
    failures: list[ImportFailure] = []
    for directory in directories:
        try:
            reports.append(import_run_directory(directory, storage, progress=progress))
        except (TraceFormatError, InvalidStateError) as error:
            failures.append(ImportFailure(str(directory), str(error)))
    return ImportSummary(tuple(reports), tuple(failures))


def import_run_directory(
    path: str | Path,
    storage: ExperimentStorage,
    *,
    progress: Callable[[Path], None] | None = None,
    select: Callable[[TraceName], bool] = lambda _: True,
) -> ImportReport:
    """Bring one run directory into storage: experiment, run, attempts, metrics, params, tags, counters, artifacts.

    Importing again adds nothing twice, and neither does importing what the live run wrote itself: per key, rank and
    attempt, each point counts as often as the trace has it. Unreadable traces and lines are left out with a warning.

    Args:
        path: the run directory.
        storage: where to.
        progress: called with each trace file's path before it is read.
        select: says which trace files are imported.

    Raises:
        TraceFormatError: there is no trace in it that can be read.
        InvalidStateError: the storage has the run under another experiment.
        StorageError: the storage cannot be read or written.
    """
    directory = RunDirectory(Path(path))
    files = [(name, file) for name, file in directory.trace_files() if select(name)]
    if not files:
        raise TraceFormatError("no run directory: expected rank-*.jsonl files in it", path=str(path))
    run = _RunImport(directory, storage, progress)
    for (rank, attempt), of_attempt in groupby(files, key=lambda file: (file[0].rank, file[0].attempt)):
        first_parts = {name.stem: (name, file) for name, file in reversed(list(of_attempt))}
        run.import_attempt(rank, attempt, [first_parts[stem] for stem in sorted(first_parts)])
    return run.finish()


class _RunImport:
    """The import of one run directory; attempts come rank by rank, oldest first."""

    def __init__(
        self, directory: RunDirectory, storage: ExperimentStorage, progress: Callable[[Path], None] | None
    ) -> None:
        self._directory = directory
        self._storage = storage
        self._progress = progress
        self._experiment_id: str | None = None
        self._run_id: str | None = None
        self._summaries: dict[int, dict[str, MetricSummary]] = {}
        self._warnings: list[str] = []
        self._added = self._known = self._traces = 0

    def import_attempt(self, rank: int, attempt: int, traces: list[tuple[TraceName, Path]]) -> None:
        """Import the traces of one attempt of a rank: its own and its children's."""
        readers = [(name, reader) for name, file in traces if (reader := self._open(file)) is not None]
        for _, reader in readers:
            self._register(reader.meta)
        if self._run_id is None or not readers:
            return
        state = _AttemptImport(self._storage, self._run_id, rank, attempt, self._directory)
        state.summary = self._summaries.setdefault(rank, {})
        for name, reader in readers:
            if self._progress is not None:
                self._progress(reader.path)
            self._traces += 1
            state.read(reader.meta, self._readable(reader))
            if name.child is None:
                self._end(rank, attempt, reader)
        added, known = state.finish()
        self._added += added
        self._known += known

    def finish(self) -> ImportReport:
        """Write what needed all attempts, and report."""
        if self._run_id is None:
            raise TraceFormatError(
                f"no trace in it can be read: {'; '.join(self._warnings)}", path=str(self._directory.path)
            )
        for rank, summary in self._summaries.items():
            self._storage.set_summary(self._run_id, summary, rank=rank)
        return ImportReport(
            self._run_id, str(self._directory.path), self._added, self._known, self._traces, tuple(self._warnings)
        )

    def _open(self, path: Path) -> TraceReader | None:
        try:
            reader = read(path, lenient=True)
            run_id = reader.meta.run_id
        except TraceFormatError as error:
            self._warnings.append(str(error))
            return None
        if self._run_id not in {None, run_id}:
            self._warnings.append(f"{path}: left out, it is of run {run_id!r} and not of {self._run_id!r}")
            return None
        return reader

    def _register(self, meta: Meta) -> None:
        """Create experiment and run where they are missing; the first trace says which experiment it is."""
        storage = self._storage
        if self._experiment_id is None:
            self._experiment_id = storage.create_experiment(meta.experiment_name)
        self._run_id = storage.create_run(
            self._experiment_id,
            meta.run_id,
            meta.process.world_size,
            name=meta.run_name,
            group=meta.run_group,
            trace_id=meta.trace_id,
        )
        if meta.run_span_id is not None and storage.get_span_id(self._run_id) != meta.run_span_id:
            storage.set_span_id(self._run_id, meta.run_span_id)

    def _readable(self, reader: TraceReader) -> Iterable[TraceEvent]:
        """Yield a trace's events up to where it breaks, and warn about what could not be read."""
        try:
            yield from reader
        except TraceFormatError as error:
            self._warnings.append(str(error))
        finally:
            reader.close()
        if reader.skipped:
            self._warnings.append(f"{reader.path}: {reader.skipped} unreadable lines left out")
        self._warnings.extend(f"{torn.path}:{torn.line}: cut: {torn.reason}" for torn in reader.torn)

    def _end(self, rank: int, attempt: int, reader: TraceReader) -> None:
        """Start the attempt, and complete it if its trace is complete; what the storage has already stays."""
        meta, terminal, run_id = reader.meta, reader.terminal, self._run_id or ""
        if attempt not in self._storage.attempts(run_id, rank):
            self._storage.start_run(run_id, rank, attempt, time_unix_nano=meta.time_unix_nano)
        if terminal is None:
            state = reader.state
            is_running = state.status is TraceStatus.RUNNING
            advice = "import it again later" if is_running else "`runspan trace recover` ends it"
            self._warnings.append(f"{reader.path}: {state}; {advice}")
            return
        end_time = meta.time_unix_nano + terminal.timestamp_ns
        try:
            self._storage.complete_run(
                run_id, terminal.final_status, rank, attempt, terminal.reason, time_unix_nano=end_time
            )
        except InvalidStateError:
            return  # the live run has completed it


class _AttemptImport:
    """Collects the events of one attempt of a rank and writes them."""

    def __init__(
        self, storage: ExperimentStorage, run_id: str, rank: int, attempt: int, directory: RunDirectory
    ) -> None:
        self._storage = storage
        self._run_id = run_id
        self._rank = rank
        self._attempt = attempt
        self._artifacts = directory.artifacts
        self._pending: list[MetricPoint] = []
        self._params: dict[str, object] = {}
        self._tags: dict[str, str] = {}
        self._counts: dict[str, float] = {}
        self._added = self._known_count = 0
        self.summary: dict[str, MetricSummary] = {}
        stored = storage.get_all_metrics(run_id, rank=rank, attempt=attempt)
        self._known = {key: Counter(map(_identity, points)) for key, points in stored.items()}

    def read(self, meta: Meta, events: Iterable[TraceEvent]) -> None:
        """Take a trace's events."""
        self._tags.update(meta.tags)
        for event in events:
            match event:
                case Metric():
                    self._point(event.key, event.step, event.value, event.time_unix_nano)
                case Metrics():
                    self._points(event)
                case Step():
                    self._count("steps", 1)
                    self._count("samples", event.samples or 0)
                    self._count("tokens", event.tokens or 0)
                case Count():
                    self._count(event.key, event.value)
                case Param():
                    self._params[event.key] = event.value
                case Tag():
                    self._tags[event.key] = event.value
                case Artifact():
                    self._artifact(event)

    def finish(self) -> tuple[int, int]:
        """Write what is left; return how many points were added, and how many were there."""
        storage, run_id = self._storage, self._run_id
        self._flush()
        if self._params:
            storage.log_params(run_id, self._params, rank=self._rank)
        if self._tags:
            storage.set_tags(run_id, self._tags, rank=self._rank)
        if self._counts:
            storage.set_counts(run_id, self._counts, self._rank, self._attempt)
        return self._added, self._known_count

    def _count(self, key: str, value: float) -> None:
        self._counts[key] = self._counts.get(key, 0) + value

    def _points(self, event: Metrics) -> None:
        for key, value in event.values.items():
            step = event.step_of(key)
            if step is not None:
                self._point(key, step, value, event.time_unix_nano)

    def _point(self, key: str, step: int, value: float, time_unix_nano: int) -> None:
        point = MetricPoint(key, step, float(value), time_unix_nano, self._rank, self._attempt)
        self.summary[key] = _extended(self.summary.get(key), point.value)
        known = self._known.get(key)
        if known is not None and known[identity := _identity(point)] > 0:
            known[identity] -= 1
            self._known_count += 1
            return
        self._pending.append(point)
        if len(self._pending) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._storage.log_metrics(self._run_id, self._pending)
            self._added += len(self._pending)
            self._pending = []

    def _artifact(self, event: Artifact) -> None:
        path = event.reference or str(self._artifacts / event.hash)
        record = ArtifactRecord(event.name, event.hash, event.bytes, event.step, path, event.reference is not None)
        self._storage.log_artifact(self._run_id, record)


def _identity(point: MetricPoint) -> _Identity:
    value = "NaN" if math.isnan(point.value) else point.value
    return point.step, value, point.time_unix_nano


def _extended(summary: MetricSummary | None, value: float) -> MetricSummary:
    """Return the summary with one more value; extremes leave non-finite values out."""
    finite = value if math.isfinite(value) else None
    if summary is None:
        return MetricSummary(value, finite, finite, 1)
    if finite is None:
        return MetricSummary(value, summary.min, summary.max, summary.count + 1)
    return MetricSummary(
        value,
        finite if summary.min is None else min(summary.min, finite),
        finite if summary.max is None else max(summary.max, finite),
        summary.count + 1,
    )
