"""Where the commands look: the root folder, the run directories, the storage."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runspan._env import EnvReader, means_none
from runspan._root import default_root, ensure_root, expand_user
from runspan.errors import ConfigError
from runspan.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from runspan.storage.sql import SqlStorage

__all__ = ["Workspace"]

_DATABASE = "experiments.db"


@dataclass(frozen=True, slots=True)
class Workspace:
    """What ``--dir``, ``--storage`` and the environment come to; nothing is created or opened by making one.

    Attributes:
        root: the root folder.
        trace_dir: the folder that holds the run directories.
        storage_url: a path or URL; None: there is to be no storage.
        storage_is_default: whether nobody has named the storage.
    """

    root: Path
    trace_dir: Path
    storage_url: str | None
    storage_is_default: bool

    @classmethod
    def resolve(cls, storage: str | None, root: Path | None, environ: Mapping[str, str] | None = None) -> Workspace:
        """Fill in what no option says.

        Args:
            storage: ``--storage``; None: ``RUNSPAN_STORAGE``, else ``experiments.db`` in the root folder.
            root: ``--dir``; None: ``RUNSPAN_DIR``, else where a Run would put it.
            environ: the variables; None: the process's.

        Raises:
            ConfigError: a path that is no folder, or a variable that cannot be used.
        """
        env = EnvReader(os.environ if environ is None else environ)
        if root is None:
            folder = default_root(environ)
            given_trace_dir = env.text("RUNSPAN_TRACE_DIR")
        else:
            folder, given_trace_dir = expand_user(root).absolute(), None
            if folder.exists() and not folder.is_dir():
                raise ConfigError(f"--dir {root} is not a folder: give the folder that runspan keeps its data in")
        trace_dir = folder / "runs"
        if given_trace_dir is not None and not means_none(given_trace_dir):
            trace_dir = expand_user(given_trace_dir, "RUNSPAN_TRACE_DIR").absolute()
        url = storage or env.text("RUNSPAN_STORAGE")
        if url is not None and means_none(url):
            return cls(folder, trace_dir, None, storage_is_default=False)
        return cls(folder, trace_dir, url or str(folder / _DATABASE), storage_is_default=url is None)

    @property
    def database_file(self) -> Path | None:
        """The SQLite file of the storage; None when it is elsewhere or nowhere.

        Raises:
            ConfigError: the storage URL cannot be used.
        """
        if self.storage_url is None:
            return None
        from runspan.storage.inspection import database_file  # noqa: PLC0415 - loads SQLAlchemy

        return database_file(self.storage_url)

    @property
    def storage_description(self) -> str:
        """The storage as people are told of it: no credentials."""
        if self.storage_url is None:
            return "no storage"
        return Redactor().redact_url(self.storage_url)

    @contextmanager
    def reading(self) -> Iterator[SqlStorage | None]:
        """Open the storage to look at it; None when there is none, and a SQLite file is not created for that.

        Raises:
            ConfigError: the storage URL cannot be used, or a database that somebody named does not exist.
            StorageError: it cannot be opened.
        """
        database = self.database_file
        if self.storage_url is None or (database is not None and not self._exists(database)):
            yield None
            return
        with self.writing() as storage:
            yield storage

    @contextmanager
    def writing(self) -> Iterator[SqlStorage]:
        """Open the storage, creating the database where it is missing.

        Raises:
            ConfigError: the storage URL cannot be used, or storage is turned off.
            StorageError: it cannot be opened.
        """
        from runspan.storage.sql import SqlStorage  # noqa: PLC0415 - loads SQLAlchemy

        if self.storage_url is None:
            raise ConfigError("storage is turned off by RUNSPAN_STORAGE: name one with --storage")
        if self.storage_is_default:
            ensure_root(self.root)
        storage = SqlStorage(self.storage_url)
        try:
            yield storage
        finally:
            storage.close()

    def _exists(self, database: Path) -> bool:
        if database.exists():
            return True
        if not self.storage_is_default:
            raise ConfigError(f"there is no experiment database {database}: check --storage or RUNSPAN_STORAGE")
        return False
