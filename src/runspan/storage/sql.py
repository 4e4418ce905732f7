"""Experiments in a SQL database: SQLite in a file, or PostgreSQL for a team."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, insert, select, update

from runspan import ids
from runspan._env import EnvReader, means_none
from runspan._plain import scrub_text
from runspan._root import default_root, ensure_root
from runspan.errors import ConfigError, InvalidStateError, StorageError
from runspan.records import Filter, MetricPoint, MetricSummary, RunInfo, RunStatus
from runspan.storage import _schema as schema
from runspan.storage._database import Database, parse_url
from runspan.storage._documents import read_documents, run_infos, update_document
from runspan.storage._filesystem import MOUNTINFO
from runspan.storage._points import PointSelection, SeriesIds, insert_points
from runspan.storage._process import PerProcess
from runspan.storage._rows import artifact_of, ensure_run, load_run, refresh_state, require_experiment, upsert
from runspan.storage._rules import (
    dump_json,
    merge_by_rank,
    require_final,
    require_limit,
)
from runspan.storage._schema import DocumentKind
from runspan.storage._search import newest_first, select_runs
from runspan.storage._transactions import reads, writes
from runspan.storage.base import ArtifactRecord, ExperimentInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

__all__ = ["SqlStorage"]

#: Runs whose series ids are remembered; a process rarely writes more than one.
_REMEMBERED_RUNS = 32


class SqlStorage:
    """An :class:`~runspan.storage.base.ExperimentStorage` in SQLite or PostgreSQL.

    Processes and threads may share a database; a forked child opens connections of its own. A transaction waits at most
    60 s for others to let go of the database.

    Args:
        url: a file path or ``sqlite:///path``, or ``postgresql://user:password@host/database``; None: the variable
            ``RUNSPAN_STORAGE``, else ``experiments.db`` in the root folder.
        mountinfo: the mount table that says which file system SQLite's file is on.

    Raises:
        ConfigError: the URL cannot be used.
        StorageError: the database cannot be opened, is another program's, or was written by a newer runspan.
        MissingExtraError: PostgreSQL's driver is not installed.
    """

    def __init__(self, url: str | Path | None = None, *, mountinfo: Path = MOUNTINFO) -> None:
        self._database = Database(parse_url(_default_url() if url is None else url), mountinfo)
        self._series: PerProcess[dict[int, SeriesIds]] = PerProcess(dict)
        try:
            if not self._database.read(schema.is_current):
                self._database.write(schema.migrate)
        except StorageError:
            self._database.close()
            raise

    def __repr__(self) -> str:
        return f"<SqlStorage {self._database.description}>"

    @property
    def is_single_file(self) -> bool:
        """Whether the database is a SQLite file, which takes one writer at a time: no place for hundreds of ranks."""
        return self._database.is_sqlite

    @property
    def on_network_file_system(self) -> bool:
        """Whether the SQLite file is on a network file system, where only one process, rank 0, should write."""
        return self._database.network_file_system is not None

    @writes
    def create_experiment(self, connection: Connection, name: str, config: Mapping[str, Any] | None = None) -> str:
        """Get or create an experiment, see :class:`~runspan.storage.base.ExperimentStorage`."""
        experiment_id = ids.experiment_id(name)
        body = dump_json(dict(config or {}), f"the configuration of experiment {name!r}")
        values = {"experiment_id": experiment_id, "name": name, "config": body}
        connection.execute(upsert(connection)(schema.experiments).values(values).on_conflict_do_nothing())
        return experiment_id

    @writes
    def create_run(
        self,
        connection: Connection,
        experiment_id: str,
        run_id: str | None = None,
        world_size: int = 1,
        *,
        name: str | None = None,
        group: str | None = None,
        trace_id: str | None = None,
    ) -> str:
        """Get or create a run, see :class:`~runspan.storage.base.ExperimentStorage`."""
        require_experiment(connection, experiment_id)
        run_id = ids.uuid7() if run_id is None else scrub_text(run_id)
        ensure_run(connection, experiment_id, run_id, world_size, name=name, group_name=group, trace_id=trace_id)
        return run_id

    @writes
    def start_run(
        self,
        connection: Connection,
        run_id: str,
        rank: int = 0,
        attempt: int = 0,
        *,
        time_unix_nano: int | None = None,
    ) -> None:
        """Begin an attempt of a rank, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id, lock=True)
        rows = schema.attempts
        of_attempt = and_(rows.c.run == run.seq, rows.c.rank == rank, rows.c.attempt == attempt)
        if connection.execute(select(rows.c.status).where(of_attempt)).first() is not None:
            raise InvalidStateError(f"run {run_id!r}: attempt {attempt} of rank {rank} was already started")
        start_time = time.time_ns() if time_unix_nano is None else time_unix_nano
        connection.execute(
            insert(rows).values(
                run=run.seq, rank=rank, attempt=attempt, status=RunStatus.RUNNING.value, start_time=start_time
            )
        )
        refresh_state(connection, run.seq, run.world_size)

    @writes
    def complete_run(  # noqa: PLR0917 - the protocol's signature, and the connection
        self,
        connection: Connection,
        run_id: str,
        status: RunStatus,
        rank: int = 0,
        attempt: int = 0,
        reason: str | None = None,
        *,
        time_unix_nano: int | None = None,
    ) -> None:
        """End an attempt of a rank, see :class:`~runspan.storage.base.ExperimentStorage`."""
        status = RunStatus(status)
        run = load_run(connection, run_id, lock=True)
        require_final(status)
        rows = schema.attempts
        of_attempt = and_(rows.c.run == run.seq, rows.c.rank == rank, rows.c.attempt == attempt)
        found = connection.execute(select(rows.c.status).where(of_attempt)).scalar()
        if found != RunStatus.RUNNING:
            state = "never started" if found is None else f"already {found}"
            raise InvalidStateError(f"run {run_id!r}: attempt {attempt} of rank {rank} is {state}, not running")
        end_time = time.time_ns() if time_unix_nano is None else time_unix_nano
        connection.execute(update(rows).where(of_attempt).values(status=status.value, reason=reason, end_time=end_time))
        refresh_state(connection, run.seq, run.world_size)

    def log_metrics(self, run_id: str, points: Sequence[MetricPoint]) -> None:
        """Append points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        remembered = self._series.get()

        def write(connection: Connection) -> tuple[int, SeriesIds]:
            run = load_run(connection, run_id, share=True)
            found = insert_points(connection, run.seq, points, remembered.get(run.seq, {})) if points else {}
            return run.seq, found

        run, found = self._database.write(write)
        if found:  # remembered only now: a transaction that failed has created nothing
            if run not in remembered and len(remembered) >= _REMEMBERED_RUNS:
                remembered.clear()
            # One assignment of a new dict: another thread may be reading the old one.
            remembered[run] = {**remembered.get(run, {}), **found}

    def log_metric(self, run_id: str, key: str, step: int, value: float) -> None:
        """Append one point, see :class:`~runspan.storage.base.ExperimentStorage`."""
        self.log_metrics(run_id, [MetricPoint(key, step, value, time.time_ns())])

    @reads
    def get_metrics(
        self, connection: Connection, run_id: str, key: str, *, rank: int | None = None, attempt: int | None = None
    ) -> list[MetricPoint]:
        """Return a metric's points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        return PointSelection(connection, run.seq, keys=[key], rank=rank, attempt=attempt).by_step()

    @reads
    def get_all_metrics(
        self,
        connection: Connection,
        run_id: str,
        keys: Sequence[str] | None = None,
        *,
        rank: int | None = None,
        attempt: int | None = None,
    ) -> dict[str, list[MetricPoint]]:
        """Return several metrics' points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        selection = PointSelection(connection, run.seq, keys=keys, rank=rank, attempt=attempt)
        points: dict[str, list[MetricPoint]] = {key: [] for key in selection.keys}
        for point in selection.by_step():
            points[point.key].append(point)
        return points

    @reads
    def sample_metrics(
        self,
        connection: Connection,
        run_id: str,
        key: str,
        limit: int,
        *,
        rank: int | None = None,
        attempt: int | None = None,
    ) -> list[MetricPoint]:
        """Return evenly spread points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        require_limit(limit)
        run = load_run(connection, run_id)
        return PointSelection(connection, run.seq, keys=[key], rank=rank, attempt=attempt).sampled(limit)

    @reads
    def recent_metrics(
        self, connection: Connection, run_id: str, limit: int, *, rank: int = 0
    ) -> dict[str, list[MetricPoint]]:
        """Return the newest points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        require_limit(limit)
        run = load_run(connection, run_id)
        return PointSelection(connection, run.seq, rank=rank).recent(limit)

    def latest_metrics(self, run_id: str, *, rank: int = 0) -> dict[str, MetricPoint]:
        """Return the newest point of each metric, see :class:`~runspan.storage.base.ExperimentStorage`."""
        return {key: points[0] for key, points in self.recent_metrics(run_id, 1, rank=rank).items()}

    @reads
    def metric_keys(self, connection: Connection, run_id: str) -> list[str]:
        """Return the metrics' keys, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        statement = select(schema.series.c.key).where(schema.series.c.run == run.seq).order_by(schema.series.c.id)
        return list(dict.fromkeys(connection.execute(statement).scalars()))

    @reads
    def metric_series(self, connection: Connection, run_id: str, key: str) -> list[tuple[int, int]]:
        """Return who logged a metric, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        rows = schema.series
        of_key = and_(rows.c.run == run.seq, rows.c.key_digest == schema.key_digest(key))
        return sorted((row.rank, row.attempt) for row in connection.execute(select(rows).where(of_key)))

    @writes
    def set_summary(
        self, connection: Connection, run_id: str, summary: Mapping[str, MetricSummary], *, rank: int = 0
    ) -> None:
        """Set summaries, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id, lock=True)
        values = {key: [item.last, item.min, item.max, item.count] for key, item in summary.items()}
        update_document(connection, run.seq, DocumentKind.SUMMARY, values, rank)

    @writes
    def set_counts(
        self, connection: Connection, run_id: str, counts: Mapping[str, float], rank: int = 0, attempt: int = 0
    ) -> None:
        """Set counters' totals, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id, lock=True)
        update_document(connection, run.seq, DocumentKind.COUNTS, counts, rank, attempt)

    @writes
    def log_params(self, connection: Connection, run_id: str, params: Mapping[str, Any], *, rank: int = 0) -> None:
        """Set parameters, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id, lock=True)
        update_document(connection, run.seq, DocumentKind.PARAMS, params, rank)

    @reads
    def get_params(self, connection: Connection, run_id: str) -> dict[str, Any]:
        """Return the parameters, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        found = read_documents(connection, schema.documents.c.run == run.seq, DocumentKind.PARAMS)
        return merge_by_rank({rank: values for _, _, rank, _, values in found})

    @writes
    def set_tags(self, connection: Connection, run_id: str, tags: Mapping[str, str], *, rank: int = 0) -> None:
        """Set tags, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id, lock=True)
        values = {key: scrub_text(value) for key, value in tags.items()}
        update_document(connection, run.seq, DocumentKind.TAGS, values, rank)

    @writes
    def log_artifact(self, connection: Connection, run_id: str, artifact: ArtifactRecord) -> None:
        """Register an artifact, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id, lock=True)
        rows = schema.artifacts
        same = and_(rows.c.run == run.seq, rows.c.hash == artifact.hash, rows.c.name == artifact.name)
        if connection.execute(select(rows.c.seq).where(same)).first() is None:
            values = {name: getattr(artifact, name) for name in ArtifactRecord.__struct_fields__}
            connection.execute(insert(rows).values(run=run.seq, **values))

    @reads
    def get_artifact(self, connection: Connection, artifact_hash: str) -> ArtifactRecord | None:
        """Return an artifact by its hash, see :class:`~runspan.storage.base.ExperimentStorage`."""
        rows = schema.artifacts
        statement = select(rows).where(rows.c.hash == artifact_hash).order_by(rows.c.run, rows.c.seq).limit(1)
        row = connection.execute(statement).first()
        return None if row is None else artifact_of(row)

    @reads
    def list_artifacts(self, connection: Connection, run_id: str) -> list[ArtifactRecord]:
        """Return a run's artifacts, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        rows = schema.artifacts
        statement = select(rows).where(rows.c.run == run.seq).order_by(rows.c.seq)
        return [artifact_of(row) for row in connection.execute(statement)]

    @reads
    def get_run_status(self, connection: Connection, run_id: str) -> RunStatus:
        """Return a run's status, see :class:`~runspan.storage.base.ExperimentStorage`."""
        return RunStatus(load_run(connection, run_id).status)

    @writes
    def set_span_id(self, connection: Connection, run_id: str, span_id: str) -> None:
        """Set the run span's id, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id, lock=True)
        connection.execute(update(schema.runs).where(schema.runs.c.seq == run.seq).values(span_id=span_id))

    @reads
    def get_span_id(self, connection: Connection, run_id: str) -> str | None:
        """Return the run span's id, see :class:`~runspan.storage.base.ExperimentStorage`."""
        span_id: str | None = load_run(connection, run_id).span_id
        return span_id

    @reads
    def get_run(self, connection: Connection, run_id: str) -> RunInfo:
        """Return what is known of a run, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        return run_infos(connection, schema.runs.c.seq == run.seq)[0]

    @reads
    def list_runs(self, connection: Connection, experiment_id: str | None = None) -> list[RunInfo]:
        """Return the runs, see :class:`~runspan.storage.base.ExperimentStorage`."""
        if experiment_id is None:
            return newest_first(run_infos(connection))
        require_experiment(connection, experiment_id)
        return newest_first(run_infos(connection, schema.runs.c.experiment_id == experiment_id))

    def search_runs(
        self, filters: Sequence[Filter] = (), order_by: str | None = None, limit: int | None = None
    ) -> list[RunInfo]:
        """Return the runs that match, see :class:`~runspan.storage.base.ExperimentStorage`."""
        return select_runs(self.list_runs(), filters, order_by, limit)

    @reads
    def list_experiments(self, connection: Connection) -> list[ExperimentInfo]:
        """Return the experiments, see :class:`~runspan.storage.base.ExperimentStorage`."""
        rows = connection.execute(select(schema.experiments).order_by(schema.experiments.c.seq))
        return [ExperimentInfo(row.experiment_id, row.name, json.loads(row.config)) for row in rows]

    @reads
    def attempts(self, connection: Connection, run_id: str, rank: int) -> list[int]:
        """Return a rank's attempts, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        rows = schema.attempts
        of_rank = and_(rows.c.run == run.seq, rows.c.rank == rank)
        return list(connection.execute(select(rows.c.attempt).where(of_rank).order_by(rows.c.attempt)).scalars())

    @reads
    def next_steps(self, connection: Connection, run_id: str, rank: int) -> dict[str, int]:
        """Return where a rank's metrics go on, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id)
        highest = PointSelection(connection, run.seq, rank=rank).highest_steps()
        return {key: step + 1 for key, step in highest.items()}

    @writes
    def delete_run(self, connection: Connection, run_id: str) -> None:
        """Remove a run, see :class:`~runspan.storage.base.ExperimentStorage`."""
        run = load_run(connection, run_id, lock=True)
        PointSelection(connection, run.seq).delete()
        for table in (schema.series, schema.extents, schema.attempts, schema.documents, schema.artifacts):
            connection.execute(delete(table).where(table.c.run == run.seq))
        connection.execute(delete(schema.runs).where(schema.runs.c.seq == run.seq))

    def close(self) -> None:
        """Release this process's connections; closing twice is harmless."""
        self._database.close()


def _default_url() -> str | Path:
    given = EnvReader(os.environ).text("RUNSPAN_STORAGE")
    if given is None:
        return ensure_root(default_root()) / "experiments.db"
    if means_none(given):
        raise ConfigError(f"storage is turned off by RUNSPAN_STORAGE={given}: give a path or URL to open one")
    return given
