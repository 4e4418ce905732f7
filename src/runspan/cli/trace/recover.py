"""``runspan trace recover``: ends what a killed process left open."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, RunArgument, StorageOption
from runspan.cli._output import counted, format_time, note, print_json, say
from runspan.cli._workspace import Workspace
from runspan.cli.trace._sending import print_sent, sending_config
from runspan.cli.trace._target import find_directory

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from runspan.recovery import RecoveryReport
    from runspan.storage.base import ExperimentStorage

__all__ = ["register"]

_PARTIAL = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("recover", short_help="End what a killed process left open.", epilog=EXIT_CODES)(_recover)


def _recover(
    run: RunArgument,
    *,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="OTLP endpoint that gets what was not exported; a collector's replay port does not count spans anew"
            "  [default: that of OTEL_EXPORTER_OTLP_ENDPOINT, if set]",
        ),
    ] = None,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """End what a process left open that was killed by SIGKILL, for want of memory or by a power loss.

    Open spans end when the run was last heard of, its traces end as failed with the reason `interrupted`, its row in
    storage too, and what was not exported is sent. A run that may still be running is refused. Doing it twice changes
    nothing. The exit code is 1 where some of it could not be read or sent.
    """
    from runspan.recovery import recover  # noqa: PLC0415 - a command loads what it needs

    workspace = Workspace.resolve(storage, directory)
    config = sending_config(endpoint)
    path = find_directory(workspace, run)
    opening: AbstractContextManager[ExperimentStorage | None] = nullcontext()
    if workspace.storage_url is not None:
        opening = workspace.writing()
    with opening as opened:
        report = recover(path, opened, config)
    if json:
        print_json(report)
    else:
        _print(report)
    if report.warnings or not report.is_all_exported:
        raise typer.Exit(_PARTIAL)


def _print(report: RecoveryReport) -> None:
    for closed in report.closed:
        torn = f", {closed.torn_bytes} bytes of a cut record removed" if closed.torn_bytes else ""
        ended = counted(closed.spans_ended, "open span")
        say(f"{closed.path}: interrupted, last seen {format_time(closed.last_seen_unix_nano)}; {ended} ended{torn}")
    if not (report.closed or report.warnings):
        say(f"{report.path}: every trace has its end")
    for path in report.empty:
        say(f"{path}: empty: its process was killed before it had recorded anything")
    if report.stored is not None:
        say(f"storage: {counted(report.stored.points_added, 'point')} added, {report.stored.points_known} known")
    if report.exported is not None:
        print_sent(report.exported, f"export: {report.exported.outcome},")
    for warning in report.warnings:
        note(warning)
