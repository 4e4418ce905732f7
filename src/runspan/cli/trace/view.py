"""``runspan trace view``: a run as a page in the browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from runspan._root import expand_user
from runspan.cli._options import EXIT_CODES, DirOption, StorageOption
from runspan.cli._output import format_bytes, note, say
from runspan.cli._references import named_file
from runspan.cli._workspace import Workspace
from runspan.cli.trace._target import TraceArgument, find_directory, find_trace_files, refuse_input
from runspan.tracefile.layout import TraceName

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["register"]

_PARTIAL = 1
_PAGE = "view.html"
#: One of these is set where a browser can show itself.
_DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("view", short_help="Show a run as a page in the browser.", epilog=EXIT_CODES)(_view)


def _view(
    trace: TraceArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write the page  [default: view.html in the run directory, or beside the trace file]",
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Write the page, and start no browser.")] = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Write a run as one HTML page, print where it is, and open it where there is a display.

    The page shows the waterfall over ranks, metric curves, step times, findings, captured steps and usage. It is one
    file of at most 32 MiB that needs no network. What it leaves out of a long run, it says. A trace without a first
    line is told of and left out; the exit code is then 1.
    """
    from runspan.export._sources import find_sources  # noqa: PLC0415 - a command loads what it needs
    from runspan.export.html import export_html  # noqa: PLC0415

    workspace = Workspace.resolve(storage, directory)
    path = named_file(trace)
    if path is not None:
        name = TraceName.parse(path.name)
        files, default = [path], path.with_name(f"{path.name if name is None else name.stem}.html")
    else:
        folder = find_directory(workspace, trace)
        files, default = find_trace_files(workspace, str(folder)), folder / _PAGE
    page = (expand_user(output) if output is not None else default).absolute()
    refuse_input(page, files)
    export_html(files, page)
    say(f"{page} ({format_bytes(page.stat().st_size)})")
    if not no_open and _has_display(os.environ):
        _open(page)
    problems = find_sources(files).problems
    for problem in problems:
        note(f"left out: {problem}")
    if problems:
        raise typer.Exit(_PARTIAL)


def _has_display(environ: Mapping[str, str]) -> bool:
    return sys.platform == "darwin" or any(environ.get(name) for name in _DISPLAYS)


def _open(page: Path) -> None:
    import webbrowser  # noqa: PLC0415 - looks for browsers when it is imported

    if not webbrowser.open(page.as_uri()):
        note(f"no browser could be started: open {page.as_uri()}")
