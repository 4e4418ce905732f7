"""The storage protocol: what every backend promises.

Every method is thread-safe, and what a method returned from has been stored: another thread, or after a restart another
process (where the backend outlives one), sees it. Returned records and containers are the caller's own copies. A run id
that the storage does not have raises :class:`~runspan.errors.RunNotFoundError`; a value that does not exist where the
thing that holds it does is an empty list, an empty dict or None. A backend that cannot be read or written raises
:class:`~runspan.errors.StorageError`, and so does a value that no backend can hold: a parameter that JSON does not
have, a step or time beyond 64 bits. Strings come back exactly, but for lone surrogates, which become U+FFFD as in the
trace file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runspan.records import Filter, MetricPoint, MetricSummary, RunInfo, RunStatus

__all__ = ["ArtifactRecord", "ExperimentInfo", "ExperimentStorage"]


class ExperimentInfo(msgspec.Struct, frozen=True):
    """One experiment: its id, its name and the configuration it was created with."""

    experiment_id: str
    name: str
    config: dict[str, Any] = {}


class ArtifactRecord(msgspec.Struct, frozen=True):
    """One logged artifact.

    Attributes:
        name: the name it was logged under.
        hash: ``sha256-<64 hex digits>`` of its bytes (of its sorted manifest for a directory).
        bytes: its size.
        step: the step it belongs to.
        path: where its bytes are: a file below the run directory's ``artifacts``, or the referenced path.
        reference: whether ``path`` points outside the run directory (logged by reference, not copied).
    """

    name: str
    hash: str
    bytes: int
    step: int | None = None
    path: str | None = None
    reference: bool = False


@runtime_checkable
class ExperimentStorage(Protocol):
    """Where experiments, runs, metrics, parameters and artifacts are kept."""

    def create_experiment(self, name: str, config: Mapping[str, Any] | None = None) -> str:
        """Get or create the experiment of this name and return its id; the first configuration stays."""

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
        """Get or create a run and return its id; a new one is pending.

        Several ranks may create the same run at the same time. Of an existing run, ``world_size`` is raised to the
        larger value, and a name, group or trace id that is missing is filled in.

        Raises:
            ExperimentNotFoundError: there is no such experiment.
            InvalidStateError: the run exists under another experiment.
        """

    def start_run(self, run_id: str, rank: int = 0, attempt: int = 0, *, time_unix_nano: int | None = None) -> None:
        """Begin an attempt of a rank; the run becomes running from any status, unless a newer attempt has ended it.

        Args:
            run_id: the run.
            rank: the rank that starts.
            attempt: its attempt, from 0.
            time_unix_nano: when it started; None: now.

        Raises:
            InvalidStateError: this rank's attempt was started before.
        """

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
        """End a running attempt of a rank with a final status; span id and start time stay.

        The run ends when every rank below its world size has ended its own newest attempt, with the worst of their
        statuses; where only rank 0 has rows, with rank 0's.

        Raises:
            InvalidStateError: the status is not final, or that attempt is not running.
        """

    def log_metrics(self, run_id: str, points: Sequence[MetricPoint]) -> None:
        """Append points in one transaction: all of them or none."""

    def log_metric(self, run_id: str, key: str, step: int, value: float) -> None:
        """Append one point of rank 0, attempt 0, with the present time."""

    def get_metrics(
        self, run_id: str, key: str, *, rank: int | None = None, attempt: int | None = None
    ) -> list[MetricPoint]:
        """Return a metric's points by step, ties in insertion order.

        Per rank, an attempt supersedes the points that earlier attempts have from its own first step of that key on.
        ``attempt`` returns that attempt's points whole instead. ``rank=None`` returns all ranks' points. An unknown key
        is an empty list.
        """

    def get_all_metrics(
        self,
        run_id: str,
        keys: Sequence[str] | None = None,
        *,
        rank: int | None = None,
        attempt: int | None = None,
    ) -> dict[str, list[MetricPoint]]:
        """Return what ``get_metrics`` would for each of several keys, in one pass; None: all keys.

        Keys without points are left out; the others stand in first-logged order.
        """

    def sample_metrics(
        self, run_id: str, key: str, limit: int, *, rank: int | None = None, attempt: int | None = None
    ) -> list[MetricPoint]:
        """Return at most ``limit`` points spread evenly over what ``get_metrics`` would return.

        The first and the last point are included (only the last for a limit of 1); memory does not grow with the
        history where the backend is a database.

        Raises:
            ValueError: the limit is negative.
        """

    def recent_metrics(self, run_id: str, limit: int, *, rank: int = 0) -> dict[str, list[MetricPoint]]:
        """Return the newest ``limit`` points of every metric of a rank, oldest first, keys in first-logged order.

        Superseded points are left out. Newest is by attempt, then time, then insertion: steps may go back, and points
        may have been imported after newer ones.

        Raises:
            ValueError: the limit is negative.
        """

    def latest_metrics(self, run_id: str, *, rank: int = 0) -> dict[str, MetricPoint]:
        """Return the newest point of every metric of a rank, keys in first-logged order."""

    def metric_keys(self, run_id: str) -> list[str]:
        """Return the keys of all ranks' metrics, in first-logged order."""

    def metric_series(self, run_id: str, key: str) -> list[tuple[int, int]]:
        """Return the (rank, attempt) pairs that have points of this key, sorted."""

    def set_summary(self, run_id: str, summary: Mapping[str, MetricSummary], *, rank: int = 0) -> None:
        """Set last, min, max and count of metric keys of a rank; a key that is already there is replaced."""

    def set_counts(self, run_id: str, counts: Mapping[str, float], rank: int = 0, attempt: int = 0) -> None:
        """Set the totals of counters of one rank's attempt; a key that is already there is replaced.

        Totals, not increments, so that writing them again changes nothing. ``RunInfo.counts`` sums over ranks and
        attempts.
        """

    def log_params(self, run_id: str, params: Mapping[str, Any], *, rank: int = 0) -> None:
        """Set parameters (str, int, float, bool, list, dict); last wins, and rank 0's win over other ranks'."""

    def get_params(self, run_id: str) -> dict[str, Any]:
        """Return the parameters: rank 0's, and those that only other ranks have."""

    def set_tags(self, run_id: str, tags: Mapping[str, str], *, rank: int = 0) -> None:
        """Set tags; last wins, and rank 0's win over other ranks'."""

    def log_artifact(self, run_id: str, artifact: ArtifactRecord) -> None:
        """Register an artifact; the same name and hash again changes nothing."""

    def get_artifact(self, artifact_hash: str) -> ArtifactRecord | None:
        """Return the first artifact logged with this hash in any run, None when there is none."""

    def list_artifacts(self, run_id: str) -> list[ArtifactRecord]:
        """Return the artifacts in the order they were logged."""

    def get_run_status(self, run_id: str) -> RunStatus:
        """Return the run's status over all ranks."""

    def set_span_id(self, run_id: str, span_id: str) -> None:
        """Set the run span's id (lower-case hex), overwriting an earlier one."""

    def get_span_id(self, run_id: str) -> str | None:
        """Return the run span's id, None when tracing was off."""

    def get_run(self, run_id: str) -> RunInfo:
        """Return all that is known of a run."""

    def list_runs(self, experiment_id: str | None = None) -> list[RunInfo]:
        """Return the runs of one or all experiments, newest start first, never-started ones first of all.

        Raises:
            ExperimentNotFoundError: there is no such experiment.
        """

    def search_runs(
        self, filters: Sequence[Filter] = (), order_by: str | None = None, limit: int | None = None
    ) -> list[RunInfo]:
        """Return the runs that match every filter.

        Args:
            filters: conditions, ANDed.
            order_by: a filter field, ``-`` in front for descending; runs without the field or with NaN come last in
                both directions. None: newest start first.
            limit: at most so many.

        Raises:
            ValueError: an unknown field or operator, or a negative limit.
        """

    def list_experiments(self) -> list[ExperimentInfo]:
        """Return the experiments in the order they were created."""

    def attempts(self, run_id: str, rank: int) -> list[int]:
        """Return the attempts of a rank that were started, sorted."""

    def next_steps(self, run_id: str, rank: int) -> dict[str, int]:
        """Return, for each key of a rank, its highest stored step + 1."""

    def delete_run(self, run_id: str) -> None:
        """Remove a run and all that belongs to it."""

    def close(self) -> None:
        """Release connections; closing twice is harmless."""
