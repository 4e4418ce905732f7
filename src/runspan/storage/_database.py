"""Connections and transactions: the only place that talks to a database driver about anything but points."""

from __future__ import annotations

import errno
import logging
import random
import sqlite3
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import URL, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from runspan._env import show_value
from runspan._root import expand_user
from runspan.errors import ConfigError, MissingExtraError, RunspanError, StorageError
from runspan.storage._filesystem import MOUNTINFO, network_file_system
from runspan.storage._process import ForkGate, PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

__all__ = ["SCHEMA_TABLE", "Database", "parse_url"]

T = TypeVar("T")

_log = logging.getLogger("runspan")

#: The table that tells runspan's databases from other programs'.
SCHEMA_TABLE = "runspan_schema"

#: How long a writer waits for the others before it gives up.
_LOCK_TIMEOUT_S = 60.0
#: How long SQLite itself waits inside one statement; what it refuses to wait for is retried here.
_STATEMENT_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 10
#: How long a fork waits for other threads' transactions.
_FORK_TIMEOUT_S = 2.0
_RETRY_PAUSE_S = (0.002, 0.03)

_SQLITE_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_PRIMARY_CODE = 0xFF
_SQLITE_ADVICE = {
    sqlite3.SQLITE_NOTADB: "it is no SQLite database: choose another path, or move the file away",
    sqlite3.SQLITE_CORRUPT: "it is damaged: move it away and rebuild it with `runspan import RUN_DIR`",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that the folder exists and its permissions",
    sqlite3.SQLITE_READONLY: "it cannot be written: check its permissions",
    sqlite3.SQLITE_FULL: "the disk is full",
}
#: PostgreSQL's serialization failure and deadlock: the transaction is rolled back, and works when it is tried again.
_POSTGRES_RETRY = frozenset({"40001", "40P01"})


def parse_url(url: str | Path) -> URL:
    """Turn a path or a database URL into an SQLAlchemy URL.

    Raises:
        ConfigError: it is neither SQLite with a path nor PostgreSQL; the message shows no credentials.
    """
    if not isinstance(url, str | Path):
        raise ConfigError(
            f"a storage URL of type {type(url).__name__} cannot be used: give a file path, sqlite:///path or "
            "postgresql://user:password@host/database"
        )
    if isinstance(url, Path) or "://" not in url:
        return _sqlite_url(str(url))
    scheme = url.partition("://")[0]
    dialect = scheme.partition("+")[0]
    if dialect not in {"sqlite", "postgresql", "postgres"} or scheme not in {dialect, "postgresql+psycopg"}:
        raise ConfigError(
            f"a storage URL with the scheme {scheme!r} cannot be used: give a file path, sqlite:///path or "
            "postgresql://user:password@host/database"
        )
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError):
        # The parser's own message may quote a part of the password.
        raise ConfigError(
            f"the storage URL {scheme}://… cannot be parsed: special characters of user and password must be "
            "percent-encoded, and the port is a number"
        ) from None
    if dialect != "sqlite":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.host or parsed.query:
        raise ConfigError("a SQLite storage URL is sqlite:///relative/path or sqlite:////absolute/path, and no more")
    return _sqlite_url(parsed.database or "")


def _sqlite_url(path: str) -> URL:
    if path in {"", ":memory:"}:
        raise ConfigError("SQLite storage needs a file path; for a storage in memory use InMemoryStorage()")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the SQLite path {path!r} cannot be used: it holds a lone surrogate") from None
    if "\0" in path:
        raise ConfigError(f"the SQLite path {path!r} cannot be used: it holds a NUL character")
    absolute = expand_user(path).absolute()
    try:
        absolute.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(
                f"the SQLite path {show_value(path)} cannot be used: its {len(path)} characters are more than the file"
                " system takes; give a shorter path"
            ) from None
    return URL.create("sqlite+pysqlite", database=str(absolute))


def describe_database(url: URL) -> str:
    """Return what messages call a database: no password, no query."""
    if url.get_backend_name() == "sqlite":
        return f"experiment database {url.database}"
    return f"experiment database {url.set(query={}).render_as_string(hide_password=True)}"


class _Connections:
    """What one process has of a database: its connections, and the lock its writing threads queue on."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.writing = threading.Lock()


class Database:
    """Runs functions in transactions, retries those that lost a race, and raises nothing but runspan's errors.

    Args:
        url: from :func:`parse_url`.
        mountinfo: the mount table that says whether SQLite's file is on a network file system.

    Raises:
        StorageError: a path that can hold no database.
        MissingExtraError: the driver is not installed.
    """

    def __init__(self, url: URL, mountinfo: Path = MOUNTINFO) -> None:
        self._url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.network_file_system: str | None = None
        #: What messages call the database: no credentials, no query.
        self.description = describe_database(url)
        if self.is_sqlite:
            path = Path(url.database or "")
            self._prepare_path(path)
            self.network_file_system = network_file_system(path, mountinfo)
        self._closed = False
        self._connections = PerProcess(lambda: _Connections(self._make_engine()))
        self._connections.get()
        self._gate: ForkGate | None = None  # PostgreSQL's connections may stand idle in a child
        if self.is_sqlite:
            self._gate = ForkGate(self._close_connections, _FORK_TIMEOUT_S)
        if self.network_file_system is not None:
            _log.warning(
                "%s is on a network file system (%s): the write-ahead log stays off, and only one process at a time "
                "should write it; PostgreSQL or a local disk is faster and safer",
                self.description,
                self.network_file_system,
            )

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function that only reads, on one consistent state of the database.

        Raises:
            StorageError: the database cannot be read.
        """
        return self._retry(lambda connections: self._transact(connections.engine, work, writing=False))

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run a function in a writing transaction: all that it does is stored, or nothing.

        It runs again when the transaction lost against another one, so it must change nothing but the database.

        Raises:
            StorageError: the database cannot be written.
        """
        if not self.is_sqlite:
            return self._retry(lambda connections: self._transact(connections.engine, work, writing=True))

        def alone(connections: _Connections) -> T:
            # SQLite has one writer at a time: this process's threads queue here instead of polling the file's lock.
            with connections.writing:
                return self._transact(connections.engine, work, writing=True)

        return self._retry(alone)

    def close(self) -> None:
        """Close this process's connections; closing twice is harmless."""
        self._closed = True
        self._close_connections()

    def _close_connections(self) -> None:
        self._connections.get().engine.dispose()

    def _transact(self, engine: Engine, work: Callable[[Connection], T], *, writing: bool) -> T:
        options: dict[str, Any] = {"runspan_writing": writing}
        if not writing and not self.is_sqlite:
            options["isolation_level"] = "REPEATABLE READ"  # SQLite's reading transactions see one state by themselves
        with (
            nullcontext() if self._gate is None else self._gate.inside(),
            engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            return work(connection)

    def _retry(self, attempt: Callable[[_Connections], T]) -> T:
        if self._closed:
            raise StorageError(f"{self.description} was closed")
        if self._gate is not None and not self._gate.safe:
            raise StorageError(
                f"{self.description} cannot be used here: this process was forked in the middle of a transaction, "
                "which SQLite does not survive; start it by spawn"
            )
        connections = self._connections.get()
        deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                return attempt(connections)
            except RunspanError:
                raise
            except (SQLAlchemyError, self._driver_error, OverflowError, OSError) as error:
                if not _lost_a_race(error) or time.monotonic() > deadline_s:
                    raise self._storage_error(error) from self._cause(error)
            time.sleep(random.uniform(*_RETRY_PAUSE_S))  # noqa: S311 - only spreads the retries

    def _make_engine(self) -> Engine:
        if self.is_sqlite:
            engine = create_engine(
                self._url,
                connect_args={"timeout": _STATEMENT_TIMEOUT_S, "check_same_thread": False},
                max_overflow=-1,
            )
            event.listen(engine, "connect", self._set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        else:
            try:
                engine = create_engine(
                    self._url,
                    connect_args={"connect_timeout": _CONNECT_TIMEOUT_S, "client_encoding": "utf8"},
                    max_overflow=-1,
                    pool_pre_ping=True,
                )
            except ImportError:
                raise MissingExtraError("PostgreSQL storage", "postgres") from None
        self._driver_error: type[Exception] = engine.dialect.loaded_dbapi.Error
        return engine

    def _set_up_sqlite(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # transactions begin where _begin_sqlite begins them
        wanted = "wal" if self.network_file_system is None else "delete"
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
            if _is_foreign(connection):  # it is refused later, and stays as it is
                return
            connection.execute(f"PRAGMA journal_mode={wanted}")
        if wanted == "wal":
            # A power loss may take the last transactions but breaks nothing, and the trace file has them.
            connection.execute("PRAGMA synchronous=NORMAL")

    def _prepare_path(self, path: Path) -> None:
        try:
            is_other = path.is_dir() or (path.exists() and not path.is_file())
        except OSError as error:
            raise StorageError(f"{self.description} cannot be looked at: {error.strerror}") from error
        if is_other:
            raise StorageError(f"{self.description} is no file: give the path of a database file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.description}: its folder cannot be created: {error.strerror}") from error

    def _storage_error(self, error: Exception) -> StorageError:
        original = _original(error)
        code = getattr(original, "sqlite_errorcode", None)
        if code is not None and code & _PRIMARY_CODE in _SQLITE_BUSY:
            return StorageError(f"{self.description} has been locked by another process for {_LOCK_TIMEOUT_S:.0f} s")
        lines = str(original).strip().splitlines() or [type(original).__name__]
        advice = _SQLITE_ADVICE.get(code & _PRIMARY_CODE) if code is not None else None
        reason = self._without_secrets(lines[0])
        return StorageError(f"{self.description}: {reason if advice is None else f'{advice} ({reason})'}")

    def _cause(self, error: Exception) -> Exception | None:
        """Return the driver's error: SQLAlchemy's own shows the statement's parameters, which are the user's."""
        original = _original(error)
        return original if self._without_secrets(str(original)) == str(original) else None

    def _without_secrets(self, message: str) -> str:
        values: list[Any] = [self._url.password, self._url.query.get("password"), self._url.query.get("sslpassword")]
        for secret in filter(None, values):
            message = message.replace(str(secret), "***")
        return message


def _is_foreign(connection: sqlite3.Connection) -> bool:
    """Whether a SQLite database has tables, but none of runspan's."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return bool(tables) and SCHEMA_TABLE not in tables


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later would fail at once instead of waiting for its turn.
    writing = connection.get_execution_options().get("runspan_writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _original(error: Exception) -> Exception:
    return error.orig if isinstance(error, DBAPIError) and isinstance(error.orig, Exception) else error


def _lost_a_race(error: Exception) -> bool:
    original = _original(error)
    code = getattr(original, "sqlite_errorcode", None)
    if code is not None:
        return code & _PRIMARY_CODE in _SQLITE_BUSY
    return getattr(original, "sqlstate", None) in _POSTGRES_RETRY
