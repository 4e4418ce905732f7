"""Parquet: a run's metrics, steps, spans and usage as files that DuckDB, Spark and Polars read.

The output is a folder with ``metrics.parquet``, ``steps.parquet``, ``spans.parquet`` and ``usage.parquet``, whose
columns are those of :mod:`runspan.export.database`. Times are integers, of ns: not every reader takes timestamps as
fine as that.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runspan.errors import ConfigError, TraceFormatError
from runspan.export._sources import find_sources
from runspan.export.database import TABLES, create_database

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["export_parquet"]

_FILES = frozenset(f"{table}.parquet" for table in TABLES)


def export_parquet(traces: Sequence[Path], output: Path) -> None:
    """Write the tables of traces as Parquet files, row group by row group: memory does not grow with the traces.

    Args:
        traces: the first part of each trace file.
        output: the folder, which takes its name when all is written; one of an earlier export is replaced.

    Raises:
        TraceFormatError: no trace can be opened, or one breaks the format.
        ConfigError: the output cannot be written, or is there and not an earlier export.
        MissingExtraError: DuckDB is not installed.
    """
    output = Path(os.path.realpath(output))  # a symbolic link stays, and its folder is replaced
    if output.exists():
        _refuse_foreign(output)
    sources = find_sources(traces)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        with create_database(sources) as database:
            database.load(TABLES)
            if database.unreadable or len(database.problems) > len(sources.problems):
                raise TraceFormatError(_damage(database.unreadable, database.problems[len(sources.problems) :]))
            for table in TABLES:
                database.write_parquet(table, temporary / f"{table}.parquet")
        _put_in_place(temporary, output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written ({error.strerror or error}): give another path") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _refuse_foreign(output: Path) -> None:
    """Refuse to replace what is no earlier export: the folder is removed as a whole."""
    if not output.is_dir() or {path.name for path in output.iterdir()} - _FILES:
        raise ConfigError(f"{output} is there and is no earlier Parquet export: give another path, or remove it first")
    if output.samefile(Path.cwd()):
        raise ConfigError(f"{output} is the working directory, which cannot be replaced: give a new folder's path")


def _damage(unreadable: int, problems: Sequence[str]) -> str:
    found = [f"{unreadable} lines cannot be read"] if unreadable else []
    return f"{'; '.join([*found, *problems])}: `runspan trace health` with the file says where"


def _put_in_place(temporary: Path, output: Path) -> None:
    if output.exists():
        older = temporary.with_suffix(".old")
        output.rename(older)
        try:
            temporary.rename(output)
        except OSError:
            older.rename(output)
            raise
        with suppress(OSError):
            shutil.rmtree(older)
    else:
        temporary.rename(output)
