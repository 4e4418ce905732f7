"""``runspan runs``: the list of runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from runspan.cli._catalog import INTERRUPTED, Catalog
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import Column, format_age, format_duration, note, open_console, print_json, print_rows
from runspan.cli._workspace import Workspace
from runspan.errors import ConfigError
from runspan.records import RunStatus

if TYPE_CHECKING:
    from runspan.cli._catalog import CatalogRun

__all__ = ["register"]

_STATUSES = (*RunStatus, INTERRUPTED)
_COLUMNS = (
    Column("RUN", whole=True),
    Column("EXPERIMENT", shrinks=True),
    Column("STATUS"),
    Column("RANKS", right=True),
    Column("AGE", right=True),
    Column("TOOK", right=True),
)
_STATUS_COLUMN = 2


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("runs", short_help="List runs, newest first.", epilog=EXIT_CODES)(_runs)


def _runs(
    *,
    experiment: Annotated[str | None, typer.Option(metavar="NAME", help="Only this experiment's (name or id).")] = None,
    status: Annotated[
        list[str] | None, typer.Option(metavar="STATUS", help=f"Only these: {', '.join(_STATUSES)}. Repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="At most so many, the newest.")] = None,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """List the runs in storage and in the run directories, newest first.

    A run that was killed shows as interrupted: its trace files have no end, and have not grown for three heartbeats.
    """
    unknown = sorted(set(status or ()) - set(_STATUSES))
    if unknown:
        raise ConfigError(f"--status {unknown[0]} is not known: it takes one of {', '.join(_STATUSES)}")
    workspace = Workspace.resolve(storage, directory)
    with workspace.reading() as opened:
        catalog = Catalog(workspace, opened)
        found = catalog.runs()
    for problem in catalog.problems:
        note(" ".join(problem.split()))
    found = [
        run
        for run in found
        if (not status or run.status in status) and experiment in {None, run.experiment, run.info.experiment_id}
    ][:limit]
    if json:
        print_json([run.document() for run in found])
        return
    if not found:
        note(f"no runs in {workspace.root}" + (" that match" if experiment or status else ""))
        return
    now = time.time_ns()
    print_rows(open_console(), _COLUMNS, [_row(run, now) for run in found], status_column=_STATUS_COLUMN)


def _row(run: CatalogRun, now_unix_nano: int) -> list[str]:
    info = run.info
    age = "-" if info.start_time is None else format_age(info.start_time, now_unix_nano)
    took_ns = run.took_ns(now_unix_nano)
    took = "-" if took_ns is None else format_duration(took_ns)
    experiment = run.experiment if info.name is None else f"{run.experiment} / {info.name}"
    return [run.run_id, experiment, run.status, str(info.world_size), age, took]
