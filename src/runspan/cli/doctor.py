"""``runspan doctor``: would a run that is started here and now work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from runspan.cli._checklist import report
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._workspace import Workspace

if TYPE_CHECKING:
    import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", short_help="Check whether a run would work here.", epilog=EXIT_CODES)(_doctor)


def _doctor(*, json: JsonOption = False, storage: StorageOption = None, directory: DirOption = None) -> None:
    """Say what a run started here would find: launcher, folders, storage, OTLP endpoints, extras, clocks.

    Connects to the storage and the endpoints, and changes nothing. The exit code is 1 when there is a problem.
    """
    from runspan.cli._checks import all_checks  # noqa: PLC0415 - loads the configuration and multiprocessing

    report(all_checks(Workspace.resolve(storage, directory), os.environ), json=json)
