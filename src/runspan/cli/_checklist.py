"""Findings as the commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from runspan.cli._output import clean, open_console, print_json, say
from runspan.stack.findings import CheckState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runspan.stack.findings import Check

__all__ = ["report"]

_PROBLEM_FOUND = 1
_STYLES = {"ok": "green", "note": "yellow", "problem": "red"}
_NAME_WIDTH = 17


def report(checks: Iterable[Check], *, json: bool) -> None:
    """Print findings: a table on a terminal, else a line each, as soon as it is known.

    Args:
        checks: the findings.
        json: print one JSON document instead.

    Raises:
        typer.Exit: with 1 when one of them is a problem.
    """
    found = []
    console = open_console()
    as_lines = not json and not console.is_terminal
    for check in checks:
        found.append(check)
        if as_lines:
            advice = "" if check.advice is None else f" ({check.advice})"
            say(clean(f"{check.state:<8} {check.name:<{_NAME_WIDTH}} {check.found}{advice}"))
    if json:
        print_json(found)
    elif not as_lines:
        _print_table(found)
    if any(check.state is CheckState.PROBLEM for check in found):
        raise typer.Exit(_PROBLEM_FOUND)


def _print_table(checks: list[Check]) -> None:
    from rich.table import Table  # noqa: PLC0415 - only who prints loads rich
    from rich.text import Text  # noqa: PLC0415

    table = Table.grid(padding=(0, 1))
    for check in checks:
        text = Text(clean(check.found))
        if check.advice is not None:
            text.append(f"\n{clean(check.advice)}", style="dim")
        table.add_row(Text(check.state, style=_STYLES[check.state]), Text(check.name), text)
    open_console().print(table)
