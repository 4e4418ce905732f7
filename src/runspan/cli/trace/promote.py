"""``runspan trace promote``: make a good run the one that later runs are compared with."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from runspan._root import expand_user
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import counted, print_json, say
from runspan.cli._workspace import Workspace
from runspan.cli.trace._main_trace import find_main_trace
from runspan.cli.trace._target import TraceArgument, refuse_input

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("promote", short_help="Make a good run the golden one.", epilog=EXIT_CODES)(_promote)


def _promote(
    run: TraceArgument,
    *,
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="Where to; gzipped where it ends with .gz.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Copy the trace of a complete, successful run to PATH, as the golden trace.

    Of a run the newest attempt of rank 0 is taken. A run with the setting golden_trace_path (RUNSPAN_GOLDEN_TRACE_PATH)
    is compared with it when it succeeds: its `run` span and the metric runspan.golden.score have the score.
    """
    from runspan.tracefile._promote import promote  # noqa: PLC0415 - a command loads what it needs

    source = find_main_trace(Workspace.resolve(storage, directory), run)
    target = expand_user(to)
    refuse_input(target, [source])
    count = promote(source, target, overwrite=force)
    if json:
        print_json({"source": str(source), "golden_trace_path": str(target), "events": count})
    else:
        say(f"{target}: {counted(count, 'event')} of {source}")
