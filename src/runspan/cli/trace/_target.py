"""What a ``runspan trace`` command is about: a run directory, or one trace file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runspan.cli._catalog import Catalog
from runspan.cli._references import named_file, named_folder
from runspan.errors import ConfigError, RunNotFoundError
from runspan.tracefile.layout import RunDirectory, TraceName, first_parts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from runspan.cli._workspace import Workspace

__all__ = ["TraceArgument", "find_directory", "find_trace_files", "refuse_input"]

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
        TraceFormatError: a folder of it cannot be listed.
    """
    folder = named_folder(reference)
    if folder is not None:
        RunDirectory(folder).check_readable()
        if RunDirectory(folder).trace_files():
            return folder
    with workspace.reading() as storage:
        run = Catalog(workspace, storage).find(reference)
    if run.directory is None:
        raise RunNotFoundError(f"run {run.run_id!r} has no files on this machine: give its run directory")
    RunDirectory(run.directory).check_readable()
    return run.directory


def find_trace_files(workspace: Workspace, reference: str) -> list[Path]:
    """Return the first part of each trace that a reference means: one for a file; a run's in order of rank and attempt.

    Raises:
        RunNotFoundError: there is no such file and no such run.
        ConfigError: the reference is ambiguous.
    """
    file = named_file(reference)
    if file is not None:
        return [file]
    files = RunDirectory(find_directory(workspace, reference)).trace_files()
    return [path for _, path in first_parts(files)]


def refuse_input(output: Path, traces: Iterable[Path]) -> None:
    """Refuse an output that would take the place of a trace that it is made of, or of another part or capture of it.

    Raises:
        ConfigError: it would.
    """
    if not output.exists():
        return
    place = output.resolve()
    is_trace = TraceName.parse(place.name) is not None
    for trace in traces:
        source = trace.resolve()
        if place == source or (is_trace and place.is_relative_to(source.parent)):
            raise ConfigError(f"{output} is one of the traces that are read: give another path")
