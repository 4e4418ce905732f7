"""Looking at a database from outside: where it is, and what it holds, without creating or changing it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from runspan.storage import _schema as schema
from runspan.storage._database import Database, parse_url
from runspan.storage._filesystem import network_file_system

__all__ = ["SchemaState", "database_file", "network_file_system", "read_schema"]


class SchemaState(msgspec.Struct, frozen=True):
    """The tables of a database.

    Attributes:
        version: of its runspan schema; None when it has none.
        is_current: whether that is the newest; an older one is brought up to date when the storage is opened.
    """

    version: int | None
    is_current: bool


def database_file(url: str | Path) -> Path | None:
    """Return the absolute path of SQLite's file, None for PostgreSQL; nothing is opened.

    Raises:
        ConfigError: the URL cannot be used.
    """
    parsed = parse_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def read_schema(url: str | Path) -> SchemaState:
    """Connect to a database that exists, and look at its schema.

    Raises:
        ConfigError: the URL cannot be used.
        StorageError: it cannot be opened, or a newer runspan or another program made it.
        MissingExtraError: PostgreSQL's driver is not installed.
    """
    database = Database(parse_url(url))
    try:
        version = database.read(schema.stored_version)
        if version is None:
            database.read(schema.refuse_foreign)
        return SchemaState(version, is_current=version is not None and database.read(schema.is_current))
    finally:
        database.close()
