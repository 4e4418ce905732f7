from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from runspan import storage as storage_package
from runspan.errors import ConfigError, MissingExtraError, RunspanError, StorageError
from runspan.records import MetricPoint
from runspan.storage import ExperimentStorage, SqlStorage, open_storage
from runspan.storage import _database as database_module
from runspan.storage._database import Database, parse_url
from runspan.storage._schema import MIGRATIONS, migrate, stored_version
from runspan.storage.inspection import read_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

MOUNTS = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Open an empty SQLite database."""
    opened = Database(parse_url(tmp_path / "x.db"))
    yield opened
    opened.close()


def journal_mode(path: Path) -> str:
    """Ask SQLite for a file's journal mode."""
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()


def test_storage_package_imports_no_sqlalchemy() -> None:
    """The package and the in-memory backend load without SQLAlchemy, pandas or pyarrow."""
    code = "import runspan.storage, sys; print({'sqlalchemy', 'pandas', 'pyarrow', 'psycopg'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_storage_package_names_are_all_there() -> None:
    """Every public name resolves, is listed by dir(), and an unknown one is an AttributeError."""
    for name in storage_package.__all__:
        assert getattr(storage_package, name) is not None
        assert name in dir(storage_package)
    with pytest.raises(AttributeError, match="nonsense"):
        storage_package.nonsense  # noqa: B018 - the access is the test


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h:5/db", "postgresql+psycopg://u:p@h:5/db"),
        ("postgres://h/db", "postgresql+psycopg://h/db"),
        ("postgresql+psycopg://h/db?sslmode=require", "postgresql+psycopg://h/db?sslmode=require"),
        ("sqlite:////a/b.db", "sqlite+pysqlite:////a/b.db"),
        ("/a/b c.db", "sqlite+pysqlite:////a/b c.db"),
    ],
)
def test_urls_and_paths_are_understood(url: str, expected: str) -> None:
    """PostgreSQL URLs get the psycopg driver, and paths and SQLite URLs name a file."""
    assert parse_url(url).render_as_string(hide_password=False) == expected


def test_relative_path_is_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the present working directory for good, and ~ the home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given in ("x.db", "sqlite:///x.db"):
        assert parse_url(given).database == str(tmp_path / "x.db")
    assert parse_url("~/x.db").database == str(tmp_path / "home" / "x.db")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:s3cret@h/db", "'mysql'"),
        ("postgresql+asyncpg://u:s3cret@h/db", "asyncpg"),
        ("postgresql://u:s3cret@h:port/db", "cannot be parsed"),
        ("sqlite://", "InMemoryStorage"),
        (":memory:", "InMemoryStorage"),
        ("", "InMemoryStorage"),
        ("sqlite:///x.db?password=s3cret", "sqlite:///relative/path"),
        ("sqlite://host/x.db", "sqlite:///relative/path"),
    ],
)
def test_unusable_url_is_a_config_error_without_credentials(url: str, message: str) -> None:
    """A URL that cannot be used says what can, and never shows its password."""
    with pytest.raises(ConfigError, match=message) as caught:
        SqlStorage(url)
    assert "s3cret" not in str(caught.value)


def test_unreachable_postgres_shows_no_password() -> None:
    """A server that does not answer is a StorageError with host and database, and no password anywhere."""
    url = "postgresql://user:s3cret@127.0.0.1:9/db?application_name=x"
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9/db") as caught:
        SqlStorage(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in f"{error} {error!r}"
        error = error.__cause__


def test_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg a PostgreSQL URL says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'runspan\[postgres\]'"):
        SqlStorage("postgresql://h/db")


def test_repr_hides_the_password(tmp_path: Path) -> None:
    """The representation shows which database it is, and no credentials."""
    storage = SqlStorage(tmp_path / "x.db")
    assert repr(storage) == f"<SqlStorage experiment database {tmp_path / 'x.db'}>"
    storage.close()


def test_folders_above_the_file_are_created(tmp_path: Path) -> None:
    """A database in folders that do not exist yet is created with them."""
    path = tmp_path / "a" / "b" / "x.db"
    SqlStorage(path).close()
    assert path.is_file()


def write_bytes(path: Path, content: bytes) -> None:
    """Create a file."""
    path.write_bytes(content)


def create_table(path: Path) -> None:
    """Create another program's database."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (id INTEGER)")
    connection.close()


def create_newer(path: Path) -> None:
    """Create a database of a newer runspan."""
    SqlStorage(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE runspan_schema SET version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: path.mkdir(), "is no file"),
        (os.mkfifo, "is no file"),
        (lambda path: write_bytes(path, b"this is some text, and no database" * 100), "no SQLite database"),
        (create_table, "another program.*customers"),
        (create_newer, "schema version 99.*up to 1.*upgrade"),
    ],
    ids=["directory", "fifo", "text", "foreign", "newer"],
)
def test_file_that_is_no_runspan_database_is_refused(prepare: Any, message: str, tmp_path: Path) -> None:
    """What cannot be used is a StorageError that says what it is and what to do, and the file stays as it was."""
    path = tmp_path / "x.db"
    prepare(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StorageError, match=message):
        SqlStorage(path)
    if before is not None:
        assert path.read_bytes()[100:] == before[100:]


def test_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    """A path through a file is a StorageError naming the database."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"file/x\.db: its folder cannot be created"):
        SqlStorage(tmp_path / "file" / "x.db")


def test_damaged_database_says_how_to_rebuild_it(tmp_path: Path) -> None:
    """A database whose pages are overwritten is a StorageError that names the import."""
    path = tmp_path / "x.db"
    storage = SqlStorage(path)
    run = storage.create_run(storage.create_experiment("e"), "r")
    storage.log_metrics(run, [MetricPoint("m", step, 1.0, step) for step in range(50_000)])
    storage.close()
    content = bytearray(path.read_bytes())
    content[4096 * 20 :] = b"\xff" * (len(content) - 4096 * 20)
    path.write_bytes(content)
    storage = SqlStorage(path)
    with pytest.raises(StorageError, match=r"damaged.*runspan import"):
        storage.get_metrics(run, "m")
    storage.close()


def test_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """A file of no bytes, as mktemp makes it, is a new database."""
    path = tmp_path / "x.db"
    path.touch()
    storage = SqlStorage(path)
    assert storage.list_runs() == []
    storage.close()


def test_local_disk_uses_the_write_ahead_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On a local file system the write-ahead log is on, and nothing is said."""
    storage = SqlStorage(tmp_path / "x.db")
    assert (storage.is_single_file, storage.on_network_file_system) == (True, False)
    storage.close()
    assert journal_mode(tmp_path / "x.db") == "wal"
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_network_file_system_turns_the_write_ahead_log_off(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 25: on a network file system there is no write-ahead log, one warning, and everything works."""
    path = tmp_path / "x.db"
    SqlStorage(path).close()  # made on a local disk, and moved
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"{MOUNTS}30 21 0:5 / {tmp_path} rw - {kind} server:/export rw\n")
    storage = SqlStorage(path, mountinfo=mountinfo)
    assert storage.on_network_file_system
    run = storage.create_run(storage.create_experiment("e"), "r")
    storage.log_metric(run, "m", 0, 1.0)
    assert len(storage.get_metrics(run, "m")) == 1
    storage.close()
    assert journal_mode(path) == "delete"
    assert [(record.name, record.levelno) for record in caplog.records] == [("runspan", logging.WARNING)]
    assert kind in caplog.text


def test_default_database_is_in_the_root_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a URL the variable decides, else the root folder's experiments.db."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNSPAN_STORAGE", raising=False)
    monkeypatch.setenv("RUNSPAN_DIR", str(tmp_path / "root"))
    storage = open_storage()
    assert isinstance(storage, ExperimentStorage)
    storage.close()
    assert (tmp_path / "root" / "experiments.db").is_file()
    assert (tmp_path / "root" / ".gitignore").read_text() == "*\n"
    monkeypatch.setenv("RUNSPAN_STORAGE", str(tmp_path / "elsewhere.db"))
    open_storage().close()
    assert (tmp_path / "elsewhere.db").is_file()


@pytest.mark.parametrize("word", ["none", "OFF"])
def test_a_storage_that_is_turned_off_cannot_be_opened(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RUNSPAN_STORAGE=none is no database called none: opening it is an error that says what to give."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNSPAN_STORAGE", word)
    with pytest.raises(ConfigError, match="turned off by RUNSPAN_STORAGE"):
        open_storage()
    assert list(tmp_path.iterdir()) == []


def test_what_is_stored_is_there_when_opened_again(tmp_path: Path) -> None:
    """A database that is closed and opened again, or by two storages at once, has everything."""
    first, second = SqlStorage(tmp_path / "x.db"), SqlStorage(tmp_path / "x.db")
    run = first.create_run(first.create_experiment("e"), "r")
    first.log_metric(run, "m", 0, 1.0)
    second.log_metric(run, "m", 1, 2.0)
    first.log_metric(run, "m", 2, 3.0)
    first.close()
    second.close()
    third = SqlStorage(tmp_path / "x.db")
    assert [point.value for point in third.get_metrics(run, "m")] == [1.0, 2.0, 3.0]
    third.close()


def test_closed_storage_says_so(tmp_path: Path) -> None:
    """A call after close is a StorageError and opens nothing again."""
    storage = SqlStorage(tmp_path / "x.db")
    storage.close()
    with pytest.raises(StorageError, match="was closed"):
        storage.list_runs()


def test_run_deleted_and_created_by_another_process_gets_the_points(tmp_path: Path) -> None:
    """Series ids that a storage remembers of a deleted run are not used for a new run of the same id."""
    first, second = SqlStorage(tmp_path / "x.db"), SqlStorage(tmp_path / "x.db")
    run = first.create_run(first.create_experiment("e"), "r")
    first.log_metric(run, "m", 0, 1.0)
    second.delete_run(run)
    second.create_run(second.create_experiment("e"), "r")
    first.log_metric(run, "m", 1, 1.0)
    assert [point.step for point in second.get_metrics(run, "m")] == [1]
    first.close()
    second.close()


def test_failed_batch_leaves_no_series_behind(tmp_path: Path) -> None:
    """A key that was first seen in a batch that failed is created by the next batch."""
    storage = SqlStorage(tmp_path / "x.db")
    run = storage.create_run(storage.create_experiment("e"), "r")
    with pytest.raises(StorageError):
        storage.log_metrics(run, [MetricPoint("m", 0, 1.0, 0), MetricPoint("m", 2**63, 1.0, 0)])
    assert storage.metric_keys(run) == []
    storage.log_metric(run, "m", 1, 1.0)
    assert [point.step for point in storage.get_metrics(run, "m")] == [1]
    storage.close()


def test_many_runs_are_remembered_in_bounded_memory(tmp_path: Path) -> None:
    """A process that writes hundreds of runs keeps the series ids of a few."""
    storage = SqlStorage(tmp_path / "x.db")
    experiment = storage.create_experiment("e")
    for number in range(100):
        run = storage.create_run(experiment, f"r{number}")
        storage.log_metric(run, "m", 0, float(number))
    assert len(storage._series.get()) <= 32
    storage.log_metric("r0", "m", 1, 1.0)
    assert [point.value for point in storage.get_metrics("r0", "m")] == [0.0, 1.0]
    storage.close()


def test_batches_of_every_size_are_stored_whole(tmp_path: Path) -> None:
    """Batches below, at and above the rows of one INSERT keep each point and their order."""
    storage = SqlStorage(tmp_path / "x.db")
    run = storage.create_run(storage.create_experiment("e"), "r")
    for size in (1, 199, 200, 201, 400, 401):
        batch = [MetricPoint(f"size-{size}", 0, float(index), index) for index in range(size)]
        storage.log_metrics(run, batch)
        assert storage.get_metrics(run, f"size-{size}") == batch
    storage.close()


def test_locked_database_is_waited_for(tmp_path: Path) -> None:
    """Case 24: a writer waits while another program holds the database, and then succeeds."""
    path = tmp_path / "x.db"
    storage = SqlStorage(path)
    run = storage.create_run(storage.create_experiment("e"), "r")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    released = threading.Event()

    def release() -> None:
        released.set()
        other.execute("COMMIT")

    timer = threading.Timer(0.2, release)
    timer.start()
    storage.log_metric(run, "m", 0, 1.0)
    assert released.is_set()
    timer.join()
    other.close()
    storage.close()


def test_database_locked_for_ever_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is never let go of ends in a StorageError that says how long was waited, not 'database is locked'."""
    monkeypatch.setattr(database_module, "_LOCK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(database_module, "_STATEMENT_TIMEOUT_S", 0.01)
    path = tmp_path / "x.db"
    storage = SqlStorage(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="locked by another process for 0 s"):
        storage.create_experiment("e")
    other.close()
    storage.close()


@pytest.mark.parametrize("failure", [sqlite3.DatabaseError("broken"), OSError(5, "EIO"), OSError(116, "ESTALE")])
def test_whatever_breaks_below_is_a_storage_error(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 25: DatabaseError, EIO and ESTALE leave a method as StorageError, and the next call works."""
    storage = SqlStorage(tmp_path / "x.db")
    run = storage.create_run(storage.create_experiment("e"), "r")

    def fail(*_arguments: object) -> object:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("runspan.storage.sql.insert_points", fail)
        with pytest.raises(StorageError, match="experiment database"):
            storage.log_metric(run, "m", 0, 1.0)
    storage.log_metric(run, "m", 0, 1.0)
    storage.close()


def test_full_disk_is_a_storage_error_and_nothing_is_half_stored(tmp_path: Path) -> None:
    """A database that may not grow refuses a batch whole, and takes the next one when there is room again."""
    storage = SqlStorage(tmp_path / "x.db")
    run = storage.create_run(storage.create_experiment("e"), "r")
    batch = [MetricPoint("m", step, 1.0, step) for step in range(20_000)]
    pages = storage._database.read(lambda connection: connection.execute(text("PRAGMA page_count")).scalar_one())
    storage._database.read(lambda connection: connection.execute(text(f"PRAGMA max_page_count={pages + 5}")))
    with pytest.raises(StorageError, match="disk is full"):
        storage.log_metrics(run, batch)
    storage._database.read(lambda connection: connection.execute(text("PRAGMA max_page_count=100000")))
    storage.log_metrics(run, batch)
    assert storage.get_metrics(run, "m") == batch
    storage.close()


def add_column(connection: Connection) -> None:
    """Be a migration that changes a table."""
    connection.execute(text("ALTER TABLE runs ADD COLUMN colour TEXT"))
    connection.execute(text("CREATE TABLE extra (id INTEGER)"))


def break_down(connection: Connection) -> None:
    """Be a migration that changes a table and then fails."""
    connection.execute(text("ALTER TABLE runs ADD COLUMN half TEXT"))
    raise StorageError("the migration broke down")


def columns_of_runs(connection: Connection) -> list[str]:
    """List the columns of the runs table."""
    return [row[1] for row in connection.execute(text("PRAGMA table_info(runs)"))]


def test_migrations_run_once_in_order(database: Database) -> None:
    """An older database gets the steps that it lacks, and a second run does nothing."""
    database.write(migrate)
    assert database.read(stored_version) == len(MIGRATIONS)
    for _ in range(2):
        database.write(lambda connection: migrate(connection, [*MIGRATIONS, add_column]))
        assert database.read(stored_version) == len(MIGRATIONS) + 1
    assert database.read(columns_of_runs).count("colour") == 1


def test_failed_migration_changes_nothing(database: Database) -> None:
    """A migration that fails half-way leaves schema and version as they were."""
    database.write(migrate)
    before = database.read(columns_of_runs)
    with pytest.raises(RunspanError, match="broke down"):
        database.write(lambda connection: migrate(connection, [*MIGRATIONS, add_column, break_down]))
    assert database.read(columns_of_runs) == before
    assert database.read(stored_version) == len(MIGRATIONS)


@pytest.mark.parametrize("path", ["x" * 100_000, "/".join(["x" * 200] * 100)])
def test_a_path_that_no_file_system_takes_is_a_short_error(path: str) -> None:
    """The ConfigError shows the path's beginning and length, and nothing is created."""
    with pytest.raises(ConfigError, match=r"give a shorter path") as caught:
        SqlStorage(path)
    assert str(len(path)) in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_look_from_outside_names_another_programs_database(tmp_path: Path) -> None:
    """read_schema tells a database with foreign tables from an empty one; refusing it leaves every byte of it alone."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")  # makes it a database
    assert read_schema(path).version is None
    path = tmp_path / "y.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    before = path.read_bytes()
    for look in (read_schema, SqlStorage):
        with pytest.raises(StorageError, match=r"another program .*notes"):
            look(path)
    assert path.read_bytes() == before
