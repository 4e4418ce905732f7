"""Writing and reading points, the part of the storage that sees millions of rows."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, or_, select, text

from runspan.errors import StorageError
from runspan.records import MetricPoint
from runspan.storage._rows import upsert
from runspan.storage._rules import require_key
from runspan.storage._schema import extents, key_digest, points, series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection, Select, Subquery

__all__ = ["PointSelection", "SeriesIds", "insert_points"]

#: (key, rank, attempt) of a run → the integer that stands for it in each point.
SeriesIds = dict[tuple[str, int, int], int]

#: Rows of one INSERT: measured 0.34 µs a row against 1.0 of executemany, flat beyond; 800 parameters suit every SQLite.
_ROWS_PER_INSERT = 200
_COLUMNS = 4
_INSERT = "INSERT INTO points (series, step, value, time_unix_nano) VALUES "
_FULL_INSERT = _INSERT + ",".join(["(?,?,?,?)"] * _ROWS_PER_INSERT)

_COPY = "COPY points (series, step, value, time_unix_nano) FROM STDIN (FORMAT BINARY)"
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_COPY_END = struct.pack(">h", -1)
#: One row of the binary format: the number of fields, then each one's length and its 8 bytes.
_COPY_ROW = "hiqiqidiq"
_COPY_TEMPLATE = [_COLUMNS, 8, 0, 8, 0, 8, 0, 8, 0]
_COPY_FIELDS = len(_COPY_TEMPLATE)


def insert_points(connection: Connection, run: int, logged: Sequence[MetricPoint], known: SeriesIds) -> SeriesIds:
    """Insert points into a run, in order, inside the caller's transaction.

    Args:
        connection: a connection in a writing transaction.
        run: the run's number.
        logged: one or more points.
        known: series ids found earlier; left as it is.

    Returns:
        The series ids that were not in ``known``, to be remembered once the transaction is committed.

    Raises:
        StorageError: a key is no str, a value is no number, or a step or time does not fit 64 bits.
    """
    found: SeriesIds = {}
    try:
        series_ids = [known[point.key, point.rank, point.attempt] for point in logged]
    except (KeyError, TypeError):  # keys not seen before, and those that no dict takes
        for point in logged:
            require_key(point.key)
        distinct = dict.fromkeys((point.key, point.rank, point.attempt) for point in logged)
        found = _series_ids(connection, run, [key for key in distinct if key not in known])
        known = {**known, **found}
        series_ids = [known[point.key, point.rank, point.attempt] for point in logged]
    try:
        columns: tuple[list[Any], ...] = (
            series_ids,
            [point.step for point in logged],
            list(map(float, [point.value for point in logged])),
            [point.time_unix_nano for point in logged],
        )
        insert = _insert_sqlite if connection.dialect.name == "sqlite" else _copy_postgresql
        first, last = insert(connection, columns)
    except (OverflowError, TypeError, ValueError, struct.error) as error:
        raise StorageError(
            f"a metric point cannot be stored: value, step or time is no 64-bit number: {error}"
        ) from error
    _extend(connection, run, sorted({point.rank for point in logged}), first, last)
    return found


class PointSelection:
    """The points of a run that a question is about, after superseding.

    Args:
        connection: a connection in a transaction.
        run: the run's number.
        keys: of these metrics only.
        rank: of this rank only.
        attempt: this attempt's points whole; None: per rank and key, an attempt supersedes earlier ones from its lowest
            step on.
    """

    def __init__(
        self,
        connection: Connection,
        run: int,
        *,
        keys: Sequence[str] | None = None,
        rank: int | None = None,
        attempt: int | None = None,
    ) -> None:
        self._connection = connection
        if connection.dialect.name == "postgresql":
            # Its statistics lag behind what was just recorded: it takes a million points for a few and loops over all
            # series for each of them (measured: 132 s against 4 s).
            connection.execute(text("SET LOCAL enable_nestloop = off"))
        of_series: list[ColumnElement[bool]] = [series.c.run == run]
        if keys is not None:
            of_series.append(series.c.key_digest.in_([key_digest(key) for key in keys]))
        if rank is not None:
            of_series.append(series.c.rank == rank)
        if attempt is not None:
            of_series.append(series.c.attempt == attempt)
        self._of_series = of_series
        rows = connection.execute(
            select(series.c.id, series.c.key, series.c.rank, series.c.attempt).where(*of_series).order_by(series.c.id)
        ).all()
        #: Series id → (key, rank, attempt), in first-logged order.
        self.names: dict[int, tuple[str, int, int]] = {row.id: (row.key, row.rank, row.attempt) for row in rows}
        self._extent = _extent(connection, run, rank)
        lines = {(row.key, row.rank) for row in rows}
        self._cut = self._cutoffs() if len(lines) < len(rows) else None

    @property
    def keys(self) -> list[str]:
        """The keys that have points, in first-logged order."""
        return list(dict.fromkeys(key for key, _, _ in self.names.values()))

    def by_step(self) -> list[MetricPoint]:
        """Return the points by step, ties in insertion order."""
        return self._load(self._select().order_by(points.c.step, points.c.id))

    def sampled(self, limit: int) -> list[MetricPoint]:
        """Return at most ``limit`` of :meth:`by_step`, evenly spread; the database counts, so memory does not grow."""
        total = self._connection.execute(select(func.count()).select_from(self._select().subquery())).scalar_one()
        if total <= limit:
            return self.by_step()
        if limit == 0:
            return []
        position = (func.row_number().over(order_by=(points.c.step, points.c.id)) - 1).label("position")
        numbered = self._select().add_columns(position).subquery()
        if limit == 1:
            chosen = numbered.c.position == total - 1
        else:
            # Position p is taken where floor(p·(limit - 1) / (total - 1)) grows: limit times, from 0 to total - 1.
            bucket = (numbered.c.position * (limit - 1)).op("/")(total - 1)
            bucket_before = ((numbered.c.position - 1) * (limit - 1)).op("/")(total - 1)
            chosen = or_(numbered.c.position == 0, bucket != bucket_before)
        statement = select(numbered.c.series, numbered.c.step, numbered.c.value, numbered.c.time_unix_nano).where(
            chosen
        )
        return self._load(statement.order_by(numbered.c.position))

    def recent(self, limit: int) -> dict[str, list[MetricPoint]]:
        """Return each metric's ``limit`` newest points, oldest first, of one rank's selection; keys as :attr:`keys`."""
        newest_first = (series.c.attempt.desc(), points.c.time_unix_nano.desc(), points.c.id.desc())
        age = func.row_number().over(partition_by=series.c.key_digest, order_by=newest_first).label("age")
        aged = self._select().join(series, series.c.id == points.c.series).add_columns(age).subquery()
        statement = select(aged.c.series, aged.c.step, aged.c.value, aged.c.time_unix_nano).where(aged.c.age <= limit)
        recent: dict[str, list[MetricPoint]] = {key: [] for key in self.keys}
        for point in self._load(statement.order_by(aged.c.age.desc())):
            recent[point.key].append(point)
        return recent

    def highest_steps(self) -> dict[str, int]:
        """Return each key's highest step, superseded points included; keys in first-logged order."""
        statement = select(points.c.series, func.max(points.c.step)).where(self._in_extent()).group_by(points.c.series)
        of_series: dict[int, int] = {row[0]: row[1] for row in self._connection.execute(statement)}
        highest: dict[str, int] = {}
        for series_id, (key, _, _) in self.names.items():
            highest[key] = max(of_series[series_id], highest.get(key, 0))
        return highest

    def delete(self) -> None:
        """Delete the points, superseded ones included."""
        self._connection.execute(delete(points).where(self._in_extent()))

    def _select(self) -> Select[Any]:
        statement = select(points.c.series, points.c.step, points.c.value, points.c.time_unix_nano).where(
            self._in_extent()
        )
        if self._cut is None:
            return statement
        return statement.select_from(points.outerjoin(self._cut, self._cut.c.id == points.c.series)).where(
            or_(self._cut.c.cutoff.is_(None), points.c.step < self._cut.c.cutoff)
        )

    def _in_extent(self) -> ColumnElement[bool]:
        return and_(
            points.c.id.between(*self._extent), points.c.series.in_(select(series.c.id).where(*self._of_series))
        )

    def _cutoffs(self) -> Subquery:
        """Select, for each series with a later attempt, the lowest step that a later attempt has."""
        first = (
            select(points.c.series, func.min(points.c.step).label("first_step"))
            .where(self._in_extent())
            .group_by(points.c.series)
            .subquery()
        )
        later = series.alias()
        same_line = and_(
            later.c.run == series.c.run,
            later.c.key_digest == series.c.key_digest,
            later.c.rank == series.c.rank,
            later.c.attempt > series.c.attempt,
        )
        return (
            select(series.c.id, func.min(first.c.first_step).label("cutoff"))
            .select_from(series.join(later, same_line).join(first, first.c.series == later.c.id))
            .where(*self._of_series)
            .group_by(series.c.id)
            .subquery()
        )

    def _load(self, statement: Select[Any]) -> list[MetricPoint]:
        names = self.names
        loaded = []
        for series_id, step, value, time_unix_nano in self._connection.execute(statement):
            key, rank, attempt = names[series_id]
            loaded.append(MetricPoint(key, step, math.nan if value is None else value, time_unix_nano, rank, attempt))
        return loaded


def _extent(connection: Connection, run: int, rank: int | None) -> tuple[int, int]:
    """Return the lowest and the highest id of a run's points (of a rank's); an empty range when there are none."""
    statement = select(func.min(extents.c.first_point), func.max(extents.c.last_point)).where(extents.c.run == run)
    if rank is not None:
        statement = statement.where(extents.c.rank == rank)
    first, last = connection.execute(statement).one()
    return (0, -1) if first is None else (first, last)


def _series_ids(connection: Connection, run: int, missing: Sequence[tuple[str, int, int]]) -> SeriesIds:
    """Get or create series, in the order given."""
    if not missing:
        return {}
    rows = [
        {"run": run, "key": key, "key_digest": key_digest(key), "rank": rank, "attempt": attempt}
        for key, rank, attempt in missing
    ]
    connection.execute(upsert(connection)(series).on_conflict_do_nothing(), rows)
    ranks = {rank for _, rank, _ in missing}
    attempts = {attempt for _, _, attempt in missing}
    stored = connection.execute(
        select(series.c.id, series.c.key_digest, series.c.rank, series.c.attempt).where(
            series.c.run == run, series.c.rank.in_(ranks), series.c.attempt.in_(attempts)
        )
    )
    by_digest = {(row.key_digest, row.rank, row.attempt): row.id for row in stored}
    return {
        key: by_digest[row["key_digest"], row["rank"], row["attempt"]] for key, row in zip(missing, rows, strict=True)
    }


def _insert_sqlite(connection: Connection, columns: tuple[list[Any], ...]) -> tuple[int, int]:
    first = connection.execute(select(func.coalesce(func.max(points.c.id), 0))).scalar_one() + 1
    count = len(columns[0])
    flat: list[Any] = [None] * (_COLUMNS * count)
    for offset, column in enumerate(columns):
        flat[offset::_COLUMNS] = column
    # Many rows a statement, through the driver: each lets go of the GIL once and binds without SQLAlchemy's layers.
    cursor = connection.connection.cursor()
    per_insert = _COLUMNS * _ROWS_PER_INSERT
    in_full_inserts = len(flat) // per_insert * per_insert
    for start in range(0, in_full_inserts, per_insert):
        cursor.execute(_FULL_INSERT, flat[start : start + per_insert])
    if in_full_inserts < len(flat):
        rest = count % _ROWS_PER_INSERT
        cursor.execute(_INSERT + ",".join(["(?,?,?,?)"] * rest), flat[in_full_inserts:])
    cursor.close()
    return first, first + count - 1


def _copy_postgresql(connection: Connection, columns: tuple[list[Any], ...]) -> tuple[int, int]:
    # Other sessions take ids of the same sequence meanwhile: the range holds ours, and may hold theirs.
    first = connection.execute(text("SELECT last_value FROM points_id_seq")).scalar_one()
    count = len(columns[0])
    flat: list[Any] = _COPY_TEMPLATE * count
    for offset, column in enumerate(columns):
        flat[2 + 2 * offset :: _COPY_FIELDS] = column
    per_chunk = _COPY_FIELDS * _ROWS_PER_INSERT
    chunks = [flat[start : start + per_chunk] for start in range(0, len(flat), per_chunk)]
    packed = [struct.pack(">" + _COPY_ROW * (len(chunk) // _COPY_FIELDS), *chunk) for chunk in chunks]
    cursor: Any = connection.connection.cursor()  # psycopg's: COPY is beyond the DBAPI that SQLAlchemy types
    with cursor.copy(_COPY) as copy:
        copy.write(b"".join([_COPY_HEADER, *packed, _COPY_END]))
    cursor.close()
    return first, connection.execute(text("SELECT lastval()")).scalar_one()


def _extend(connection: Connection, run: int, ranks: Sequence[int], first: int, last: int) -> None:
    statement = upsert(connection)(extents)
    # A sequence can hand out its ids in another order than transactions commit in.
    lowest, highest = (func.min, func.max) if connection.dialect.name == "sqlite" else (func.least, func.greatest)
    statement = statement.on_conflict_do_update(
        index_elements=["run", "rank"],
        set_={
            "first_point": lowest(extents.c.first_point, statement.excluded.first_point),
            "last_point": highest(extents.c.last_point, statement.excluded.last_point),
        },
    )
    rows = [{"run": run, "rank": rank, "first_point": first, "last_point": last} for rank in ranks]
    connection.execute(statement, rows)
