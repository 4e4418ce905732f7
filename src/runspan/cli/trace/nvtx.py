"""``runspan trace nvtx``: the captured spans beside the ranges that Nsight Systems saw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import (
    Column,
    counted,
    format_duration,
    note,
    open_console,
    print_json,
    print_rows,
    say,
)
from runspan.cli._references import named_file
from runspan.cli._workspace import Workspace
from runspan.cli.trace._target import TraceArgument, find_directory
from runspan.errors import ConfigError
from runspan.tracefile.layout import RunDirectory
from runspan.tracefile.nvtx import join_ranges
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from runspan.tracefile.nvtx import NvtxJoin

__all__ = ["register"]

_COLUMNS = (
    Column("RANGE", shrinks=True),
    Column("STATE"),
    Column("EXPECTED", right=True),
    Column("OBSERVED", right=True),
    Column("SPAN", right=True),
    Column("NSYS HOST", right=True),
    Column("NSYS DEVICE", right=True),
)

_ReportsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="CSV...", help="Reports of `nsys stats --format csv`: one file or several.", show_default=False
    ),
]
_RankOption = Annotated[
    int | None,
    typer.Option(
        "--rank", metavar="N", min=0, help="The rank that was profiled, where not all were.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("nvtx", short_help="Join captured spans with the ranges that Nsight Systems saw.", epilog=EXIT_CODES)(
        _nvtx
    )


def _nvtx(
    trace: TraceArgument,
    reports: _ReportsArgument,
    *,
    rank: _RankOption = None,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Join captured spans with the NVTX ranges that Nsight Systems saw, by name; 1 unless each has its counterpart.

    With the `nvtx` package installed, each span of a captured step opens a range that is called
    <correlation id>/<span path>. Profile with `nsys profile`, write a report, and join it:

    nsys stats --format csv --report nvtx_pushpop_sum --report nvtx_gpu_proj_sum --output nsys FILE.nsys-rep

    Expected are the spans, observed the ranges of this run; missing spans had no range, unexpected ranges have no span,
    duplicate ones are more than there are spans. Times stay what each clock says: none is converted into another.
    """
    captures, correlation_id = _captures(Workspace.resolve(storage, directory), trace, rank)
    join = join_ranges(captures, reports, correlation_id)
    if not join.expected:
        raise ConfigError(
            f"{trace} has no span that opens an NVTX range: ranges are those of captured steps, which"
            " RUNSPAN_CAPTURE schedules and whose files stand in the run directory's captures/"
        )
    if json:
        print_json(_document(join))
    else:
        _print(join, correlation_id)
    if not join.is_exact:
        raise typer.Exit(1)


def _captures(workspace: Workspace, reference: str, rank: int | None) -> tuple[list[Path], str]:
    """Return the capture files that a reference means, and what the names of their ranges begin with.

    Raises:
        RunNotFoundError: there is no such file and no such run.
        ConfigError: the reference is ambiguous.
        TraceFormatError: the run's trace cannot be read.
    """
    path = named_file(reference)
    if path is not None:
        with read(path) as reader:
            return [path], reader.meta.correlation_id
    run = RunDirectory(find_directory(workspace, reference))
    captures = [
        file
        for files in run.capture_files().values()
        for name, file in files
        if name.part == 0 and rank in {None, name.rank}
    ]
    with read(run.trace_files()[0][1]) as reader:
        return captures, reader.meta.correlation_id


def _document(join: NvtxJoin) -> dict[str, object]:
    ranges = [{**msgspec.to_builtins(item), "state": item.state} for item in join.ranges]
    return {**msgspec.to_builtins(join), "ranges": ranges}


def _print(join: NvtxJoin, correlation_id: str) -> None:
    rows = [
        [
            item.name.removeprefix(f"{correlation_id}/"),
            item.state,
            str(item.expected),
            str(item.observed),
            *map(_duration, (item.span_duration_ns, item.host_duration_ns, item.device_duration_ns)),
        ]
        for item in join.ranges
    ]
    print_rows(open_console(), _COLUMNS, rows)
    say("")
    expected, observed = counted(join.expected, "span"), counted(join.observed, "range")
    say(
        f"{expected} expected, {observed} observed: {join.matched} matched, {join.missing} missing,"
        f" {join.unexpected} unexpected, {join.duplicate} duplicate"
    )
    if not join.observed:
        note(
            f"no range of the reports begins with {correlation_id}/: the profiled program needs the package nvtx"
            " (pip install 'runspan[nvtx]'), and the profile NVTX (nsys profile --trace=nvtx,cuda)"
        )


def _duration(duration_ns: int | None) -> str:
    return "-" if duration_ns is None else format_duration(duration_ns)
