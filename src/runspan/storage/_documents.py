"""Parameters, tags, summaries and counters in SQL: one JSON object each, and what a run's objects add up to."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, and_, select, true

from runspan._plain import scrub_text
from runspan.records import MetricSummary, RunInfo, RunStatus
from runspan.storage._rows import upsert
from runspan.storage._rules import dump_json, merge_by_rank, sum_counts
from runspan.storage._schema import DocumentKind, documents, runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

__all__ = ["read_documents", "run_infos", "update_document"]


def update_document(  # noqa: PLR0917 - the columns of the key
    connection: Connection, run: int, kind: DocumentKind, values: Mapping[str, Any], rank: int, attempt: int = 0
) -> None:
    """Set keys of a document, inside a transaction that holds the run's row.

    Raises:
        StorageError: a value is none that JSON has.
    """
    key_columns = {"run": run, "kind": kind.value, "rank": rank, "attempt": attempt}
    which = and_(*(documents.c[name] == value for name, value in key_columns.items()))
    stored = connection.execute(select(documents.c.body).where(which)).scalar()
    merged = {} if stored is None else json.loads(stored)
    merged.update((scrub_text(key), value) for key, value in values.items())
    body = dump_json(merged, f"{kind} of run")
    connection.execute(
        upsert(connection)(documents)
        .values(**key_columns, body=body)
        .on_conflict_do_update(index_elements=list(key_columns), set_={"body": body})
    )


def read_documents(
    connection: Connection, which: ColumnElement[bool], kind: DocumentKind | None = None
) -> Iterator[tuple[int, DocumentKind, int, int, dict[str, Any]]]:
    """Yield (run, kind, rank, attempt, values) of the documents that a condition selects."""
    statement = select(documents).where(which)
    if kind is not None:
        statement = statement.where(documents.c.kind == kind.value)
    ordered = statement.order_by(documents.c.run, documents.c.kind, documents.c.rank, documents.c.attempt)
    for row in connection.execute(ordered):
        yield row.run, DocumentKind(row.kind), row.rank, row.attempt, json.loads(row.body)


def run_infos(connection: Connection, which: ColumnElement[bool] | None = None) -> list[RunInfo]:
    """Load all that is known of the runs that a condition selects, in the order they were created."""
    condition = true() if which is None else which
    found: defaultdict[tuple[int, DocumentKind], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    of_runs = documents.c.run.in_(select(runs.c.seq).where(condition))
    for run, kind, rank, _attempt, values in read_documents(connection, of_runs):
        found[run, kind].append((rank, values))
    infos = []
    for row in connection.execute(select(runs).where(condition).order_by(runs.c.seq)):
        summary = merge_by_rank(dict(found[row.seq, DocumentKind.SUMMARY]))
        infos.append(
            RunInfo(
                run_id=row.run_id,
                experiment_id=row.experiment_id,
                name=row.name,
                group=row.group_name,
                status=RunStatus(row.status),
                reason=row.reason,
                start_time=row.start_time,
                end_time=row.end_time,
                world_size=row.world_size,
                attempts=row.attempts,
                span_id=row.span_id,
                trace_id=row.trace_id,
                params=merge_by_rank(dict(found[row.seq, DocumentKind.PARAMS])),
                tags=merge_by_rank(dict(found[row.seq, DocumentKind.TAGS])),
                summary={key: MetricSummary(*numbers) for key, numbers in summary.items()},
                counts=sum_counts(values for _, values in found[row.seq, DocumentKind.COUNTS]),
            )
        )
    return infos
