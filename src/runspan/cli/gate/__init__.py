"""``runspan gate``: whether committed benchmark records stand for the commit at hand, and keep their bounds."""

from __future__ import annotations

import typer

from runspan.cli.gate import baseline, check, explain, init, show, sign, verify
from runspan.cli.gate._common import GATE_EXIT_CODES

__all__ = ["register"]

_COMMANDS = (check, show, explain, sign, verify, baseline, init)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    gate = typer.Typer(
        name="gate",
        help="Check the benchmark records in .benchmarks: whether they stand for HEAD and keep their bounds.",
        short_help="Check committed benchmark records.",
        no_args_is_help=True,
        rich_markup_mode=None,
        epilog=GATE_EXIT_CODES,
    )
    for module in _COMMANDS:
        module.register(gate)
    app.add_typer(gate)
