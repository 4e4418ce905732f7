"""What the commands refuse: one clear line, exit code 2, and nothing started."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from runspan import SqlStorage, TracingConfig
from runspan.errors import ConfigError
from support.cli import Cli, make_run

if TYPE_CHECKING:
    from pathlib import Path

#: No file can have this name; a run can have this id.
_LONG = "x" * 300


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


@pytest.mark.parametrize(
    "command",
    [
        ("trace", "summary"),
        ("trace", "health"),
        ("trace", "view", "--no-open"),
        ("trace", "recover"),
        ("trace", "merge", "-o", "out"),
        ("trace", "promote", "--to", "out"),
        ("trace", "export", "--to", "folded", "-o", "out"),
        ("show",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("reference", [_LONG, f"{_LONG}/x", "~nobody-of-this-name", "a/b", "new\nline", ""])
def test_a_reference_that_can_be_no_path_is_looked_for_as_a_run(
    runspan: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], reference: str
) -> None:
    """What no file can be called is one error line: there is no such run."""
    monkeypatch.chdir(tmp_path)
    make_run(runspan.root, "run-a")
    answer = runspan(*command, reference)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("runspan: no run ")
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("run_id", [_LONG, "a/b", "~x", "über alles"])
def test_a_run_of_any_id_is_found(runspan: Cli, run_id: str) -> None:
    """Ids that could be paths, or that are longer than a file's name can be, name their run."""
    make_run(runspan.root, run_id)
    answer = runspan("trace", "summary", run_id, "--json")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("trace", "merge", "run-a", "-o"),
        ("trace", "promote", "run-a", "--force", "--to"),
        ("trace", "view", "run-a", "--no-open", "-o"),
        *(("trace", "export", "run-a", "--force", "--to", to, "-o") for to in ("perfetto", "html")),
    ],
    ids=" ".join,
)
def test_an_output_takes_no_place_but_a_files(runspan: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A folder, a pipe (as /dev/null would be), the run's own trace and a home that is not there are refused."""
    own = make_run(runspan.root, "run-a") / "rank-00000.jsonl"
    before = own.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(own)
    outputs = {
        ".": "a folder",
        "/": "a folder",
        str(tmp_path): "a folder",
        str(tmp_path / "pipe"): "a device or a pipe",
        str(own): "give another",
        str(tmp_path / "link"): "give another",
        "~nobody-of-this-name/x": "there is no such home folder",
        str(tmp_path / _LONG): "File name too long",
    }
    for output, told in outputs.items():
        answer = runspan(*arguments, output)
        assert (answer.code, answer.out) == (2, ""), output
        assert told in answer.err
        assert answer.err.count("\n") == 1
    assert own.read_bytes() == before
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "root"]


def test_an_output_that_is_a_link_is_written_where_it_leads(runspan: Cli, tmp_path: Path) -> None:
    """A symbolic link stays, and what it leads to is replaced; a folder of tables too."""
    make_run(runspan.root, "run-a")
    (tmp_path / "page").write_text("old")
    (tmp_path / "tables").mkdir()
    for name in ("page", "tables"):
        (tmp_path / f"{name}-link").symlink_to(name)
    for to, name in (("html", "page"), ("parquet", "tables")):
        answer = runspan("trace", "export", "run-a", "--to", to, "-o", str(tmp_path / f"{name}-link"), "--force")
        assert answer.code == 0, answer.err
        assert (tmp_path / f"{name}-link").is_symlink()
    assert (tmp_path / "page").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "tables" / "spans.parquet").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page", "page-link", "root", "tables", "tables-link"]


def test_the_working_directory_is_not_replaced(runspan: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export that replaces a folder as a whole does not take the one away that the user stands in."""
    make_run(runspan.root, "run-a")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    answer = runspan("trace", "export", "run-a", "--to", "parquet", "-o", ".", "--force")
    assert answer.code == 2
    assert "is the working directory" in answer.err


@pytest.mark.parametrize("variable", ["RUNSPAN_DIR", "RUNSPAN_TRACE_DIR", "RUNSPAN_GOLDEN_TRACE_PATH"])
def test_a_home_that_is_not_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """``~user`` of nobody in a setting names what it takes instead, in the library and in the program."""
    monkeypatch.setenv(variable, "~nobody-of-this-name/x")
    with pytest.raises(ConfigError, match=r"~nobody-of-this-name/x.* there is no such home folder") as raised:
        TracingConfig.from_env()
    setting = str(raised.value).partition("=")[0]
    assert variable.lower().endswith(setting.lower())


def test_a_home_that_is_not_there_has_no_database() -> None:
    """``~user`` of nobody as a storage is a clear error, not Python's own."""
    with pytest.raises(ConfigError, match=r"~nobody-of-this-name/x.* there is no such home folder"):
        SqlStorage("~nobody-of-this-name/x")
