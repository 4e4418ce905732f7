"""``runspan rm``: remove one run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from runspan.cli._catalog import Catalog
from runspan.cli._options import EXIT_CODES, DirOption, RunArgument, StorageOption
from runspan.cli._output import clean, format_bytes, note, say
from runspan.cli._removal import directory_size, remove_run
from runspan.cli._workspace import Workspace
from runspan.errors import ConfigError, InvalidStateError

if TYPE_CHECKING:
    from runspan.cli._catalog import CatalogRun

__all__ = ["register"]

_DECLINED = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rm", short_help="Remove one run.", epilog=EXIT_CODES)(_rm)


def _rm(
    run: RunArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Remove a run that is still running, too.")] = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Remove a run: what storage has of it, and its run directory with the artifacts. Asks first."""
    workspace = Workspace.resolve(storage, directory)
    with workspace.reading() as opened:
        found = Catalog(workspace, opened).find(run)
        if found.is_running and not force:
            raise InvalidStateError(f"run {found.run_id} is still running: stop it first, or remove it with --force")
        if not yes:
            _ask(found, workspace)
        remove_run(found, opened)
    say(f"removed {clean(found.run_id)}")


def _ask(run: CatalogRun, workspace: Workspace) -> None:
    if not sys.stdin.isatty():
        raise ConfigError(f"removing run {run.run_id} must be confirmed, and there is no terminal to ask on: add --yes")
    parts = [f"its rows in {workspace.storage_description}"] if run.in_storage else []
    if run.directory is not None:
        parts.append(f"{run.directory} ({format_bytes(directory_size(run.directory))})")
    if not typer.confirm(clean(f"Remove run {run.run_id} ({run.experiment}, {run.status}): {' and '.join(parts)}?")):
        note("nothing was removed")
        raise typer.Exit(_DECLINED)
