from __future__ import annotations

import csv
import io
import re
import sys
from typing import TYPE_CHECKING

import pytest

from runspan import cli
from runspan.cli import query
from support.cli import Cli, cut_end, make_run, make_step
from support.traces import make_metric

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands on a root folder with one run of two ranks, whatever this process's environment says."""
    for name in ("RUNSPAN_DIR", "RUNSPAN_STORAGE", "RUNSPAN_TRACE_DIR"):
        monkeypatch.delenv(name, raising=False)
    steps = [make_step(number, forward=2 + number, all_reduce=1) for number in range(3)]
    nan = make_metric(3, key="a,b", value=float("nan"))
    make_run(tmp_path / "root", "run-a", world_size=2, events=[*steps, nan])
    return Cli(tmp_path / "root", capsys)


def test_a_query_is_answered_with_a_table(runspan: Cli) -> None:
    """Output that is no terminal is plain columns; what is NULL is a dash."""
    answer = runspan("query", "run-a", "SELECT rank, max(step) AS last, NULL AS no FROM steps GROUP BY rank ORDER BY 1")
    assert answer.out.splitlines() == ["rank  last  no", "   0     2   -", "   1     2   -"]
    assert (answer.code, answer.err) == (0, "")


def test_json_is_one_strict_document(runspan: Cli) -> None:
    """Numbers stay numbers, a NaN is its name, and a map is an object; no rows are an empty list."""
    sql = "SELECT key, step, value FROM metrics WHERE rank = 0 ORDER BY step DESC LIMIT 2"
    assert runspan("query", "latest", sql, "--json").document == {
        "columns": ["key", "step", "value"],
        "rows": [["a,b", 3, "NaN"], ["loss", 2, 0.5]],
    }
    sql = "SELECT phases, 1.5 AS price, DATE '2020-01-02' AS day, 2::HUGEINT ** 70 AS big FROM steps LIMIT 1"
    assert runspan("query", "latest", sql, "--json").document["rows"] == [
        [{"forward": 2_000_000, "all_reduce": 1_000_000}, 1.5, "2020-01-02", 2**70]
    ]
    assert runspan("query", "run-a", "FROM usage", "--json").document["rows"] == []


def test_csv_is_quoted_as_it_must_be(runspan: Cli) -> None:
    """A comma in a key is no column; the header has the names."""
    answer = runspan("query", "run-a", "SELECT key, value FROM metrics WHERE rank = 0 ORDER BY step DESC", "--csv")
    assert list(csv.reader(io.StringIO(answer.out)))[:2] == [["key", "value"], ["a,b", "NaN"]]


@pytest.mark.parametrize("options", [(), ("--csv",)])
def test_what_is_no_text_and_no_number_is_shown_as_json_has_it(runspan: Cli, options: tuple[str, ...]) -> None:
    """Maps, lists and truth values read alike wherever they are printed."""
    sql = "SELECT phases AS p, [1, NULL] AS l, rank = 0 AS t FROM steps WHERE rank = 0 AND step = 0"
    line = runspan("query", "run-a", sql, *options).out.splitlines()[1]
    shown = next(csv.reader([line])) if options else re.split(" {2,}", line)
    assert shown == ['{"forward": 2000000, "all_reduce": 1000000}', "[1, null]", "true"]


def test_stragglers_and_steps_are_ready_made(runspan: Cli) -> None:
    """The questions that have a name need no SQL."""
    stragglers = runspan("query", "run-a", "stragglers", "--json").document
    assert stragglers["columns"][:4] == ["rank", "steps", "step_median_ms", "own_median_ms"]
    assert [row[:4] for row in stragglers["rows"]] == [[0, 3, 4.0, 3.0], [1, 3, 4.0, 3.0]]
    steps = runspan("query", "run-a", "steps", "--json").document
    assert [row[:3] for row in steps["rows"]] == [[0, 2, 3.0], [1, 2, 4.0], [2, 2, 5.0]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run-a", "SELECT nope FROM steps"), 'column "nope" not found'),
        (("run-a", "SELEKT 1"), "syntax error"),
        (("run-a", "DROP TABLE steps"), "give one statement that asks"),
        (("run-a", "FROM steps", "--json", "--csv"), "choose one"),
        (("run-b", "FROM steps"), "no run 'run-b'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(runspan: Cli, arguments: tuple[str, ...], told: str) -> None:
    """A mistake is told in one line on stderr, and nothing is printed on stdout."""
    answer = runspan("query", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
    assert len(answer.err.splitlines()) == 1


def test_what_could_not_be_read_is_told(runspan: Cli) -> None:
    """Unreadable lines and files are told on stderr; the others' rows are a partial answer: exit code 1."""
    folder = runspan.root / "runs" / "run-a"
    path = folder / "rank-00000.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"step":1,"value"', b'"step":"x","value"'))
    (folder / "rank-00002.jsonl").touch()
    answer = runspan("query", "run-a", "SELECT count(*) AS points FROM metrics WHERE key = 'loss'")
    assert (answer.code, answer.out.split()) == (1, ["points", "5"])
    assert "left out: 1 line that cannot be read" in answer.err
    assert "rank-00002.jsonl: empty" in answer.err


def test_a_run_that_was_killed_is_asked_like_any_other(runspan: Cli) -> None:
    """Without a terminal line and with half a last line the rows before are there."""
    cut_end(runspan.root / "runs" / "run-a")
    path = runspan.root / "runs" / "run-a" / "rank-00000.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    answer = runspan("query", "run-a", "SELECT count(*) AS steps FROM steps WHERE rank = 0")
    assert (answer.code, answer.out.split()) == (0, ["steps", "3"])
    assert answer.err == f"runspan: {path}: its last line is cut off; what stands before it was read\n"


def test_one_trace_file_is_asked_alone(runspan: Cli) -> None:
    """The path of a rank's file means that rank."""
    path = runspan.root / "runs" / "run-a" / "rank-00001.jsonl"
    answer = runspan("query", str(path), "SELECT DISTINCT rank FROM steps", "--json")
    assert (answer.code, answer.document["rows"]) == (0, [[1]])


def test_control_characters_do_not_reach_the_terminal(runspan: Cli) -> None:
    """Names are the user's: what would move the cursor is escaped."""
    answer = runspan("query", "run-a", "SELECT chr(27) || '[2J' AS \"a\nb\"")
    assert "\x1b" not in answer.out
    assert len(answer.out.splitlines()) == 2


def test_a_long_table_is_cut_and_says_so(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has so many rows at most; all of them are in CSV."""
    monkeypatch.setattr(query, "_MAX_TABLE_ROWS", 2)
    answer = runspan("query", "run-a", "FROM steps SELECT step")
    assert len(answer.out.splitlines()) == 3
    assert "only the first 2 rows" in answer.err
    assert len(runspan("query", "run-a", "FROM steps SELECT step", "--csv").out.splitlines()) == 7


def test_without_duckdb_the_extra_is_named(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base installation says what to install, with exit code 2."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    answer = runspan("query", "run-a", "FROM steps")
    assert answer.code == 2
    assert "pip install 'runspan[sql]'" in answer.err


@pytest.mark.parametrize("command", [("query",), ("trace", "export")])
def test_help_fits_80_columns_and_tells_the_exit_codes(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The help of these commands says what their exit codes mean."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Exit codes: 0 done;" in out
    assert max(map(len, out.splitlines())) <= 80
