"""Where experiments and runs are kept: the protocol and its backends.

``SqlStorage`` loads SQLAlchemy, so it is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runspan.storage.base import ArtifactRecord, ExperimentInfo, ExperimentStorage
from runspan.storage.memory import InMemoryStorage

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.storage.frames import read_metrics
    from runspan.storage.sql import SqlStorage

__all__ = [
    "ArtifactRecord",
    "ExperimentInfo",
    "ExperimentStorage",
    "InMemoryStorage",
    "SqlStorage",
    "open_storage",
    "read_metrics",
]


def open_storage(url: str | Path | None = None) -> SqlStorage:
    """Open an experiment database, creating it where it is missing.

    Args:
        url: a file path or ``sqlite:///path`` for SQLite, ``postgresql://user:password@host/database`` for PostgreSQL;
            None: the variable ``RUNSPAN_STORAGE``, else ``experiments.db`` in the root folder.

    Raises:
        ConfigError: the URL cannot be used.
        StorageError: the database cannot be opened, or a newer version of runspan wrote it.
        MissingExtraError: PostgreSQL's driver is not installed.
    """
    from runspan.storage.sql import SqlStorage  # noqa: PLC0415 - loads SQLAlchemy

    return SqlStorage(url)


def __getattr__(name: str) -> Any:
    if name == "SqlStorage":
        from runspan.storage.sql import SqlStorage  # noqa: PLC0415 - loads SQLAlchemy

        return SqlStorage
    if name == "read_metrics":
        from runspan.storage.frames import read_metrics  # noqa: PLC0415 - opens databases

        return read_metrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
