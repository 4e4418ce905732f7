"""``runspan trace health``: is a trace what it says it is?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import counted, open_console, print_json, say
from runspan.cli._workspace import Workspace
from runspan.cli.trace._reading import LenientOption  # noqa: TC001 - typer reads annotations
from runspan.cli.trace._report import count_findings, print_findings, summarize, tell_problems
from runspan.cli.trace._target import TraceArgument  # noqa: TC001 - typer reads annotations
from runspan.tracefile._findings import Severity

if TYPE_CHECKING:
    from runspan.tracefile._summary import Summary

__all__ = ["register"]

_FOUND_ERRORS = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("health", short_help="Check a trace.", epilog=EXIT_CODES)(_health)


def _health(
    trace: TraceArgument,
    *,
    lenient: LenientOption = False,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Check a trace, or all traces of a run with its captured steps.

    Errors are what makes a trace contradict itself; warnings name evidence that a captured step lacks, which is unknown
    then, and not zero. The exit code is 1 when there is an error, or a file of the run cannot be read.
    """
    workspace = Workspace.resolve(storage, directory)
    summary, traces = summarize(workspace, trace, lenient=lenient)
    errors = count_findings(summary.traces, Severity.ERROR)
    if json:
        print_json(_document(summary, traces.problems))
    else:
        print_findings(open_console(), traces, summary.traces)
        warnings = count_findings(summary.traces, Severity.WARNING)
        say(f"{counted(len(summary.traces), 'trace')}: {counted(errors, 'error')}, {counted(warnings, 'warning')}")
    tell_problems(traces)
    if errors or traces.problems:
        raise typer.Exit(_FOUND_ERRORS)


def _document(summary: Summary, problems: list[str]) -> dict[str, object]:
    return {
        "run_id": summary.meta.run_id,
        "errors": count_findings(summary.traces, Severity.ERROR),
        "warnings": count_findings(summary.traces, Severity.WARNING),
        "traces": summary.traces,
        "problems": problems,
    }
