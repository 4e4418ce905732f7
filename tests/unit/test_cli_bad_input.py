"""What the commands refuse: one clear line, exit code 2, and nothing started."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from support.cli import Cli, make_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on an empty root folder."""
    return Cli(tmp_path / "root", capsys)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RUNSPAN_SHUTDOWN_TIMEOUT_S", "soon"),
        ("RUNSPAN_CAPTURE", "wait=x"),
        ("RUNSPAN_STORAGE", "mysql://host/runs"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://host"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
    ],
)
def test_the_demo_refuses_a_variable_before_it_starts_a_rank(
    runspan: Cli, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """A variable that no rank could read is one error line that shows what is wrong with it, not a traceback a rank."""
    monkeypatch.setenv(variable, value)
    answer = runspan("demo", "--ranks", "1", "--epochs", "1")
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert value.partition(":")[0] in answer.err
    assert not (runspan.root / "runs").exists()


def test_the_demo_refuses_an_endpoint_that_is_none(runspan: Cli) -> None:
    """``--otlp`` with another scheme is an error before a rank is started."""
    answer = runspan("demo", "--otlp", "ftp://host")
    assert answer.code == 2
    assert "--otlp" in answer.err
    assert "ftp://host" in answer.err
    assert not runspan.root.exists()


def test_import_of_nothing_but_another_schema_is_bad_input(runspan: Cli) -> None:
    """Where no run directory could be imported the exit code is 2, and the schema is named with advice."""
    directory = make_run(runspan.root, "run-a")
    (directory / "rank-00000.jsonl").write_text('{"kind":"meta","schema":"runspan/trace/9"}\n')
    answer = runspan("import", str(directory))
    assert answer.code == 2
    assert "runspan/trace/9" in answer.err
    assert "pip install -U runspan" in answer.err


def test_a_foreign_database_is_named(runspan: Cli, tmp_path: Path) -> None:
    """The error about another program's SQLite database says which one it is, and what to do."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    answer = runspan("runs", "--storage", str(path))
    assert answer.code == 2
    assert str(path) in answer.err
    assert "choose another database" in answer.err


@pytest.mark.parametrize("command", [("show",), ("metrics", "loss")])
def test_a_run_directory_of_another_schema_is_told_from_one_that_is_missing(
    runspan: Cli, command: tuple[str, ...]
) -> None:
    """A run directory of which nothing can be read is refused for what is wrong with it, by path and by id."""
    directory = make_run(runspan.root, "run-a")
    (directory / "rank-00000.jsonl").write_text('{"kind":"meta","schema":"runspan/trace/9"}\n')
    for reference in (str(directory), "run-a"):
        answer = runspan(command[0], reference, *command[1:])
        assert answer.code == 2
        assert "runspan/trace/9" in answer.err
        assert "pip install -U runspan" in answer.err


def test_doctor_names_another_programs_database(runspan: Cli, tmp_path: Path) -> None:
    """A database with foreign tables is a problem and exit 1, not an empty database to be filled."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    answer = runspan("doctor", "--storage", str(path))
    assert answer.code == 1
    assert "belongs to another program" in " ".join(answer.out.split())
