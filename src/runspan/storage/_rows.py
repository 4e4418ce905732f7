"""Rows of experiments, runs, attempts and artifacts, inside a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite

from runspan.errors import ExperimentNotFoundError, InvalidStateError
from runspan.records import RunStatus
from runspan.storage import _schema as schema
from runspan.storage._rules import AttemptRow, run_not_found, run_state
from runspan.storage.base import ArtifactRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Row

__all__ = ["artifact_of", "ensure_run", "load_run", "refresh_state", "require_experiment", "upsert"]


def upsert(connection: Connection) -> Callable[..., Any]:
    """Return the INSERT that knows ON CONFLICT."""
    return sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert


def load_run(connection: Connection, run_id: str, *, lock: bool = False, share: bool = False) -> Row[Any]:
    """Load a run's row.

    Args:
        connection: a connection in a transaction.
        run_id: the run.
        lock: keep other writers of this run waiting until the transaction ends.
        share: keep the run from being deleted until then.

    Raises:
        RunNotFoundError: there is no such run.
    """
    statement = select(schema.runs).where(schema.runs.c.run_id == run_id)
    if lock or share:  # SQLite's writers are alone anyway
        statement = statement.with_for_update(read=share, key_share=share)
    row = connection.execute(statement).first()
    if row is None:
        raise run_not_found(run_id)
    return row


def ensure_run(connection: Connection, experiment_id: str, run_id: str, world_size: int, **details: str | None) -> None:
    """Insert a run's row; of one that is there, fill in what it lacks and raise its world size.

    Args:
        connection: a connection in a transaction that writes.
        experiment_id: the run's experiment, which exists.
        run_id: the run.
        world_size: how many ranks it has.
        details: the columns ``name``, ``group_name`` and ``trace_id``.

    Raises:
        InvalidStateError: the run belongs to another experiment.
    """
    values = {"run_id": run_id, "experiment_id": experiment_id, "world_size": world_size, **details}
    values |= {"status": RunStatus.PENDING.value, "attempts": 0}
    connection.execute(upsert(connection)(schema.runs).values(values).on_conflict_do_nothing())
    run = load_run(connection, run_id, lock=True)
    if run.experiment_id != experiment_id:
        raise InvalidStateError(f"run {run_id!r} belongs to experiment {run.experiment_id!r}, not {experiment_id!r}")
    of_run = update(schema.runs).where(schema.runs.c.seq == run.seq)
    missing = {column: value for column, value in details.items() if getattr(run, column) is None and value is not None}
    if missing:
        connection.execute(of_run.values(missing))
    if world_size > run.world_size:
        connection.execute(of_run.values(world_size=world_size))
        refresh_state(connection, run.seq, world_size)


def require_experiment(connection: Connection, experiment_id: str) -> None:
    """Refuse an unknown experiment.

    Raises:
        ExperimentNotFoundError: there is no such experiment.
    """
    known = select(schema.experiments.c.seq).where(schema.experiments.c.experiment_id == experiment_id)
    if connection.execute(known).first() is None:
        raise ExperimentNotFoundError(f"no experiment {experiment_id!r}: create it with create_experiment(name)")


def refresh_state(connection: Connection, run: int, world_size: int) -> None:
    """Write what a run's attempts add up to into its row, inside a transaction that holds the row."""
    rows = connection.execute(select(schema.attempts).where(schema.attempts.c.run == run))
    state = run_state(
        [
            AttemptRow(row.rank, row.attempt, RunStatus(row.status), row.reason, row.start_time, row.end_time)
            for row in rows
        ],
        world_size,
    )
    connection.execute(
        update(schema.runs)
        .where(schema.runs.c.seq == run)
        .values(
            status=state.status.value,
            reason=state.reason,
            start_time=state.start_time,
            end_time=state.end_time,
            attempts=state.attempts,
        )
    )


def artifact_of(row: Row[Any]) -> ArtifactRecord:
    """Return the record of a row of ``artifacts``."""
    return ArtifactRecord(**{name: getattr(row, name) for name in ArtifactRecord.__struct_fields__})
