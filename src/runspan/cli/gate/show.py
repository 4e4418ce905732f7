"""``runspan gate show``: the records there are, and which of them stand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from runspan._git import Git, GitError
from runspan.cli._options import JsonOption  # noqa: TC001 - typer reads annotations
from runspan.cli._output import Column, format_time, note, open_console, print_json, print_rows
from runspan.cli.gate._common import GATE_EXIT_CODES, failing_closed, find_repository
from runspan.gate._folder import read_folder
from runspan.gate.standing import Standing, StandingKind, Standings, load_rules
from runspan.gate.storing import FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.gate import GateRecord

__all__ = ["register"]

_NS_PER_S = 1_000_000_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show", short_help="List records.", epilog=GATE_EXIT_CODES)(_show)


def _show(
    benchmarks: Annotated[
        list[str] | None, typer.Argument(metavar="BENCHMARK", help="Whose; all benchmarks' unless given.")
    ] = None,
    *,
    json: JsonOption = False,
) -> None:
    """List records, newest first, and whether each stands for HEAD. A file that is no record is named on stderr."""
    with failing_closed():
        top = find_repository()
        found = {name: read_folder(top, name, time.time()) for name in benchmarks or _benchmarks(top)}
        stands = _Standing(top)
        rows = [
            _row(candidate.path, candidate.record, stands(candidate.record))
            for folder in found.values()
            for candidate in folder.records
        ]
        if json:
            print_json({"records": rows, "problems": [line for folder in found.values() for line in folder.problems]})
        else:
            columns = [Column(name.replace("_", " "), whole=name == "record") for name in _COLUMNS]
            print_rows(open_console(), columns, [[str(row[name] or "-") for name in _COLUMNS] for row in rows])
        for folder in found.values():
            for problem in folder.problems:
                note(problem)


_COLUMNS = ("record", "recorded_at", "git_sha", "hardware", "verdict", "standing", "reason")


class _Standing:
    """Tells whether records stand, also where git or the rules do not."""

    def __init__(self, top: Path) -> None:
        self._reason = ""
        self._standings = None
        try:
            git = Git.at(top)
            self._standings = Standings(git, load_rules(git))
        except GitError as error:
            self._reason = str(error)

    def __call__(self, record: GateRecord) -> Standing:
        if self._standings is None:
            return Standing(kind=StandingKind.UNKNOWN, reason=self._reason)
        return self._standings.of(record)


def _benchmarks(top: Path) -> list[str]:
    return sorted(folder.name for folder in (top / FOLDER).iterdir() if folder.is_dir())


def _row(path: str, record: GateRecord, standing: Standing) -> dict[str, str | None]:
    return {
        "record": path,
        "benchmark": record.benchmark_id,
        "recorded_at": format_time(record.recorded_at * _NS_PER_S),
        "git_sha": record.git_sha,
        "hardware": record.hardware.gate_key,
        "model": record.target_model,
        "status": str(record.frame_status),
        "verdict": record.verdict,
        "summary": record.summary,
        "standing": str(standing.kind),
        "reason": standing.warning or standing.reason,
    }
