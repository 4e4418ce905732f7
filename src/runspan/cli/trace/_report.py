"""Findings of health over several traces, as the commands show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runspan.cli._output import Column, counted, note, print_rows
from runspan.cli.trace._reading import Traces
from runspan.errors import TraceFormatError
from runspan.tracefile._findings import Severity
from runspan.tracefile._summary import Summarizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from runspan.cli._workspace import Workspace
    from runspan.tracefile._findings import Finding
    from runspan.tracefile._summary import Summary, TraceReport

__all__ = ["count_findings", "print_findings", "summarize", "tell_problems"]

_COLUMNS = (Column("SEVERITY"), Column("CODE"), Column("TRACES", right=True), Column("FIRST", whole=True))


def summarize(workspace: Workspace, reference: str, *, lenient: bool) -> tuple[Summary, Traces]:
    """Read what a reference means.

    Raises:
        TraceFormatError: nothing of it can be read.
    """
    traces = Traces(workspace, reference, lenient=lenient)
    summarizer = Summarizer()
    read_count = sum(1 for _ in traces.each(traces.all, summarizer.add))
    if read_count == 0:
        raise TraceFormatError(f"no trace of the run can be read: {'; '.join(traces.problems)}")
    return summarizer.summary(), traces


def count_findings(reports: Sequence[TraceReport], severity: Severity) -> int:
    """Return how many findings of a severity there are."""
    return sum(report.count(severity) for report in reports)


def print_findings(console: Console, traces: Traces, reports: Sequence[TraceReport]) -> None:
    """Print a row a code, errors first: how many traces have it, and the first case in words."""
    found: dict[tuple[bool, str], list[tuple[str, Finding]]] = {}
    for report in reports:
        for finding in report.findings:
            key = (finding.severity is not Severity.ERROR, finding.code)
            found.setdefault(key, []).append((traces.shown(report.path), finding))
    if not found:
        return
    rows = []
    for key in sorted(found, key=lambda each: each[0]):
        path, first = found[key][0]
        rows.append([first.severity, first.code, str(len(found[key])), f"{first.message} ({path})"])
    print_rows(console, _COLUMNS, rows)


def tell_problems(traces: Traces) -> None:
    """Tell what could not be read, or not wholly."""
    for text in (*traces.problems, *traces.notes):
        note(text)
    if traces.problems:
        note(f"{counted(len(traces.problems), 'file')} of the run cannot be read: the answer is partial")
