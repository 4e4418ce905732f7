"""``runspan gc``: remove old runs."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from runspan.cli._catalog import Catalog
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import Column, counted, format_age, format_bytes, note, open_console, print_json, print_rows
from runspan.cli._removal import directory_size, remove_run
from runspan.cli._workspace import Workspace
from runspan.errors import ConfigError, RunspanError

if TYPE_CHECKING:
    from runspan.cli._catalog import CatalogRun

__all__ = ["register"]

_PARTIAL = 1
_AGE = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_NS_PER_S = 1_000_000_000
_COLUMNS = (
    Column("RUN", whole=True),
    Column("EXPERIMENT", shrinks=True),
    Column("STATUS"),
    Column("AGE", right=True),
    Column("SIZE", right=True),
)
_STATUS_COLUMN = 2


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gc", short_help="Remove old runs.", epilog=EXIT_CODES)(_gc)


def _gc(
    *,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Runs that ended, or were last seen, longer ago: 12h, 30d, 8w.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove them; without it they are only listed.")] = False,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """List the runs that are older than an age, and with --yes remove them. A running run is never among them.

    One that cannot be removed does not stop the others; the exit code is then 1.
    """
    now = time.time_ns()
    limit_unix_nano = now - _parse_age(older_than) * _NS_PER_S
    workspace = Workspace.resolve(storage, directory)
    removed: list[str] = []
    with workspace.reading() as opened:
        old = [run for run in Catalog(workspace, opened).runs() if _is_older(run, limit_unix_nano)]
        sizes = [directory_size(run.directory) for run in old]
        if not json:
            _print(old, sizes, now, is_removing=yes)
        for run in old if yes else []:
            try:
                remove_run(run, opened)
                removed.append(run.run_id)
            except RunspanError as error:
                note(f"not removed: {run.run_id}: {error}")
    if json:
        found = [
            {"run_id": run.run_id, "status": run.status, "bytes": size} for run, size in zip(old, sizes, strict=True)
        ]
        print_json({"runs": found, "removed": removed})
    if yes and len(removed) < len(old):
        raise typer.Exit(_PARTIAL)


def _parse_age(text: str) -> int:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--older-than {text!r} cannot be used: it takes a number and a unit, such as 12h, 30d or 8w")
    return int(match[1]) * _UNIT_S[match[2]]


def _is_older(run: CatalogRun, limit_unix_nano: int) -> bool:
    last = run.last_time_unix_nano
    return not run.is_running and last is not None and last < limit_unix_nano


def _print(old: list[CatalogRun], sizes: list[int], now_unix_nano: int, *, is_removing: bool) -> None:
    if not old:
        note("no run is that old")
        return
    rows = [
        [
            run.run_id,
            run.experiment,
            run.status,
            format_age(run.last_time_unix_nano or 0, now_unix_nano),
            format_bytes(size),
        ]
        for run, size in zip(old, sizes, strict=True)
    ]
    print_rows(open_console(), _COLUMNS, rows, status_column=_STATUS_COLUMN)
    total = f"{counted(len(old), 'run')}, {format_bytes(sum(sizes))}"
    note(f"removing {total}" if is_removing else f"{total} would be removed: add --yes")
