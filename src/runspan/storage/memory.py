"""The storage that lives and dies with its process."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from runspan import ids
from runspan._plain import scrub_text
from runspan.errors import ExperimentNotFoundError, InvalidStateError, StorageError
from runspan.records import MetricPoint, MetricSummary, RunInfo, RunStatus
from runspan.storage._process import PerProcess
from runspan.storage._rules import (
    AttemptRow,
    RunState,
    dump_json,
    merge_by_rank,
    require_final,
    require_key,
    require_limit,
    run_not_found,
    run_state,
    sample_positions,
    sum_counts,
    superseded_from,
)
from runspan.storage._search import newest_first, select_runs
from runspan.storage.base import ArtifactRecord, ExperimentInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runspan.records import Filter

__all__ = ["InMemoryStorage"]

#: Steps and times are 64-bit integers in every backend.
_INT64 = range(-(2**63), 2**63)


class _Run:
    """A run's rows."""

    def __init__(self, run_id: str, experiment_id: str, world_size: int) -> None:
        self.run_id = run_id
        self.experiment_id = experiment_id
        self.world_size = world_size
        self.name: str | None = None
        self.group: str | None = None
        self.trace_id: str | None = None
        self.span_id: str | None = None
        self.attempts: dict[tuple[int, int], AttemptRow] = {}
        self.points: dict[str, list[MetricPoint]] = {}
        self.params: dict[int, dict[str, Any]] = {}
        self.tags: dict[int, dict[str, str]] = {}
        self.summary: dict[int, dict[str, MetricSummary]] = {}
        self.counts: dict[tuple[int, int], dict[str, float]] = {}
        self.artifacts: list[ArtifactRecord] = []

    def state(self) -> RunState:
        return run_state(self.attempts.values(), self.world_size)

    def info(self) -> RunInfo:
        state = self.state()
        return RunInfo(
            run_id=self.run_id,
            experiment_id=self.experiment_id,
            name=self.name,
            group=self.group,
            status=state.status,
            reason=state.reason,
            start_time=state.start_time,
            end_time=state.end_time,
            world_size=self.world_size,
            attempts=state.attempts,
            span_id=self.span_id,
            trace_id=self.trace_id,
            params=_copy(merge_by_rank(self.params)),
            tags=merge_by_rank(self.tags),
            summary=merge_by_rank(self.summary),
            counts=sum_counts(self.counts.values()),
        )

    def valid_points(self, key: str, rank: int | None, attempt: int | None) -> list[MetricPoint]:
        """Return the points that superseding leaves, in insertion order."""
        points = [point for point in self.points.get(scrub_text(key), ()) if rank in (None, point.rank)]
        if attempt is not None:
            return [point for point in points if point.attempt == attempt]
        first_steps: dict[tuple[int, int], int] = {}
        for point in points:
            series = (point.rank, point.attempt)
            first_steps[series] = min(point.step, first_steps.get(series, point.step))
        if len(first_steps) <= 1:
            return points
        cutoffs = superseded_from(first_steps)
        return [
            point for point in points if (cutoff := cutoffs[point.rank, point.attempt]) is None or point.step < cutoff
        ]


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _stored(point: MetricPoint) -> MetricPoint:
    """Return the point as every backend stores it: a float value, an encodable key."""
    require_key(point.key)
    if point.step not in _INT64 or point.time_unix_nano not in _INT64:
        raise StorageError(f"metric {point.key!r}: step {point.step} or its time is beyond 64 bits")
    return msgspec.structs.replace(point, key=scrub_text(point.key), value=float(point.value))


class InMemoryStorage:
    """An :class:`~runspan.storage.base.ExperimentStorage` in this process's memory.

    Runs without a given id are called ``run-0``, ``run-1`` and so on. After a fork the child has a copy of its own.
    """

    def __init__(self) -> None:
        self._locks = PerProcess(threading.RLock)
        self._experiments: dict[str, ExperimentInfo] = {}
        self._runs: dict[str, _Run] = {}
        self._unnamed_runs = 0

    def create_experiment(self, name: str, config: Mapping[str, Any] | None = None) -> str:
        """Get or create an experiment, see :class:`~runspan.storage.base.ExperimentStorage`."""
        experiment_id = ids.experiment_id(name)
        stored = json.loads(dump_json(dict(config or {}), f"the configuration of experiment {name!r}"))
        with self._locks.get():
            self._experiments.setdefault(experiment_id, ExperimentInfo(experiment_id, scrub_text(name), stored))
        return experiment_id

    def create_run(
        self,
        experiment_id: str,
        run_id: str | None = None,
        world_size: int = 1,
        *,
        name: str | None = None,
        group: str | None = None,
        trace_id: str | None = None,
    ) -> str:
        """Get or create a run, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            if experiment_id not in self._experiments:
                raise ExperimentNotFoundError(
                    f"no experiment {experiment_id!r}: create it with create_experiment(name)"
                )
            run_id = self._unused_run_id() if run_id is None else scrub_text(run_id)
            run = self._runs.setdefault(run_id, _Run(run_id, experiment_id, world_size))
            if run.experiment_id != experiment_id:
                raise InvalidStateError(
                    f"run {run_id!r} belongs to experiment {run.experiment_id!r}, not {experiment_id!r}"
                )
            run.world_size = max(run.world_size, world_size)
            run.name = run.name if name is None or run.name is not None else scrub_text(name)
            run.group = run.group if group is None or run.group is not None else scrub_text(group)
            run.trace_id = run.trace_id or trace_id
            return run_id

    def start_run(self, run_id: str, rank: int = 0, attempt: int = 0, *, time_unix_nano: int | None = None) -> None:
        """Begin an attempt of a rank, see :class:`~runspan.storage.base.ExperimentStorage`."""
        start_time = time.time_ns() if time_unix_nano is None else time_unix_nano
        with self._locks.get():
            run = self._run(run_id)
            if (rank, attempt) in run.attempts:
                raise InvalidStateError(f"run {run_id!r}: attempt {attempt} of rank {rank} was already started")
            run.attempts[rank, attempt] = AttemptRow(rank, attempt, RunStatus.RUNNING, None, start_time, None)

    def complete_run(
        self,
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
        end_time = time.time_ns() if time_unix_nano is None else time_unix_nano
        with self._locks.get():
            run = self._run(run_id)
            require_final(status)
            row = run.attempts.get((rank, attempt))
            if row is None or row.status is not RunStatus.RUNNING:
                found = "never started" if row is None else f"already {row.status}"
                raise InvalidStateError(f"run {run_id!r}: attempt {attempt} of rank {rank} is {found}, not running")
            run.attempts[rank, attempt] = msgspec.structs.replace(
                row, status=status, reason=None if reason is None else scrub_text(reason), end_time=end_time
            )

    def log_metrics(self, run_id: str, points: Sequence[MetricPoint]) -> None:
        """Append points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        stored = [_stored(point) for point in points]
        with self._locks.get():
            run = self._run(run_id)
            for point in stored:
                run.points.setdefault(point.key, []).append(point)

    def log_metric(self, run_id: str, key: str, step: int, value: float) -> None:
        """Append one point, see :class:`~runspan.storage.base.ExperimentStorage`."""
        self.log_metrics(run_id, [MetricPoint(key, step, value, time.time_ns())])

    def get_metrics(
        self, run_id: str, key: str, *, rank: int | None = None, attempt: int | None = None
    ) -> list[MetricPoint]:
        """Return a metric's points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            points = self._run(run_id).valid_points(key, rank, attempt)
        return sorted(points, key=lambda point: point.step)

    def get_all_metrics(
        self,
        run_id: str,
        keys: Sequence[str] | None = None,
        *,
        rank: int | None = None,
        attempt: int | None = None,
    ) -> dict[str, list[MetricPoint]]:
        """Return several metrics' points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        wanted = None if keys is None else {scrub_text(key) for key in keys}
        with self._locks.get():
            known = [key for key in self.metric_keys(run_id) if wanted is None or key in wanted]
            points = {key: self.get_metrics(run_id, key, rank=rank, attempt=attempt) for key in known}
        return {key: found for key, found in points.items() if found}

    def sample_metrics(
        self, run_id: str, key: str, limit: int, *, rank: int | None = None, attempt: int | None = None
    ) -> list[MetricPoint]:
        """Return evenly spread points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        require_limit(limit)
        points = self.get_metrics(run_id, key, rank=rank, attempt=attempt)
        return [points[position] for position in sample_positions(len(points), limit)]

    def recent_metrics(self, run_id: str, limit: int, *, rank: int = 0) -> dict[str, list[MetricPoint]]:
        """Return the newest points, see :class:`~runspan.storage.base.ExperimentStorage`."""
        require_limit(limit)
        recent: dict[str, list[MetricPoint]] = {}
        with self._locks.get():
            run = self._run(run_id)
            for key in run.points:
                points = run.valid_points(key, rank, None)
                if points:
                    points.sort(key=lambda point: (point.attempt, point.time_unix_nano))
                    recent[key] = points[-limit:] if limit else []
        return recent

    def latest_metrics(self, run_id: str, *, rank: int = 0) -> dict[str, MetricPoint]:
        """Return the newest point of each metric, see :class:`~runspan.storage.base.ExperimentStorage`."""
        return {key: points[0] for key, points in self.recent_metrics(run_id, 1, rank=rank).items()}

    def metric_keys(self, run_id: str) -> list[str]:
        """Return the metrics' keys, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            return list(self._run(run_id).points)

    def metric_series(self, run_id: str, key: str) -> list[tuple[int, int]]:
        """Return who logged a metric, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            points = self._run(run_id).points.get(scrub_text(key), ())
            return sorted({(point.rank, point.attempt) for point in points})

    def set_summary(self, run_id: str, summary: Mapping[str, MetricSummary], *, rank: int = 0) -> None:
        """Set summaries, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            stored = self._run(run_id).summary.setdefault(rank, {})
            stored.update({scrub_text(key): value for key, value in summary.items()})

    def set_counts(self, run_id: str, counts: Mapping[str, float], rank: int = 0, attempt: int = 0) -> None:
        """Set counters' totals, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            stored = self._run(run_id).counts.setdefault((rank, attempt), {})
            stored.update({scrub_text(key): value for key, value in counts.items()})

    def log_params(self, run_id: str, params: Mapping[str, Any], *, rank: int = 0) -> None:
        """Set parameters, see :class:`~runspan.storage.base.ExperimentStorage`."""
        values = {scrub_text(key): json.loads(dump_json(value, f"parameter {key!r}")) for key, value in params.items()}
        with self._locks.get():
            self._run(run_id).params.setdefault(rank, {}).update(values)

    def get_params(self, run_id: str) -> dict[str, Any]:
        """Return the parameters, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            params: dict[str, Any] = _copy(merge_by_rank(self._run(run_id).params))
            return params

    def set_tags(self, run_id: str, tags: Mapping[str, str], *, rank: int = 0) -> None:
        """Set tags, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            stored = self._run(run_id).tags.setdefault(rank, {})
            stored.update({scrub_text(key): scrub_text(value) for key, value in tags.items()})

    def log_artifact(self, run_id: str, artifact: ArtifactRecord) -> None:
        """Register an artifact, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            artifacts = self._run(run_id).artifacts
            if not any((known.name, known.hash) == (artifact.name, artifact.hash) for known in artifacts):
                artifacts.append(artifact)

    def get_artifact(self, artifact_hash: str) -> ArtifactRecord | None:
        """Return an artifact by its hash, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            logged = (artifact for run in self._runs.values() for artifact in run.artifacts)
            return next((artifact for artifact in logged if artifact.hash == artifact_hash), None)

    def list_artifacts(self, run_id: str) -> list[ArtifactRecord]:
        """Return a run's artifacts, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            return list(self._run(run_id).artifacts)

    def get_run_status(self, run_id: str) -> RunStatus:
        """Return a run's status, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            return self._run(run_id).state().status

    def set_span_id(self, run_id: str, span_id: str) -> None:
        """Set the run span's id, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            self._run(run_id).span_id = span_id

    def get_span_id(self, run_id: str) -> str | None:
        """Return the run span's id, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            return self._run(run_id).span_id

    def get_run(self, run_id: str) -> RunInfo:
        """Return what is known of a run, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            return self._run(run_id).info()

    def list_runs(self, experiment_id: str | None = None) -> list[RunInfo]:
        """Return the runs, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            if experiment_id is not None and experiment_id not in self._experiments:
                raise ExperimentNotFoundError(f"no experiment {experiment_id!r}: see list_experiments()")
            runs = [run for run in self._runs.values() if experiment_id in (None, run.experiment_id)]
            return newest_first([run.info() for run in runs])

    def search_runs(
        self, filters: Sequence[Filter] = (), order_by: str | None = None, limit: int | None = None
    ) -> list[RunInfo]:
        """Return the runs that match, see :class:`~runspan.storage.base.ExperimentStorage`."""
        return select_runs(self.list_runs(), filters, order_by, limit)

    def list_experiments(self) -> list[ExperimentInfo]:
        """Return the experiments, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            return [
                msgspec.structs.replace(experiment, config=_copy(experiment.config))
                for experiment in self._experiments.values()
            ]

    def attempts(self, run_id: str, rank: int) -> list[int]:
        """Return a rank's attempts, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            return sorted(attempt for of_rank, attempt in self._run(run_id).attempts if of_rank == rank)

    def next_steps(self, run_id: str, rank: int) -> dict[str, int]:
        """Return where a rank's metrics go on, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            highest = {
                key: max((point.step for point in points if point.rank == rank), default=None)
                for key, points in self._run(run_id).points.items()
            }
        return {key: step + 1 for key, step in highest.items() if step is not None}

    def delete_run(self, run_id: str) -> None:
        """Remove a run, see :class:`~runspan.storage.base.ExperimentStorage`."""
        with self._locks.get():
            del self._runs[self._run(run_id).run_id]

    def close(self) -> None:
        """Do nothing: there is no connection to release."""

    def _run(self, run_id: str) -> _Run:
        run = self._runs.get(scrub_text(run_id))
        if run is None:
            raise run_not_found(run_id)
        return run

    def _unused_run_id(self) -> str:
        while True:
            run_id = f"run-{self._unnamed_runs}"
            self._unnamed_runs += 1
            if run_id not in self._runs:
                return run_id
