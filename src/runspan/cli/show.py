"""``runspan show``: one run."""

from __future__ import annotations

import json as json_format
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from runspan._clock import SystemClock
from runspan.cli._catalog import INTERRUPTED
from runspan.cli._details import opened_run, rank_reports, run_losses
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, RunArgument, StorageOption
from runspan.cli._output import (
    LABEL_WIDTH,
    STATUS_STYLES,
    Column,
    bar_means,
    clean,
    command_line,
    format_age,
    format_bytes,
    format_duration,
    format_number,
    format_time,
    note,
    open_console,
    plain,
    print_field,
    print_heading,
    print_json,
    print_rows,
    sparkline,
)
from runspan.cli._workspace import Workspace
from runspan.records import Trend

if TYPE_CHECKING:
    import typer
    from rich.console import Console

    from runspan.cli._details import OpenedRun, RankReport
    from runspan.records import RunInfo
    from runspan.tracefile.steptimes import SlowRank

__all__ = ["print_ranks", "rank_document", "register"]

#: What was lost, by (signal, reason).
_Losses: TypeAlias = dict[tuple[str, str], int]

#: Points that a sparkline and a trend are made of.
_SAMPLED_POINTS = 256
_BARS = 20
_TREND_SIGNS = {Trend.RISING: "↗", Trend.FALLING: "↘", Trend.STABLE: "→"}
_VALUE_WIDTH = 200

_METRIC_COLUMNS = (
    Column("METRIC", shrinks=True),
    Column("LAST", right=True),
    Column("MIN", right=True),
    Column("MAX", right=True),
    Column("POINTS", right=True),
    Column("TREND"),
)
_RANK_COLUMNS = (
    Column("RANK", right=True),
    Column("STATUS"),
    Column("ATTEMPTS", right=True),
    Column("STEPS", right=True),
    Column("STEP", right=True),
    Column("OWN", right=True),
    Column("LAST SEEN", right=True),
    Column(""),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show", short_help="Show one run.", epilog=EXIT_CODES)(_show)


def _show(
    run: RunArgument, *, json: JsonOption = False, storage: StorageOption = None, directory: DirOption = None
) -> None:
    """Show one run: status, parameters, last metrics, ranks, artifacts, and where its files are.

    Works from the run directory alone when storage does not have the run. The metrics are rank 0's, or where it
    does not log one, the first rank's that does. In the ranks' table STEP is the median duration of a step, OWN the
    same without the time spent waiting for other ranks.
    """
    workspace = Workspace.resolve(storage, directory)
    with opened_run(workspace, run) as opened:
        found = opened.run
        reports, slow, problems = (
            ([], None, []) if found.directory is None else rank_reports(found.directory, SystemClock())
        )
        losses, unread = ({}, []) if found.directory is None else run_losses(found.directory)
        if json:
            print_json(_document(opened, reports, slow, losses))
        else:
            _print(open_console(), opened, reports, slow, losses, workspace)
    for problem in sorted({*problems, *unread, *(text for text in opened.warnings if INTERRUPTED not in text)}):
        note(problem)


def _print(  # noqa: PLR0917 - the parts of one page
    console: Console,
    opened: OpenedRun,
    reports: list[RankReport],
    slow: SlowRank | None,
    losses: _Losses,
    workspace: Workspace,
) -> None:
    info = opened.info
    _print_head(console, opened, info)
    _print_mapping(console, "Parameters", info.params)
    _print_mapping(console, "Tags", info.tags)
    _print_mapping(
        console, "Counts", {key: format_number(value) for key, value in sorted(info.counts.items()) if value}
    )
    _print_metrics(console, opened)
    print_ranks(console, reports, slow)
    _print_absent_ranks(console, opened, reports)
    if losses:
        lost = ", ".join(f"{signal} {count} ({reason})" for (signal, reason), count in losses.items())
        console.print(f"Lost: {clean(lost)}", style="yellow", soft_wrap=True)
    artifacts = opened.storage.list_artifacts(opened.run.run_id)
    if artifacts:
        print_heading(console, "Artifacts")
        for artifact in artifacts:
            step = "" if artifact.step is None else f", step {artifact.step}"
            console.print(f"  {clean(artifact.name)}  {format_bytes(artifact.bytes)}{step}", soft_wrap=True)
            console.print(f"    {clean(artifact.path or artifact.hash)}", style="dim", soft_wrap=True)
    print_heading(console, "Files")
    where = "not on this machine" if opened.run.directory is None else str(opened.run.directory)
    print_field(console, "directory", where)
    print_field(console, "storage", _storage_place(opened, workspace))


def _print_head(console: Console, opened: OpenedRun, info: RunInfo) -> None:
    run, now = opened.run, time.time_ns()
    console.print(clean(run.run_id), style="bold", soft_wrap=True)
    status = run.status
    if status == INTERRUPTED and run.last_seen_unix_nano is not None:
        status += f", last seen {format_time(run.last_seen_unix_nano)}"
    elif info.reason:
        status += f" ({info.reason})"
    print_field(console, "status", status, style=STATUS_STYLES.get(run.status))
    print_field(console, "experiment", run.experiment)
    for label, value in (("name", info.name), ("group", info.group), ("trace id", info.trace_id)):
        if value:
            print_field(console, label, value)
    if info.start_time is not None:
        started = f"{format_time(info.start_time)}, {format_age(info.start_time, now)} ago"
        print_field(console, "started", started)
    took_ns = run.took_ns(now)
    if took_ns is not None:
        print_field(console, "took", format_duration(took_ns))
    attempts = "" if info.attempts <= 1 else f", up to {info.attempts} attempts each"
    print_field(console, "ranks", f"{info.world_size}{attempts}")


def _print_metrics(console: Console, opened: OpenedRun) -> None:
    rows = []
    summary = opened.info.summary
    for key in opened.storage.metric_keys(opened.run.run_id):
        values = _sampled(opened, key, _SAMPLED_POINTS)
        if not values:
            continue
        known = summary.get(key)
        low, high = (min(values), max(values)) if known is None else (known.min, known.max)
        count = "" if known is None else str(known.count)
        rows.append(
            [
                key,
                format_number(values[-1]),
                "-" if low is None else format_number(low),
                "-" if high is None else format_number(high),
                count,
                f"{sparkline(values, _BARS)} {_TREND_SIGNS[_trend(values)]}",
            ]
        )
    if rows:
        print_heading(console, "Metrics")
        print_rows(console, _METRIC_COLUMNS, rows)


def print_ranks(console: Console, reports: list[RankReport], slow: SlowRank | None) -> None:
    """Print the ranks' table, and which rank the others wait for.

    Args:
        console: where to.
        reports: the ranks; nothing is printed for none.
        slow: the slow one among them.
    """
    if not reports:
        return
    print_heading(console, "Ranks")
    print_rows(console, _RANK_COLUMNS, [_rank_row(report, slow) for report in reports], status_column=1)
    if slow is not None:
        where = "" if slow.phase is None else f", most of it in {clean(slow.phase)}"
        console.print(
            f"Rank {slow.rank} is slow: its own work of a step takes {format_duration(slow.own_median_ns)}, that of the"
            f" others {format_duration(slow.others_median_ns)} ({slow.factor:.1f} times){where}.",
            style="yellow",
        )


def _rank_row(report: RankReport, slow: SlowRank | None) -> list[str]:
    state, steps = report.state, report.steps
    return [
        str(state.rank),
        state.status,
        str(len(state.attempts)),
        str(steps.count),
        "-" if steps.median_ns is None else format_duration(steps.median_ns),
        "-" if steps.own_median_ns is None else format_duration(steps.own_median_ns),
        "-" if state.last_seen_unix_nano is None else f"{format_age(state.last_seen_unix_nano, time.time_ns())} ago",
        "slow" if slow is not None and slow.rank == state.rank else "",
    ]


def _print_absent_ranks(console: Console, opened: OpenedRun, reports: list[RankReport]) -> None:
    absent = opened.info.world_size - len(reports)
    if reports and absent > 0:
        console.print(f"{absent} of {opened.info.world_size} ranks have no trace file here.", style="yellow")
    run = opened.run
    if not run.in_storage or run.directory is None:
        return
    unstored = [report for report in reports if not opened.storage.attempts(run.run_id, report.state.rank)]
    if unstored:
        console.print(
            f"Storage has {len(reports) - len(unstored)} of these {len(reports)} ranks; complete it with:"
            f" {clean(command_line('import', str(run.directory)))}",
            style="yellow",
            soft_wrap=True,
        )


def _trend(values: list[float]) -> Trend:
    """Return the trend of what the sparkline draws: over hundreds of points the slope of one step is always about 0."""
    return Trend.of([mean for mean in bar_means(values, _BARS) if mean is not None])


def _sampled(opened: OpenedRun, key: str, limit: int) -> list[float]:
    """Return at most so many values, the last one among them, of rank 0, or of the first rank that logs the key."""
    ranks = [rank for rank, _ in opened.storage.metric_series(opened.run.run_id, key)]
    if not ranks:
        return []
    points = opened.storage.sample_metrics(opened.run.run_id, key, limit, rank=ranks[0])
    return [point.value for point in points]


def _print_mapping(console: Console, title: str, mapping: dict[str, Any]) -> None:
    if not mapping:
        return
    print_heading(console, title)
    width = min(max(LABEL_WIDTH, *(len(clean(key)) + 2 for key in mapping)), 40)
    for key, value in mapping.items():
        text = value if isinstance(value, str) else json_format.dumps(plain(value), ensure_ascii=False)
        text = clean(text)
        if len(text) > _VALUE_WIDTH:
            text = f"{text[:_VALUE_WIDTH]}… ({len(text)} characters, whole with --json)"
        console.print(f"  {clean(key):<{width}}{text}", soft_wrap=True)


def _storage_place(opened: OpenedRun, workspace: Workspace) -> str:
    if opened.run.in_storage:
        return workspace.storage_description
    return f"not in {workspace.storage_description}; add it with: {command_line('import', str(opened.run.directory))}"


def _document(opened: OpenedRun, reports: list[RankReport], slow: SlowRank | None, losses: _Losses) -> dict[str, Any]:
    run, info = opened.run, opened.info
    latest = {key: points[-1] for key in opened.storage.metric_keys(run.run_id) if (points := _sampled(opened, key, 1))}
    return {
        **run.document(),
        "trace_id": info.trace_id,
        "span_id": info.span_id,
        "params": info.params,
        "tags": info.tags,
        "counts": info.counts,
        "metrics": latest,
        "summary": info.summary,
        "ranks": [rank_document(report) for report in reports],
        "slow_rank": None if slow is None else slow.rank,
        "losses": [{"signal": signal, "reason": reason, "count": count} for (signal, reason), count in losses.items()],
        "artifacts": opened.storage.list_artifacts(run.run_id),
    }


def rank_document(report: RankReport) -> dict[str, Any]:
    """Return what commands print of a rank with ``--json``."""
    state, steps = report.state, report.steps
    return {
        "rank": state.rank,
        "status": state.status,
        "reason": state.reason,
        "attempts": state.attempts,
        "host": state.host,
        "last_seen_unix_nano": state.last_seen_unix_nano,
        "steps": steps.count,
        "step_median_ns": steps.median_ns,
        "own_step_median_ns": steps.own_median_ns,
        "phase_medians_ns": steps.phase_medians_ns,
        "files": [str(state.folder / part.filename) for part in state.parts],
    }
