"""``runspan doctor``: would a run that is started here and now work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import clean, open_console, print_json, say
from runspan.cli._workspace import Workspace

if TYPE_CHECKING:
    from runspan.cli._checks import Check

__all__ = ["register"]

_PROBLEM_FOUND = 1
_STYLES = {"ok": "green", "note": "yellow", "problem": "red"}
_NAME_WIDTH = 16


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", short_help="Check whether a run would work here.", epilog=EXIT_CODES)(_doctor)


def _doctor(*, json: JsonOption = False, storage: StorageOption = None, directory: DirOption = None) -> None:
    """Say what a run started here would find: launcher, folders, storage, OTLP endpoints, extras, clocks.

    Connects to the storage and the endpoints, and changes nothing. The exit code is 1 when there is a problem.
    """
    from runspan.cli._checks import CheckState, all_checks  # noqa: PLC0415 - loads the configuration and multiprocessing

    checks = list(all_checks(Workspace.resolve(storage, directory), os.environ))
    if json:
        print_json(checks)
    else:
        _print(checks)
    if any(check.state is CheckState.PROBLEM for check in checks):
        raise typer.Exit(_PROBLEM_FOUND)


def _print(checks: list[Check]) -> None:
    from rich.table import Table  # noqa: PLC0415 - only who prints loads rich
    from rich.text import Text  # noqa: PLC0415

    console = open_console()
    if not console.is_terminal:
        for check in checks:
            advice = "" if check.advice is None else f" ({check.advice})"
            say(clean(f"{check.state:<8} {check.name:<{_NAME_WIDTH}} {check.found}{advice}"))
        return
    table = Table.grid(padding=(0, 1))
    for check in checks:
        text = Text(clean(check.found))
        if check.advice is not None:
            text.append(f"\n{clean(check.advice)}", style="dim")
        table.add_row(Text(check.state, style=_STYLES[check.state]), Text(check.name), text)
    console.print(table)
