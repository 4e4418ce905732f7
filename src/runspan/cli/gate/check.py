"""``runspan gate check``: does each benchmark have a record that stands and is good enough?"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from runspan.cli._output import print_json, say
from runspan.cli.gate._common import GATE_EXIT_CODES, failing_closed, find_repository
from runspan.cli.gate._formats import document, github_lines, junit_lines, markdown_lines, text_lines
from runspan.gate import check
from runspan.gate._check import DEFAULT_BASE

__all__ = ["register"]


class Format(StrEnum):
    """How the results are printed."""

    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"
    MARKDOWN = "markdown"
    GITHUB = "github"


_LINES = {
    Format.TEXT: text_lines,
    Format.JUNIT: junit_lines,
    Format.MARKDOWN: markdown_lines,
    Format.GITHUB: github_lines,
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", short_help="Check benchmarks.", epilog=GATE_EXIT_CODES)(_check)


def _check(
    benchmarks: Annotated[
        list[str] | None, typer.Argument(metavar="BENCHMARK", help="Which; all that are required unless given.")
    ] = None,
    *,
    base: Annotated[
        str, typer.Option("--base", metavar="REV", help="The revision that the work is to be merged into.")
    ] = DEFAULT_BASE,
    allow_removed: Annotated[
        list[str] | None,
        typer.Option("--allow-removed", metavar="BENCHMARK", help="A benchmark whose entries were removed on purpose."),
    ] = None,
    allow_other_hardware: Annotated[
        bool,
        typer.Option(
            "--allow-other-hardware", help="Judge a record of hardware without an entry by all other hardware's bounds."
        ),
    ] = False,
    output: Annotated[Format, typer.Option("--format", help="How to print the results.")] = Format.TEXT,
) -> None:
    """Check that every benchmark has a record that stands for HEAD, and that the newest one that does keeps its bounds.

    Required are the benchmarks with an entry in .benchmarks/bounds.toml, at HEAD or where the work branched off. A
    record stands when no performance path has changed since the commit that it measured. Rules and bounds count as they
    are committed. In a pull request, check out its head, with full history, not the merge commit.
    """
    with failing_closed():
        report = check(
            find_repository(),
            benchmarks or (),
            base=base,
            allow_removed=allow_removed or (),
            allow_other_hardware=allow_other_hardware,
        )
        if output is Format.JSON:
            print_json(document(report))
        else:
            for line in _LINES[output](report):
                say(line)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
