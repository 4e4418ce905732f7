"""``runspan demo``: a real training over several processes, and what was recorded of it."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from runspan._clock import SystemClock
from runspan.cli._details import opened_run, rank_reports
from runspan.cli._options import EXIT_CODES, DirOption, StorageOption
from runspan.cli._output import command_line, counted, format_duration, format_number, note, open_console, sparkline
from runspan.cli._workspace import Workspace
from runspan.cli.show import print_ranks

if TYPE_CHECKING:
    from rich.console import Console

    from runspan.cli._details import OpenedRun
    from runspan.demo import DemoResult

__all__ = ["register"]

_FAILED = 1
_LOSS, _ACCURACY = "loss/train", "accuracy/test"
_CURVE_WIDTH = 48


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", short_help="Train a real classifier over 4 processes, and see it.", epilog=EXIT_CODES)(_demo)


def _demo(
    *,
    ranks: Annotated[int, typer.Option(metavar="N", help="Processes that train together.")] = 4,
    epochs: Annotated[int, typer.Option(metavar="N", help="Epochs.")] = 3,
    slow_rank: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The rank that is slow on purpose; -1 for none.  [default: 2]", show_default=False
        ),
    ] = None,
    slow_ms: Annotated[float, typer.Option(metavar="MS", help="How much longer each of its steps takes.")] = 8.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of weights and batches.")] = 0,
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="Ship spans and metrics there too, such as http://localhost:4317.")
    ] = None,
    otlp_protocol: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="grpc or http/protobuf.  [default: http/protobuf for port 4318 or a path]"),
    ] = None,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Train a classifier of handwritten digits over several processes, and show what was recorded.

    The data is scikit-learn's digits; the processes average their gradients in every step. One rank is slow on purpose.
    The exit code is 1 when a rank died.
    """
    from runspan.demo import DemoOptions, check_demo, run_demo  # noqa: PLC0415 - a command loads what it needs

    options = DemoOptions(
        ranks=ranks,
        epochs=epochs,
        slow_rank=slow_rank,
        slow_ms=slow_ms,
        seed=seed,
        otlp=otlp,
        otlp_protocol=otlp_protocol,
    )
    workspace = Workspace.resolve(storage, directory)
    environ = {
        **os.environ,
        "RUNSPAN_DIR": str(workspace.root),
        "RUNSPAN_TRACE_DIR": str(workspace.trace_dir),
        "RUNSPAN_STORAGE": workspace.storage_url or "none",
    }
    check_demo(options, environ)
    if workspace.storage_url is not None:
        with workspace.writing():  # what no rank could open is told of before they start
            pass
    if sys.stderr.isatty():
        note(f"starting {counted(ranks, 'process')}")
    result = run_demo(options, environ)
    if result.failure is not None:
        note(f"the demo failed: {result.failure}; see what was recorded: {_command(workspace, 'show', result.run_id)}")
        raise typer.Exit(_FAILED)
    with opened_run(workspace, result.run_id) as opened:
        _print_report(open_console(), opened, result, workspace)


def _print_report(console: Console, opened: OpenedRun, result: DemoResult, workspace: Workspace) -> None:
    storage, run_id = opened.storage, result.run_id
    loss = [point.value for point in storage.get_metrics(run_id, _LOSS, rank=0)]
    accuracy = [point.value for point in storage.get_metrics(run_id, _ACCURACY, rank=0)]
    took_ns = opened.run.took_ns(time.time_ns()) or 0
    console.print(
        f"Trained over {counted(opened.info.world_size, 'process')} in {format_duration(took_ns)}: {opened.run.status}",
        style="bold",
    )
    console.print(f"  accuracy  {accuracy[-1]:.1%} of the test images  {sparkline(accuracy)}", style="green")
    console.print(f"  loss      {sparkline(loss, _CURVE_WIDTH)}  {format_number(loss[0])} → {format_number(loss[-1])}")
    if opened.run.directory is not None:
        reports, slow, _ = rank_reports(opened.run.directory, SystemClock())
        print_ranks(console, reports, slow)
    console.print()
    console.print("What was recorded", style="bold")
    console.print(f"  {opened.run.directory}", soft_wrap=True)
    console.print(f"  {workspace.storage_description}", soft_wrap=True)
    console.print()
    console.print("Look further", style="bold")
    for arguments in (
        ("show", run_id),
        ("metrics", run_id, _LOSS, "--limit", "20"),
        ("trace", "query", run_id, "--kind", "stragglers"),
        ("trace", "view", run_id),
        ("runs",),
    ):
        console.print(f"  {_command(workspace, *arguments)}", soft_wrap=True)


def _command(workspace: Workspace, *arguments: str) -> str:
    """Return a command that looks where the demo recorded; without options where it would look there anyway."""
    defaults = Workspace.resolve(None, None)
    place = [] if workspace.root == defaults.root else ["--dir", str(workspace.root)]
    if not workspace.storage_is_default and workspace.storage_url != defaults.storage_url:
        place += ["--storage", "none" if workspace.storage_url is None else workspace.storage_description]
    return command_line(*arguments, *place)
