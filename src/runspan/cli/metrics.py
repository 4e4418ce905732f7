"""``runspan metrics``: the points of one metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runspan.cli._details import opened_run
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, RunArgument, StorageOption
from runspan.cli._output import plain, print_json, say
from runspan.cli._workspace import Workspace
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from runspan.cli._details import OpenedRun
    from runspan.records import MetricPoint

__all__ = ["register"]

#: How many keys an error names.
_MAX_KEYS = 20
_HEADINGS = ("STEP", "VALUE", "TIME_UNIX_NANO", "RANK", "ATTEMPT")
_WIDTHS = (10, 24, 20, 6, 8)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("metrics", short_help="Print the points of one metric.", epilog=EXIT_CODES)(_metrics)


def _metrics(
    run: RunArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The metric's key, exactly as it was logged.")],
    *,
    rank: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this rank's points.")] = None,
    attempt: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="This attempt's points whole, what later ones superseded too."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="At most so many, spread evenly, the first and the last among them."),
    ] = None,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Print the points of one metric by step, every digit of them."""
    workspace = Workspace.resolve(storage, directory)
    with opened_run(workspace, run) as opened:
        points = _points(opened, key, rank, attempt, limit)
    if json:
        print_json({"run_id": opened.run.run_id, "key": key, "points": [_document(point) for point in points]})
        return
    _print_row(_HEADINGS)
    for point in points:
        _print_row((str(point.step), _exact(point.value), *map(str, (point.time_unix_nano, point.rank, point.attempt))))


def _points(opened: OpenedRun, key: str, rank: int | None, attempt: int | None, limit: int | None) -> list[MetricPoint]:
    storage, run_id = opened.storage, opened.run.run_id
    series = storage.metric_series(run_id, key)
    if not series:
        keys = storage.metric_keys(run_id)
        named = ", ".join(keys[:_MAX_KEYS]) + (f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else "")
        raise ConfigError(f"run {run_id} has no metric {key!r}: " + (f"it has {named}" if keys else "it has none"))
    if not any(rank in {None, of_rank} and attempt in {None, of_attempt} for of_rank, of_attempt in series):
        there = ", ".join(f"rank {of_rank} attempt {of_attempt}" for of_rank, of_attempt in series[:_MAX_KEYS])
        asked = " ".join(
            f"--{name} {value}" for name, value in (("rank", rank), ("attempt", attempt)) if value is not None
        )
        raise ConfigError(f"metric {key!r} of run {run_id} has no points of {asked}: it has {there}")
    if limit is None:
        return storage.get_metrics(run_id, key, rank=rank, attempt=attempt)
    return storage.sample_metrics(run_id, key, limit, rank=rank, attempt=attempt)


def _exact(value: float) -> str:
    return str(plain(value))


def _print_row(cells: tuple[str, ...]) -> None:
    say(" ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)))


def _document(point: MetricPoint) -> dict[str, Any]:
    return {
        "step": point.step,
        "value": point.value,
        "time_unix_nano": point.time_unix_nano,
        "rank": point.rank,
        "attempt": point.attempt,
    }
