"""``runspan query``: SQL over a whole run directory."""

from __future__ import annotations

import csv as csv_format
import json as json_format
import sys
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, RunArgument, StorageOption
from runspan.cli._output import Column, clean, counted, note, open_console, plain, print_rows, say, spinner
from runspan.cli._workspace import Workspace
from runspan.cli.trace._target import find_trace_files
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from runspan.export.database import Answer, RunDatabase

__all__ = ["register"]

_HELP = """Ask the traces of a run in SQL: all ranks, attempts, child processes and captured steps; a live run as it is.

`stragglers` lists the ranks by how long their own work of a step takes, `steps` each step over the ranks. A query reads
the tables below and nothing else: no file, no network. It needs runspan[sql].

\b
Tables, each also with run_id, rank, attempt, child:
  metrics  key, step, value, time_unix_nano, superseded (a later attempt
           has this step or an earlier one)
  steps    step, duration_ns, own_ns (without the waits for other ranks),
           data_ns, phases, samples, tokens, total, time_unix_nano,
           superseded
  spans    span_id, parent_id, trace_id, name, span_kind, step_phase,
           measured, start_ns, time_unix_nano, duration_ns (NULL: open),
           status, status_message, attributes (JSON), capture
  usage    cpu_util, gpu_util, memory_used, memory_total, gpu_memory_used,
           gpu_memory_total, timestamp_ns, time_unix_nano
  traces   capture, world_size, host, pid, entrypoint, phase, trace_id,
           time_unix_nano, path
"""
_PARTIAL = 1
#: A table's columns are as wide as their widest value, so all of its rows are held; more of them nobody reads.
_MAX_TABLE_ROWS = 10_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("query", help=_HELP, short_help="Ask a run's traces in SQL.", epilog=EXIT_CODES)(_query)


def _query(
    run: RunArgument,
    question: Annotated[
        str, typer.Argument(metavar="SQL", help="A query in DuckDB's SQL, or `stragglers` or `steps`.")
    ],
    *,
    json: JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")] = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Print the answer to one query."""
    from runspan.export._sources import cut_ends, find_sources  # noqa: PLC0415 - a command loads what it needs
    from runspan.export.database import create_database  # noqa: PLC0415
    from runspan.export.ready_made import READY_MADE  # noqa: PLC0415

    if json and csv:
        raise ConfigError("--json and --csv cannot be given together: choose one")
    workspace = Workspace.resolve(storage, directory)
    found = find_trace_files(workspace, run)
    sources = find_sources(found)
    with create_database(sources) as database:
        with spinner("reading the traces"):
            answer = database.ask(READY_MADE.get(question, question))
        if json:
            _print_json(answer)
        elif csv:
            writer = csv_format.writer(sys.stdout, lineterminator="\n")
            writer.writerow(answer.columns)
            writer.writerows([_text(value, "") for value in row] for row in answer.rows)
        else:
            _print_table(answer)
        for cut in cut_ends(sources):
            note(f"{cut}: its last line is cut off; what stands before it was read")
        _tell_problems(database)


def _print_table(answer: Answer) -> None:
    rows = list(islice(answer.rows, _MAX_TABLE_ROWS))
    numeric = [
        all(isinstance(row[index], int | float | Decimal | None) for row in rows)
        for index in range(len(answer.columns))
    ]
    columns = [
        Column(clean(name), right=is_number, shrinks=not is_number)
        for name, is_number in zip(answer.columns, numeric, strict=True)
    ]
    print_rows(open_console(), columns, [[_text(value, "-") for value in row] for row in rows])
    if next(answer.rows, None) is not None:
        note(f"only the first {_MAX_TABLE_ROWS} rows are shown: see all with --csv or --json")


def _print_json(answer: Answer) -> None:
    """Print one JSON document, row by row: an answer may be larger than the memory."""
    say(f'{{"columns": {_json_text(answer.columns)}, "rows": [')
    separator = ""
    for row in answer.rows:
        sys.stdout.write(f"{separator}{_json_text(row)}")
        separator = ",\n"
    say("\n]}" if separator else "]}")


def _tell_problems(database: RunDatabase) -> None:
    for problem in database.problems:
        note(f"left out: {problem}")
    if database.unreadable:
        note(f"left out: {counted(database.unreadable, 'line')} that cannot be read")
    if database.problems or database.unreadable:
        raise typer.Exit(_PARTIAL)


def _value(value: Any) -> Any:
    """Return a value of the database as JSON has it; of other types the text."""
    if isinstance(value, dict):
        return {str(key): _value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if isinstance(value, Decimal):
        return float(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _json_text(value: Any) -> str:
    return json_format.dumps(plain(_value(value)), ensure_ascii=False, allow_nan=False)


def _text(value: Any, null: str) -> str:
    """Return a value for a table or CSV: texts as they are, anything else as JSON has it."""
    if value is None:
        return null
    text = plain(_value(value))
    return text if isinstance(text, str) else _json_text(value)
