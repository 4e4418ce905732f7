"""A run's traces as tables of a database that answers SQL: ``metrics``, ``steps``, ``spans``, ``usage``, ``traces``.

Every column has one type. Rows are of all ranks, attempts and child processes; ``rank``, ``attempt`` and ``child`` tell
whose. Times end in ``_ns`` (durations, or counted from the trace's start) or are ``time_unix_nano`` (the wall clock).
What a trace does not tell is NULL; NaN and infinite values are the floats that they are.
"""

from __future__ import annotations

import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runspan._plain import scrub_text
from runspan.errors import ConfigError, MissingExtraError
from runspan.export._rows import RowWriter
from runspan.tracefile.steptimes import COLLECTIVE_PHASES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import ModuleType

    import duckdb

    from runspan.export._sources import Source, Sources

__all__ = ["TABLES", "Answer", "RunDatabase", "create_database"]

#: What says whose a row is.
_OWNER = {"run_id": "VARCHAR", "rank": "BIGINT", "attempt": "BIGINT", "child": "VARCHAR"}
#: The columns of each table, apart from whose a row is, as they stand in the lines that are loaded.
_COLUMNS: dict[str, dict[str, str]] = {
    "metrics": {"key": "VARCHAR", "step": "BIGINT", "value": "DOUBLE", "time_unix_nano": "BIGINT"},
    "steps": {
        "step": "BIGINT",
        "duration_ns": "BIGINT",
        "data_ns": "BIGINT",
        "phases": "MAP(VARCHAR, BIGINT)",
        "samples": "BIGINT",
        "tokens": "BIGINT",
        "total": "BIGINT",
        "time_unix_nano": "BIGINT",
    },
    "spans": {
        "span_id": "VARCHAR",
        "parent_id": "VARCHAR",
        "trace_id": "VARCHAR",
        "name": "VARCHAR",
        "span_kind": "VARCHAR",
        "step_phase": "VARCHAR",
        "measured": "BOOLEAN",
        "start_ns": "BIGINT",
        "time_unix_nano": "BIGINT",
        "duration_ns": "BIGINT",
        "status": "VARCHAR",
        "status_message": "VARCHAR",
        "attributes": "VARCHAR",
    },
    "usage": {
        "timestamp_ns": "BIGINT",
        "time_unix_nano": "BIGINT",
        "gpu_util": "DOUBLE",
        "cpu_util": "DOUBLE",
        "memory_used": "BIGINT",
        "memory_total": "BIGINT",
        "gpu_memory_used": "BIGINT",
        "gpu_memory_total": "BIGINT",
    },
}
#: The tables that are made of a trace's lines.
TABLES = tuple(_COLUMNS)
_WAITED = " + ".join(f"coalesce(map_extract(phases, '{phase}')[1], 0)" for phase in sorted(COLLECTIVE_PHASES))
#: What a table has beside its lines' columns and their owner: an expression, and its type.
_DERIVED: dict[str, dict[str, tuple[str, str]]] = {
    # The time without what a rank spends waiting for the others.
    "steps": {
        "own_ns": (f"greatest(0, duration_ns - ({_WAITED}))", "BIGINT"),
        "superseded": ("false", "BOOLEAN"),
    },
    "metrics": {"superseded": ("false", "BOOLEAN")},
    "spans": {"capture": ("_traces.capture", "VARCHAR")},
}
_TRACE_COLUMNS = {
    **_OWNER,
    "capture": "VARCHAR",
    "world_size": "BIGINT",
    "host": "VARCHAR",
    "pid": "BIGINT",
    "entrypoint": "VARCHAR",
    "phase": "VARCHAR",
    "trace_id": "VARCHAR",
    "time_unix_nano": "BIGINT",
    "path": "VARCHAR",
}
#: What a later attempt takes the place of: per rank (and key) an attempt's first step, and all from there on.
_SERIES = {"metrics": "rank, key", "steps": "rank"}
_TRACE_NUMBER = {"_trace": "BIGINT"}
#: As long as a line of a trace file can be; only a span's attributes are ever long.
_MAX_ROW_BYTES = 64 << 20
_MEMORY_LIMIT = "1GB"
_FETCHED_ROWS = 1024


class Answer(msgspec.Struct, frozen=True):
    """What a query returns.

    Attributes:
        columns: the names of its columns.
        rows: its rows, which are fetched as they are iterated, once.
    """

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


class RunDatabase:
    """The tables of a run in a database of its own on disk, gone when it is closed; made by :func:`create_database`.

    Attributes:
        unreadable: how many lines of the loaded tables could not be read.
        problems: which traces could not be read, or not to their end.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path, sources: Sources) -> None:
        self.unreadable = 0
        self.problems = list(sources.problems)
        self._connection = connection
        self._folder = folder
        self._sources = sources
        _create_tables(connection)

    def load(self, tables: Collection[str]) -> None:
        """Fill these tables and ``traces``; memory does not grow with the traces.

        Args:
            tables: some of :data:`TABLES`.
        """
        self._load_traces()
        paths = {table: self._folder / f"{table}.jsonl" for table in tables}
        with ExitStack() as opened:
            files = {table: opened.enter_context(path.open("wb")) for table, path in paths.items()}
            writer = RowWriter(files)
            for number, source in enumerate(self._sources.traces):
                writer.add(number, source)
        self.unreadable += writer.unreadable
        self.problems += dict.fromkeys(writer.problems)
        for table, path in paths.items():
            self._load_lines(table, path)
            path.unlink()
        if any(source.attempt for source in self._sources.traces):
            for table in _SERIES.keys() & paths.keys():
                self._mark_superseded(table)

    def write_parquet(self, table: str, output: Path) -> None:
        """Write a loaded table as a Parquet file, a row group at a time."""
        path = str(output).replace("'", "''")  # not every version takes it as a parameter
        self._connection.execute(f"COPY {table} TO '{path}' (FORMAT parquet, COMPRESSION zstd)")

    def ask(self, sql: str) -> Answer:
        """Answer one query; the tables that it names are loaded first.

        It reaches nothing but the tables: no file, no network, no extension and no setting.

        Args:
            sql: one statement of DuckDB's SQL that asks.

        Raises:
            ConfigError: it is no such statement, or fails.
        """
        _check(sql)
        self.load([table for table in TABLES if _mentions(sql, table)])
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        with _errors_explained():
            self._execute_until_interrupted(sql)
        columns = tuple(str(column[0]) for column in self._connection.description or ())
        return Answer(columns, self._fetched())

    def _execute_until_interrupted(self, sql: str) -> None:
        """Execute in another thread: DuckDB, while it is busy, may not look for long whether Ctrl-C was pressed."""
        with ThreadPoolExecutor(max_workers=1) as other_thread:
            executed = other_thread.submit(self._connection.execute, sql)
            try:
                executed.result()
            except KeyboardInterrupt:
                self._connection.interrupt()
                raise

    def _fetched(self) -> Iterator[tuple[Any, ...]]:
        with _errors_explained():
            while rows := self._connection.fetchmany(_FETCHED_ROWS):
                yield from rows

    def _load_traces(self) -> None:
        path = self._folder / "traces.jsonl"
        with path.open("wb") as file:
            for number, source in enumerate(self._sources.traces):
                file.write(msgspec.json.encode({"_trace": number, **_trace_row(source)}) + b"\n")
        query = f"INSERT INTO _traces FROM {_lines({**_TRACE_NUMBER, **_TRACE_COLUMNS})}"
        self._connection.execute(query, [str(path)])

    def _load_lines(self, table: str, path: Path) -> None:
        columns = _COLUMNS[table]
        selected = [
            *(f"_traces.{name}" for name in _OWNER),
            *(f"lines.{name}" for name in columns),
            *(expression for expression, _ in _DERIVED.get(table, {}).values()),
        ]
        source = f"{_lines({**_TRACE_NUMBER, **columns})} AS lines JOIN _traces USING (_trace)"
        query = f"INSERT INTO {table} SELECT {', '.join(selected)} FROM {source}"  # noqa: S608 - of our own names
        self._connection.execute(query, [str(path)])

    def _mark_superseded(self, table: str) -> None:
        series = _SERIES[table]
        self._connection.execute(
            f"""
            WITH firsts AS (SELECT {series}, attempt, min(step) AS first FROM {table} GROUP BY ALL),
            later AS (
                SELECT {series}, attempt, min(first) OVER (
                    PARTITION BY {series} ORDER BY attempt ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
                ) AS first FROM firsts
            )
            UPDATE {table} SET superseded = true FROM later
            WHERE {" AND ".join(f"{table}.{name} = later.{name}" for name in (*series.split(", "), "attempt"))}
            AND {table}.step >= later.first
            """  # noqa: S608 - of our own names
        )


@contextmanager
def create_database(sources: Sources) -> Iterator[RunDatabase]:
    """Make a database of these traces whose tables are empty until they are loaded.

    Raises:
        MissingExtraError: DuckDB is not installed.
        OSError: the folder for temporary files, or what the database is told to write, is on a full or read-only disk.
    """
    duckdb = _duckdb()
    with tempfile.TemporaryDirectory(prefix="runspan-sql-") as name, _disk_errors():
        folder = Path(name)
        connection = duckdb.connect(
            str(folder / "run.duckdb"),
            config={"memory_limit": _MEMORY_LIMIT, "temp_directory": str(folder / "spilled")},
        )
        try:
            yield RunDatabase(connection, folder, sources)
        finally:
            connection.close()


def _duckdb() -> ModuleType:
    try:
        import duckdb  # noqa: PLC0415 - an optional dependency, and heavy
    except ImportError:
        raise MissingExtraError("a query in SQL or an export to Parquet", "sql") from None
    return duckdb


def _check(sql: str) -> None:
    """Refuse what cannot be answered before anything is loaded: by the plan for empty tables, in a closed database."""
    duckdb = _duckdb()
    with duckdb.connect(":memory:", config={"enable_external_access": False}) as connection:
        _create_tables(connection)
        connection.execute("SET lock_configuration = true")
        with _errors_explained():
            statements = connection.extract_statements(sql)
            kinds = [statement.type for statement in statements]
            if len(kinds) != 1 or kinds[0] not in {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}:
                raise ConfigError("give one statement that asks, such as SELECT, FROM, SUMMARIZE or DESCRIBE")
            if kinds[0] == duckdb.StatementType.SELECT:
                connection.execute(f"EXPLAIN {sql}")


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Let what the database says of a full or read-only disk be the operating system's kind of error."""
    try:
        yield
    except _duckdb().IOException as error:
        full = "No space left on device"  # its own words go on for lines, some of them JSON
        raise OSError(full if full in str(error) else str(error).partition("\n")[0]) from error


@contextmanager
def _errors_explained() -> Iterator[None]:
    try:
        yield
    except _duckdb().Error as error:
        reason = str(error).partition("\nLINE ")[0].rstrip()
        raise ConfigError(
            f"the query cannot be answered: {reason}; its tables are {', '.join((*TABLES, 'traces'))}"
        ) from None


def _mentions(sql: str, table: str) -> bool:
    """Whether a query may read a table: it names it, or has a function that takes tables' names as texts."""
    return re.search(rf"\b(?:{table}|query|query_table)\b", sql, re.IGNORECASE) is not None


def _create_tables(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(f"CREATE TABLE _traces ({_definitions({**_TRACE_NUMBER, **_TRACE_COLUMNS})})")
    connection.execute("CREATE VIEW traces AS SELECT * EXCLUDE (_trace) FROM _traces")
    for table, columns in _COLUMNS.items():
        derived = {name: of_type for name, (_, of_type) in _DERIVED.get(table, {}).items()}
        connection.execute(f"CREATE TABLE {table} ({_definitions({**_OWNER, **columns, **derived})})")


def _trace_row(source: Source) -> dict[str, Any]:
    meta, process = source.meta, source.meta.process
    return {
        "run_id": scrub_text(meta.run_id),
        "rank": process.rank,
        "attempt": process.attempt,
        "child": source.child,
        "capture": source.capture,
        "world_size": process.world_size,
        "host": process.host,
        "pid": process.pid,
        "entrypoint": meta.entrypoint,
        "phase": str(meta.phase),
        "trace_id": meta.trace_id,
        "time_unix_nano": meta.time_unix_nano,
        "path": scrub_text(str(source.path)),
    }


def _definitions(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {of_type}" for name, of_type in columns.items())


def _lines(columns: dict[str, str]) -> str:
    """Return the table function that reads a file of JSON lines."""
    types = ", ".join(f"{name}: '{of_type}'" for name, of_type in columns.items())
    limit = f"maximum_object_size = {_MAX_ROW_BYTES}, " if "attributes" in columns else ""
    return f"read_json(?, format = 'newline_delimited', {limit}columns = {{{types}}})"
