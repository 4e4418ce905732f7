"""``runspan trace summary``: what one wants to know first of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import typer

from runspan.cli._catalog import INTERRUPTED, Catalog
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import (
    STATUS_STYLES,
    Column,
    counted,
    format_duration,
    format_number,
    format_time,
    open_console,
    print_field,
    print_heading,
    print_json,
    print_rows,
)
from runspan.cli._workspace import Workspace
from runspan.cli.trace._reading import LenientOption  # noqa: TC001 - typer reads annotations
from runspan.cli.trace._report import count_findings, print_findings, summarize, tell_problems
from runspan.cli.trace._target import TraceArgument  # noqa: TC001 - typer reads annotations
from runspan.tracefile._findings import Severity
from runspan.tracefile.reader import TraceStatus

if TYPE_CHECKING:
    from rich.console import Console

    from runspan.cli.trace._reading import Traces
    from runspan.tracefile._summary import CapturedStep, Summary, TraceReport

__all__ = ["register"]

_PARTIAL = 1
#: How many names and keys are shown; ``--json`` has all.
_MAX_ROWS = 20
_EVENT_COLUMNS = (Column("EVENT"), Column("COUNT", right=True))
_LOSS_COLUMNS = (Column("SIGNAL"), Column("COUNT", right=True))
_SPAN_COLUMNS = (
    Column("SPAN", shrinks=True),
    Column("COUNT", right=True),
    Column("TOTAL", right=True),
    Column("MEAN", right=True),
)
_METRIC_COLUMNS = (
    Column("METRIC", shrinks=True),
    Column("LAST", right=True),
    Column("STEP", right=True),
    Column("MIN", right=True),
    Column("MAX", right=True),
    Column("POINTS", right=True),
)
_CAPTURE_COLUMNS = (
    Column("CAPTURE", right=True),
    Column("RANKS", right=True),
    Column("BECAUSE"),
    Column("LONGEST", right=True),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("summary", short_help="Sum a trace up.", epilog=EXIT_CODES)(_summary)


def _summary(
    trace: TraceArgument,
    *,
    lenient: LenientOption = False,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Sum a trace up, or all traces of a run: what it is, how it stands, what is in it, and whether that is sound.

    The files stream by, whatever their size. Metrics are those of the lowest rank that logs the key; durations of
    steps are over all ranks. The exit code is 1 when a file of the run cannot be read.
    """
    workspace = Workspace.resolve(storage, directory)
    summary, traces = summarize(workspace, trace, lenient=lenient)
    status, reason = _status(summary, traces, workspace)
    if json:
        document = {"status": status, "reason": reason, **msgspec.structs.asdict(summary), "problems": traces.problems}
        print_json(document)
    else:
        _print(open_console(), summary, traces, status, reason)
    tell_problems(traces)
    if traces.problems:
        raise typer.Exit(_PARTIAL)


def _status(summary: Summary, traces: Traces, workspace: Workspace) -> tuple[str, str | None]:
    """Return how the run stands, or of a single file its trace; and why."""
    if traces.directory is not None:
        run = Catalog(workspace, None).find(str(traces.directory.absolute()))
        return run.status, run.info.reason
    (report,) = summary.traces
    return report.outcome or report.status, report.reason


def _print(console: Console, summary: Summary, traces: Traces, status: str, reason: str | None) -> None:
    _print_head(console, summary, status, reason)
    print_heading(console, "Events")
    print_rows(console, _EVENT_COLUMNS, [[kind, str(count)] for kind, count in summary.events.items()])
    _print_steps(console, summary)
    _print_spans(console, summary)
    _print_metrics(console, summary)
    _print_captures(console, summary.captures)
    if summary.losses:
        print_heading(console, "Lost")
        print_rows(console, _LOSS_COLUMNS, [[what, str(count)] for what, count in summary.losses.items()])
    errors, warnings = (count_findings(summary.traces, severity) for severity in (Severity.ERROR, Severity.WARNING))
    print_heading(console, f"Findings: {counted(errors, 'error')}, {counted(warnings, 'warning')}")
    print_findings(console, traces, summary.traces)


def _print_head(console: Console, summary: Summary, status: str, reason: str | None) -> None:
    meta, reports = summary.meta, summary.traces
    print_field(console, "run", meta.run_id)
    last_seen = max(report.last_seen_unix_nano for report in reports)
    shown = f"{status}, last seen {format_time(last_seen)}" if status == INTERRUPTED else status
    print_field(console, "status", f"{shown} ({reason})" if reason else shown, style=STATUS_STYLES.get(status))
    started = min(report.start_unix_nano for report in reports)
    print_field(console, "started", f"{format_time(started)}, took {format_duration(max(0, last_seen - started))}")
    print_field(console, "entrypoint", f"{meta.entrypoint} ({meta.phase}, {meta.device}, {meta.timing_mode})")
    for key, value in meta.tags.items():
        print_field(console, "tag", f"{key}={value}")
    print_field(console, "traces", _traces_line(reports))


def _traces_line(reports: tuple[TraceReport, ...]) -> str:
    ranks = {report.rank for report in reports if report.capture_step is None}
    parts = [counted(len(reports), "trace")]
    if ranks:
        parts.append(f"of {counted(len(ranks), 'rank')}")
    unfinished = [report for report in reports if report.status is not TraceStatus.FINISHED]
    statuses = {str(report.status) for report in unfinished}
    if unfinished:
        parts.append(f"({len(unfinished)} {' or '.join(sorted(statuses))})")
    return " ".join(parts)


def _print_steps(console: Console, summary: Summary) -> None:
    steps = summary.steps
    if steps is None:
        return
    print_heading(console, "Steps")
    print_field(console, "count", str(steps.count))
    for label, duration_ns in (("median", steps.median_ns), ("p95", steps.p95_ns), ("longest", steps.max_ns)):
        print_field(console, label, format_duration(duration_ns))


def _print_spans(console: Console, summary: Summary) -> None:
    if not summary.spans:
        return
    print_heading(console, "Spans")
    rows = [
        [
            span.name,
            str(span.count),
            format_duration(span.total_ns),
            format_duration(span.total_ns / span.count) if span.count else "-",
        ]
        for span in summary.spans[:_MAX_ROWS]
    ]
    print_rows(console, _SPAN_COLUMNS, rows)
    _print_rest(console, len(summary.spans), "name")


def _print_metrics(console: Console, summary: Summary) -> None:
    if not summary.metrics:
        return
    print_heading(console, "Metrics")
    rows = [
        [
            each.key,
            format_number(each.last),
            str(each.last_step),
            "-" if each.min is None else format_number(each.min),
            "-" if each.max is None else format_number(each.max),
            str(each.points),
        ]
        for each in summary.metrics[:_MAX_ROWS]
    ]
    print_rows(console, _METRIC_COLUMNS, rows)
    _print_rest(console, len(summary.metrics), "key")


def _print_captures(console: Console, captures: tuple[CapturedStep, ...]) -> None:
    if not captures:
        return
    by_step: dict[int, list[CapturedStep]] = {}
    for capture in captures:
        by_step.setdefault(capture.capture_step, []).append(capture)
    print_heading(console, "Captured steps")
    rows = []
    for step, of_step in sorted(by_step.items()):
        durations_ns = [each.duration_ns for each in of_step if each.duration_ns is not None]
        because = sorted({each.because for each in of_step if each.because is not None})
        longest = format_duration(max(durations_ns)) if durations_ns else "-"
        rows.append([str(step), str(len({each.rank for each in of_step})), ", ".join(because), longest])
    print_rows(console, _CAPTURE_COLUMNS, rows)


def _print_rest(console: Console, count: int, noun: str) -> None:
    if count > _MAX_ROWS:
        console.print(f"and {counted(count - _MAX_ROWS, f'more {noun}')}; --json has all", style="dim")
