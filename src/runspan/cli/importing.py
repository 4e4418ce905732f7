"""``runspan import``: run directories into storage."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from runspan._root import expand_user
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import counted, note, open_console, print_json, say
from runspan.cli._workspace import Workspace
from runspan.tracefile.layout import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["register"]

_PARTIAL = 1
_UNUSABLE = 2


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import", short_help="Bring run directories into storage.", epilog=EXIT_CODES)(_import)


def _import(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, or a folder of run directories.")],
    *,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Bring run directories into storage: what a live run could not write, or what another machine recorded.

    Importing twice adds nothing twice. A broken run directory does not stop the others; the exit code is then 1, and 2
    where none could be imported.
    """
    from runspan.importer import import_runs  # noqa: PLC0415 - a command loads what it needs

    workspace = Workspace.resolve(storage, directory)
    path = expand_user(path)
    with workspace.writing() as opened, _progress(path) as advance:
        summary = import_runs(path, opened, progress=advance)
    if json:
        print_json(summary)
    else:
        for report in summary.reports:
            say(
                f"{report.run_id}: {counted(report.points_added, 'point')} added, {report.points_known} known,"
                f" {counted(report.traces, 'trace')} read"
            )
            for warning in report.warnings:
                note(warning)
        for failure in summary.failures:
            note(f"not imported: {failure.error}")
    if summary.failures:
        raise typer.Exit(_PARTIAL if summary.reports else _UNUSABLE)


@contextmanager
def _progress(path: Path) -> Iterator[Callable[[Path], None]]:
    """Yield what to call before each trace; on a terminal's stderr it moves a bar."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("traces"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("traces", total=_count_traces(path))
        yield lambda _: bar.advance(task)


def _count_traces(path: Path) -> int:
    folders = [path, *(folder for folder in path.iterdir() if folder.is_dir())] if path.is_dir() else []
    return sum(len({name.stem for name, _ in RunDirectory(folder).trace_files()}) for folder in folders)
