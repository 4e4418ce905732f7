"""Rows of experiments, runs, attempts and artifacts, inside a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite

from runspan.errors import ExperimentNotFoundError
from runspan.records import RunStatus
from runspan.storage import _schema as schema
from runspan.storage._rules import AttemptRow, run_not_found, run_state
from runspan.storage.base import ArtifactRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Row

__all__ = ["artifact_of", "load_run", "refresh_state", "require_experiment", "upsert"]


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
