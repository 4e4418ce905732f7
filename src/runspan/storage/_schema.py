"""The tables of :class:`~runspan.storage.sql.SqlStorage`, and the steps that bring an older database up to them."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
    update,
)

from runspan._plain import scrub_text
from runspan.errors import StorageError
from runspan.storage._database import SCHEMA_TABLE, describe_database

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection, Dialect

__all__ = [
    "MIGRATIONS",
    "DocumentKind",
    "artifacts",
    "attempts",
    "documents",
    "experiments",
    "extents",
    "is_current",
    "key_digest",
    "migrate",
    "points",
    "refuse_foreign",
    "runs",
    "schema_version",
    "series",
    "stored_version",
]

#: Any fixed number: processes that migrate one PostgreSQL database wait for each other on it.
_MIGRATION_LOCK = 0x72756E7370616E

# PostgreSQL's text takes every character but NUL, which is stored as an escape that no other text produces.
_ESCAPE = "\U0010ffff"
_ESCAPED_NUL, _ESCAPED_ESCAPE = f"{_ESCAPE}0", f"{_ESCAPE}1"


class _ExactText(TypeDecorator[str]):
    """Text that comes back as it was stored, NUL included; lone surrogates become U+FFFD as in the trace file."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        value = scrub_text(value)
        if dialect.name == "postgresql" and ("\0" in value or _ESCAPE in value):
            value = value.replace(_ESCAPE, _ESCAPED_ESCAPE).replace("\0", _ESCAPED_NUL)
        return value

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is not None and dialect.name == "postgresql" and _ESCAPE in value:
            value = value.replace(_ESCAPED_NUL, "\0").replace(_ESCAPED_ESCAPE, _ESCAPE)
        return value


class DocumentKind(StrEnum):
    """What a row of ``documents`` holds."""

    PARAMS = "params"
    TAGS = "tags"
    SUMMARY = "summary"
    COUNTS = "counts"


_metadata = MetaData()
_rowid = BigInteger().with_variant(Integer, "sqlite")  # SQLite's row id is an INTEGER by name
_digest = String(32)


def key_digest(key: str) -> str:
    """Return 32 hex digits that stand for a metric key in an index, which takes no long text."""
    return hashlib.sha256(scrub_text(key).encode()).hexdigest()[:32]


schema_version = Table(SCHEMA_TABLE, _metadata, Column("version", Integer, nullable=False))

experiments = Table(
    "experiments",
    _metadata,
    Column("seq", _rowid, Identity(always=True), primary_key=True),
    Column("experiment_id", String(64), nullable=False, unique=True),
    Column("name", _ExactText, nullable=False),
    Column("config", Text, nullable=False),
)

runs = Table(
    "runs",
    _metadata,
    Column("seq", _rowid, Identity(always=True), primary_key=True),
    Column("run_id", _ExactText, nullable=False, unique=True),
    Column("experiment_id", String(64), nullable=False, index=True),
    Column("name", _ExactText),
    Column("group_name", _ExactText),
    Column("world_size", Integer, nullable=False),
    Column("trace_id", Text),
    Column("span_id", Text),
    # What the rows of `attempts` add up to, so that a list of runs need not read them.
    Column("status", Text, nullable=False),
    Column("reason", _ExactText),
    Column("start_time", BigInteger),
    Column("end_time", BigInteger),
    Column("attempts", Integer, nullable=False),
    sqlite_autoincrement=True,  # a deleted run's number must not come back while another process remembers it
)

attempts = Table(
    "attempts",
    _metadata,
    Column("run", BigInteger, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("status", Text, nullable=False),
    Column("reason", _ExactText),
    Column("start_time", BigInteger, nullable=False),
    Column("end_time", BigInteger),
)

series = Table(
    "series",
    _metadata,
    Column("id", _rowid, Identity(always=True), primary_key=True),
    Column("run", BigInteger, nullable=False),
    Column("key", _ExactText, nullable=False),
    Column("key_digest", _digest, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    UniqueConstraint("run", "key_digest", "rank", "attempt"),
    sqlite_autoincrement=True,
)

#: In insertion order by ``id``. There is no index on ``series``: ``extents`` says where a run's points are instead,
#: which costs a row a batch and not an index entry a point.
points = Table(
    "points",
    _metadata,
    Column("id", _rowid, Identity(always=True), primary_key=True),
    Column("series", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("value", Float(53)),  # NULL is NaN in SQLite, which stores no NaN
    Column("time_unix_nano", BigInteger, nullable=False),
)

#: The lowest and the highest ``points.id`` of a run's rank; points of others may stand between.
extents = Table(
    "extents",
    _metadata,
    Column("run", BigInteger, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("first_point", BigInteger, nullable=False),
    Column("last_point", BigInteger, nullable=False),
)

#: Parameters, tags, summaries and counters: one JSON object a (run, kind, rank, attempt), read whole.
documents = Table(
    "documents",
    _metadata,
    Column("run", BigInteger, primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("body", Text, nullable=False),
)

artifacts = Table(
    "artifacts",
    _metadata,
    Column("seq", _rowid, Identity(always=True), primary_key=True),
    Column("run", BigInteger, nullable=False, index=True),
    Column("name", _ExactText, nullable=False),
    Column("hash", String(80), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("step", BigInteger),
    Column("path", _ExactText),
    Column("reference", Boolean, nullable=False),
    Index("ix_artifacts_hash", "hash"),
)


def _create_tables(connection: Connection) -> None:
    _metadata.create_all(connection, checkfirst=False)


#: Step n brings a database from schema version n to n + 1. A step that changes a table spells its statements out: the
#: tables above are those of the newest version.
MIGRATIONS: tuple[Callable[[Connection], Any], ...] = (_create_tables,)


def migrate(connection: Connection, steps: Sequence[Callable[[Connection], Any]] = MIGRATIONS) -> None:
    """Bring the database to the newest schema, inside the caller's transaction.

    Args:
        connection: a connection in a writing transaction.
        steps: the migrations, oldest first.

    Raises:
        StorageError: a newer version of runspan, or another program, made the database.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
    version = stored_version(connection)
    if version is None:
        refuse_foreign(connection)
    _refuse_newer(connection, version or 0, len(steps))
    for step in steps[version or 0 :]:
        step(connection)
    if version is None:
        connection.execute(insert(schema_version).values(version=len(steps)))
    elif version < len(steps):
        connection.execute(update(schema_version).values(version=len(steps)))


def is_current(connection: Connection, steps: Sequence[Callable[[Connection], Any]] = MIGRATIONS) -> bool:
    """Say whether the database has the newest schema already, reading only.

    Raises:
        StorageError: a newer version of runspan made the database.
    """
    version = stored_version(connection)
    _refuse_newer(connection, version or 0, len(steps))
    return version == len(steps)


def stored_version(connection: Connection) -> int | None:
    """Return the schema version of the database, None when it has no runspan schema."""
    if not inspect(connection).has_table(schema_version.name):
        return None
    return connection.execute(select(schema_version.c.version)).scalar()


def _refuse_newer(connection: Connection, version: int, newest: int) -> None:
    if version > newest:
        raise StorageError(
            f"{describe_database(connection.engine.url)} has schema version {version}, this runspan reads up to"
            f" {newest}: a newer runspan wrote it; upgrade with: pip install --upgrade runspan"
        )


def refuse_foreign(connection: Connection) -> None:
    """Refuse a database without a runspan schema that has tables all the same.

    Raises:
        StorageError: another program made the database.
    """
    tables = set(inspect(connection).get_table_names())
    if connection.dialect.name == "postgresql":
        tables &= set(_metadata.tables)  # a team's database may hold other tables beside ours
    if tables:
        raise StorageError(
            f"{describe_database(connection.engine.url)} belongs to another program (it has the tables "
            f"{', '.join(sorted(tables)[:5])} but no runspan schema): choose another database"
        )
