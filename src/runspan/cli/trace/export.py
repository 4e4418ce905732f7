"""``runspan trace export``: a trace made into what other programs read."""

from __future__ import annotations

import shutil
import sys
import tempfile
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from runspan._root import expand_user
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import counted, note, print_json, say, spinner
from runspan.cli._workspace import Workspace
from runspan.cli.trace._sending import print_sent, sending_config
from runspan.cli.trace._target import TraceArgument, find_trace_files, refuse_input
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["register"]

_PARTIAL = 1
_STDOUT = "-"


_HELP = """Export a trace, or all traces of a run, with the steps that they captured.

\b
  perfetto    Chrome trace JSON for ui.perfetto.dev, one track a rank
  speedscope  profiles for speedscope.app, one a rank
  folded      a line a stack with its self time in ns, for flame graphs
  parquet     a folder of tables for DuckDB, Spark, Polars (runspan[sql])
  html        one page for any browser, without a network
  otlp-json   a folder of OTLP/JSON, one file a signal
  otlp        the spans to an endpoint, equal to what a live run sends

The output takes its name when all of it is written. A trace without a first line is told of and left out; the exit code
is then 1, as it is when an endpoint did not take everything.
"""


class _Format(StrEnum):
    """What a trace can be exported to."""

    PERFETTO = "perfetto"
    SPEEDSCOPE = "speedscope"
    FOLDED = "folded"
    PARQUET = "parquet"
    HTML = "html"
    OTLP_JSON = "otlp-json"
    OTLP = "otlp"


class _Writer(msgspec.Struct, frozen=True):
    """What writes a format.

    Attributes:
        module: the module of :mod:`runspan.export` that has ``export_<module>(traces, output)``.
        is_folder: whether it writes a folder of files.
    """

    module: str
    is_folder: bool = False

    def write(self, traces: Sequence[Path], output: Path) -> None:
        """Write traces; the module is loaded for that."""
        exporter = import_module(f"runspan.export.{self.module}")
        getattr(exporter, f"export_{self.module}")(traces, output)


_WRITERS = {
    _Format.PERFETTO: _Writer("perfetto"),
    _Format.SPEEDSCOPE: _Writer("speedscope"),
    _Format.FOLDED: _Writer("folded"),
    _Format.PARQUET: _Writer("parquet", is_folder=True),
    _Format.HTML: _Writer("html"),
    _Format.OTLP_JSON: _Writer("otlp_json", is_folder=True),
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export", help=_HELP, short_help="Make a trace into what other programs read.", epilog=EXIT_CODES)(
        _export
    )


def _export(
    trace: TraceArgument,
    *,
    to: Annotated[_Format, typer.Option("--to", help="What to make of it.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where to; gzipped where a file ends with .gz; `-` for stdout."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that is there.")] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where to with --to otlp  [default: that of OTEL_EXPORTER_OTLP_ENDPOINT, if set]"
        ),
    ] = None,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Write one format, or send to an endpoint."""
    workspace = Workspace.resolve(storage, directory)
    if to is _Format.OTLP:
        if output is not None:
            raise ConfigError("--to otlp writes no file: leave -o out, and name a collector with --endpoint")
        _replay(find_trace_files(workspace, trace), endpoint, json=json)
        return
    if endpoint is not None:
        raise ConfigError(f"--endpoint is where --to otlp sends; --to {to} writes a file: name it with -o")
    if output is None:
        raise ConfigError(f"--to {to} needs -o OUT, the {'folder' if _WRITERS[to].is_folder else 'file'} to write")
    _write(_WRITERS[to], find_trace_files(workspace, trace), output, force=force, json=json)


def _write(writer: _Writer, traces: Sequence[Path], output: str, *, force: bool, json: bool) -> None:
    if output == _STDOUT:
        if writer.is_folder or json:
            raise ConfigError("stdout takes one document: give -o a path to write a folder, or to print --json")
        _write_to_stdout(writer, traces)
    else:
        path = expand_user(output)
        if not force and path.exists():
            raise ConfigError(f"{path} is there already: give another path, or replace it with --force")
        refuse_input(path, traces)
        with spinner(f"writing {path}"):
            writer.write(traces, path)
    _tell(traces, output, json=json)


def _write_to_stdout(writer: _Writer, traces: Sequence[Path]) -> None:
    """Write a whole document or nothing: an error in the middle must not look like an answer."""
    with tempfile.TemporaryDirectory(prefix="runspan-export-") as folder:
        path = Path(folder) / "export"
        with spinner("exporting"):
            writer.write(traces, path)
        sys.stdout.flush()
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _tell(traces: Sequence[Path], output: str, *, json: bool) -> None:
    from runspan.export._sources import cut_ends, find_sources  # noqa: PLC0415 - a command loads what it needs

    sources = find_sources(traces)
    if json:
        print_json({"output": output, "traces": len(sources.traces), "left_out": sources.problems})
    elif output != _STDOUT:
        say(f"{output}: {counted(len(sources.traces), 'trace')}")
    for cut in cut_ends(sources):
        note(f"{cut}: its last line is cut off; what stands before it is exported")
    for problem in sources.problems:
        note(f"left out: {problem}")
    if sources.problems:
        raise typer.Exit(_PARTIAL)


def _replay(traces: Sequence[Path], endpoint: str | None, *, json: bool) -> None:
    from runspan.replay import ReplayOutcome, replay  # noqa: PLC0415 - a command loads what it needs

    config = sending_config(endpoint)
    with spinner("sending"):
        report = replay(traces, config)
    if json:
        print_json(report)
    else:
        print_sent(report, f"{report.outcome}:")
    if report.outcome is not ReplayOutcome.COMPLETE or report.warnings:
        raise typer.Exit(_PARTIAL)
