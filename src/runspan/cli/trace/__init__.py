"""``runspan trace``: questions to a recorded trace, and what can be made of it."""

from __future__ import annotations

import typer

from runspan.cli._options import EXIT_CODES
from runspan.cli.trace import compare, export, health, merge, nvtx, promote, query, recover, summary, view

__all__ = ["register"]

_COMMANDS = (summary, health, query, compare, promote, merge, view, export, recover, nvtx)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    trace = typer.Typer(
        name="trace",
        help="Question a recorded trace, check it, compare it, export it.",
        short_help="Question a recorded trace, check it, compare it, export it.",
        no_args_is_help=True,
        rich_markup_mode=None,
        epilog=EXIT_CODES,
    )
    for module in _COMMANDS:
        module.register(trace)
    app.add_typer(trace)
