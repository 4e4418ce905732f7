"""``runspan trace merge``: a run directory as one file."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from runspan._root import expand_user
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, RunArgument, StorageOption
from runspan.cli._output import counted, note, open_console, print_json, say
from runspan.cli._workspace import Workspace
from runspan.cli.trace._reading import LenientOption  # noqa: TC001 - typer reads annotations
from runspan.cli.trace._target import find_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["register"]

_PARTIAL = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("merge", short_help="Write a run's ranks and attempts as one trace.", epilog=EXIT_CODES)(_merge)


def _merge(
    run: RunArgument,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to; gzipped where it ends with .gz.")
    ],
    lenient: LenientOption = False,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Write the traces of all ranks, attempts and captures as one JSONL file, in the order of time.

    The file is a trace itself. Each line after the first has a field `source` with the rank and attempt it is from; the
    meta and terminal events of the single traces are lines of kind source_meta and source_terminal. A file of the run
    that cannot be opened is told of and left out; the exit code is then 1.
    """
    from runspan.tracefile import read_run  # noqa: PLC0415 - a command loads what it needs
    from runspan.tracefile._merged_file import write_merged  # noqa: PLC0415

    found = read_run(find_directory(Workspace.resolve(storage, directory), run))
    target = expand_user(output)
    with _progress() as advance:
        count = write_merged(found, target, lenient=lenient, progress=advance)
    if json:
        print_json(
            {
                "output": str(target),
                "events": count,
                "traces": len(found.traces),
                "left_out": [str(problem.error) for problem in found.problems],
            }
        )
    else:
        say(f"{target}: {counted(count, 'event')} of {counted(len(found.traces), 'trace')}")
        for problem in found.problems:
            note(f"left out: {problem.error}")
    if found.skipped:
        note(f"{counted(found.skipped, 'line')} skipped")
    if found.problems:
        raise typer.Exit(_PARTIAL)


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Yield what to call with numbers of events; on a terminal's stderr they are shown while they grow."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} events"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("events", total=None)
        yield lambda count: shown.advance(task, count)
