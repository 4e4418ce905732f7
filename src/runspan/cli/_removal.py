"""Removing runs: the storage's rows and the run directory."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from runspan.errors import ConfigError
from runspan.tracefile.layout import RunDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.cli._catalog import CatalogRun
    from runspan.storage.base import ExperimentStorage

__all__ = ["directory_size", "remove_run"]


def remove_run(run: CatalogRun, storage: ExperimentStorage | None) -> None:
    """Remove a run's directory, then what storage has of it: what fails half-way can be removed again.

    Raises:
        ConfigError: the directory cannot be removed.
        StorageError: the storage cannot be written.
    """
    if run.directory is not None:
        _remove_directory(run.directory)
    if run.in_storage and storage is not None:
        storage.delete_run(run.run_id)


def _remove_directory(directory: Path) -> None:
    if directory.is_symlink():
        raise ConfigError(f"{directory} is a symbolic link: remove the link and what it points to yourself")
    try:
        is_foreign = not RunDirectory(directory).trace_files() and any(directory.iterdir())
        if not is_foreign:
            shutil.rmtree(directory)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be removed ({error.strerror}): check its permissions") from error
    if is_foreign:
        raise ConfigError(f"{directory} holds no trace file and is left alone: look at it and remove it yourself")


def directory_size(directory: Path | None) -> int:
    """Return how many bytes the files of a run directory have; what cannot be looked at does not count."""
    if directory is None:
        return 0
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:  # removed meanwhile, or not ours to see
            continue
    return total
