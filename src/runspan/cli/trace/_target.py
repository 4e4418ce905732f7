"""What a ``runspan trace`` command is about: a run directory, or one trace file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runspan.cli._catalog import Catalog
from runspan.errors import RunNotFoundError
from runspan.tracefile.layout import RunDirectory, TraceName

if TYPE_CHECKING:
    from runspan.cli._workspace import Workspace

__all__ = ["TraceArgument", "find_directory", "find_trace_files"]

TraceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace file, or a run: its id, the beginning of one, `latest`, or its directory.",
    ),
]


def find_directory(workspace: Workspace, reference: str) -> Path:
    """Return the directory of a run that has its files on this machine.

    Raises:
        RunNotFoundError: there is no such run, or its files are elsewhere.
        ConfigError: the reference is ambiguous.
    """
    path = Path(reference).expanduser()
    if path.is_dir() and RunDirectory(path).trace_files():
        return path
    with workspace.reading() as storage:
        run = Catalog(workspace, storage).find(reference)
    if run.directory is None:
        raise RunNotFoundError(f"run {run.run_id!r} has no files on this machine: give its run directory")
    return run.directory


def find_trace_files(workspace: Workspace, reference: str) -> list[Path]:
    """Return the first part of each trace that a reference means: one for a file; a run's in order of rank and attempt.

    Raises:
        RunNotFoundError: there is no such file and no such run.
        ConfigError: the reference is ambiguous.
    """
    path = Path(reference).expanduser()
    if path.is_file():
        return [path]
    first_parts: dict[TraceName, Path] = {}
    for name, file in RunDirectory(find_directory(workspace, reference)).trace_files():
        first_parts.setdefault(TraceName(name.rank, name.attempt, name.child), file)
    return list(first_parts.values())
