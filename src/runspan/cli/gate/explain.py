"""``runspan gate explain``: why a record stands or not, path by path, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runspan._git import Git, GitError
from runspan.cli._options import JsonOption  # noqa: TC001 - typer reads annotations
from runspan.cli._output import note, open_console, print_field, print_heading, print_json
from runspan.cli.gate._common import GATE_EXIT_CODES, failing_closed, find_repository, path_in
from runspan.gate import GateRecord, check_record
from runspan.gate._check import load_baseline
from runspan.gate._results import NO_VERDICT
from runspan.gate.signing import check_signers, signature_problem
from runspan.gate.standing import StandingKind, Standings, load_rules

if TYPE_CHECKING:
    from runspan.gate import Standing
    from runspan.gate.standing import PathEffect

__all__ = ["register"]

_FOUND_PROBLEMS = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain", short_help="Explain one record.", epilog=GATE_EXIT_CODES)(_explain)


def _explain(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="A record's file.")], *, json: JsonOption = False
) -> None:
    """Say why a record stands for HEAD or does not: each path that changed since, and the rule that decides about it.

    Then what is wrong with the record by itself, by the bounds and rules at HEAD. The exit code is 0 when it stands and
    nothing is wrong, 1 when not, 3 when git does not tell.
    """
    with failing_closed():
        top = find_repository()
        loaded = GateRecord.load(record)
        try:
            git = Git.at(top)
            rules = load_rules(git)
            standings = Standings(git, rules)
            standing = standings.of(loaded)
            full_sha = standing.full_sha
            effects = standings.effects(full_sha, loaded.benchmark_id) if full_sha is not None else []
            problems = _problems(git, record, loaded, check_signers(rules.signers))
        except GitError as error:
            note(f"git gives no answer: {error}")
            raise typer.Exit(NO_VERDICT) from error
        if json:
            print_json(_document(path_in(top, record), standing, effects, problems))
        else:
            _print(path_in(top, record), loaded, standing, effects, problems)
    if standing.kind is StandingKind.UNKNOWN:
        raise typer.Exit(NO_VERDICT)
    if problems or standing.kind is not StandingKind.STANDS:
        raise typer.Exit(_FOUND_PROBLEMS)


def _problems(git: Git, file: Path, record: GateRecord, keys: dict[str, bytes]) -> list[str]:
    problems = []
    if record.frame_status_failed():
        problems.append("the run failed")
    if not record.verdict_passes():
        problems.append(f"the verdict is {record.verdict or 'missing'}: {record.verdict_reason}")
    if record.dirty_paths:
        problems.append(f"measured with uncommitted changes: {', '.join(record.dirty_paths)}")
    if keys and (unsigned := signature_problem(file, keys)) is not None:
        problems.append(unsigned)
    return [*problems, *check_record(record, load_baseline(git, "HEAD"))]


def _document(
    path: str, standing: Standing, effects: list[tuple[str, PathEffect]], problems: list[str]
) -> dict[str, Any]:
    changes = [{"path": changed, "rule": str(effect), "invalidates": effect.invalidates} for changed, effect in effects]
    return {"record": path, "standing": standing, "changed_paths": changes, "problems": problems}


def _print(
    path: str, record: GateRecord, standing: Standing, effects: list[tuple[str, PathEffect]], problems: list[str]
) -> None:
    console = open_console()
    print_field(console, "record", path)
    print_field(console, "summary", record.summary)
    print_field(console, "measured", f"{record.git_sha} on {record.hardware.gate_key}")
    print_field(console, "standing", f"{standing.kind}{f': {standing.reason}' if standing.reason else ''}")
    if standing.warning:
        print_field(console, "WARNING", standing.warning)
    if effects:
        print_heading(console, "Changed since")
        for changed, effect in sorted(effects, key=lambda item: not item[1].invalidates):
            print_field(console, "counts" if effect.invalidates else "no effect", f"{changed} ({effect})")
    if problems:
        print_heading(console, "Problems")
        for problem in problems:
            print_field(console, "!", problem)
