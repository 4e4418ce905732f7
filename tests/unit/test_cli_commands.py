from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from runspan import cli
from runspan.tracefile.events import Dropped, Param, Terminal
from support.cli import Cli, cut_end, described, make_run, make_step, store
from support.traces import START_UNIX_NANO, make_metric

_FAILED = Terminal("failed", 1_000_000_000, "failed", "ValueError: boom")


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands on an empty root folder, whatever this process's environment says."""
    for name in ("RUNSPAN_DIR", "RUNSPAN_STORAGE", "RUNSPAN_TRACE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return Cli(tmp_path / "root", capsys)


def test_runs_lists_what_storage_and_the_directories_have_newest_first(runspan: Cli) -> None:
    """A run that storage lacks is listed from its files alone, each run once."""
    store(runspan.root, make_run(runspan.root, "run-a"))
    make_run(runspan.root, "run-b", start_s=60, world_size=2, terminal=_FAILED)
    listed = runspan("runs", "--json").document
    assert [(run["run_id"], run["status"], run["in_storage"]) for run in listed] == [
        ("run-b", "failed", False),
        ("run-a", "success", True),
    ]
    assert (listed[0]["experiment"], listed[0]["world_size"]) == ("mnist", 2)


def test_runs_prints_aligned_columns_without_tabs_or_colours(runspan: Cli) -> None:
    """Output that is no terminal is plain text: one line a run below the headings."""
    make_run(runspan.root, "run-a")
    answer = runspan("runs")
    heading, line = answer.out.splitlines()
    assert heading.split() == ["RUN", "EXPERIMENT", "STATUS", "RANKS", "AGE", "TOOK"]
    assert line.split()[:4] == ["run-a", "mnist", "success", "1"]
    assert "\t" not in answer.out
    assert "\x1b" not in answer.out


def test_runs_filters(runspan: Cli) -> None:
    """Experiment, status and limit narrow the list; the limit keeps the newest."""
    for number, terminal in enumerate((None, _FAILED, _FAILED)):
        make_run(runspan.root, f"run-{number}", start_s=number, terminal=terminal)

    def listed(*options: str) -> list[str]:
        return [run["run_id"] for run in runspan("runs", "--json", *options).document]

    assert listed("--status", "failed") == ["run-2", "run-1"]
    assert listed("--status", "failed", "--limit", "1") == ["run-2"]
    assert listed("--status", "failed", "--status", "success") == ["run-2", "run-1", "run-0"]
    assert listed("--experiment", "mnist", "--limit", "0") == []
    assert listed("--experiment", "other") == []


def test_runs_names_an_unknown_status(runspan: Cli) -> None:
    """A status that does not exist is an error that lists those that do."""
    answer = runspan("runs", "--status", "done")
    assert answer.code == 2
    assert "done" in answer.err
    assert "interrupted" in answer.err


def test_looking_creates_nothing(runspan: Cli) -> None:
    """A list of no runs makes neither a folder nor a database."""
    answer = runspan("runs")
    assert (answer.code, answer.out) == (0, "")
    assert not runspan.root.exists()


def test_a_killed_run_is_interrupted_and_never_finished(runspan: Cli) -> None:
    """Case 23: SIGKILL leaves no terminal; the stale heartbeat shows as interrupted, with and without storage."""
    directory = make_run(runspan.root, "run-a")
    cut_end(directory)
    assert runspan("runs", "--json").document[0]["status"] == "interrupted"
    store(runspan.root, directory)
    listed = runspan("runs", "--json").document[0]
    assert (listed["status"], listed["in_storage"], listed["end_time_unix_nano"]) == ("interrupted", True, None)
    assert "interrupted, last seen 2023-11-14 22:13:20Z" in runspan("show", "run-a").out


def test_one_killed_rank_interrupts_the_run(runspan: Cli) -> None:
    """Ranks that ended well do not make a run a success that another rank never ended."""
    cut_end(make_run(runspan.root, "run-a", world_size=2), rank=1)
    shown = runspan("show", "run-a", "--json").document
    assert (shown["status"], [rank["status"] for rank in shown["ranks"]]) == ("interrupted", ["success", "interrupted"])


def test_a_rank_without_a_file_keeps_a_run_from_having_ended(runspan: Cli) -> None:
    """Of two ranks the second never wrote: the run is interrupted, and show says which is missing."""
    (make_run(runspan.root, "run-a", world_size=2) / "rank-00001.jsonl").unlink()
    answer = runspan("show", "run-a")
    assert "interrupted" in answer.out
    assert "1 of 2 ranks have no trace file here" in answer.out


@pytest.mark.parametrize("stored", [True, False], ids=["in storage", "directory only"])
def test_show_says_what_a_person_wants_to_know(runspan: Cli, *, stored: bool) -> None:
    """Status, parameters, tags, metrics, ranks, artifacts and files, from storage or from the directory alone."""
    directory = make_run(runspan.root, "run-a", events=[*described(0.5), make_step(0, forward=2)])
    if stored:
        store(runspan.root, directory)
    answer = runspan("show", "run-a")
    assert answer.code == 0
    for expected in ("success", "mnist", "lr", "0.5", "vision", "loss", "▁▅█", "weights", "2.00 KiB", str(directory)):
        assert expected in answer.out
    assert ("not in" in answer.out) is not stored
    shown = runspan("show", "run-a", "--json").document
    assert (shown["params"], shown["tags"], shown["metrics"]) == ({"lr": 0.5}, {"team": "vision"}, {"loss": 0.5})
    assert shown["summary"]["loss"] == {"last": 0.5, "min": 0.0, "max": 0.5, "count": 3}
    assert (shown["ranks"][0]["steps"], shown["ranks"][0]["step_median_ns"]) == (1, 2_000_000)
    assert shown["in_storage"] is stored


def test_show_names_the_slow_rank(runspan: Cli) -> None:
    """Two ranks in lockstep: the one whose own work is long is named, in text and in JSON."""
    directory = make_run(runspan.root, "run-a", world_size=2, events=[make_step(0, forward=1, all_reduce=9)])
    slow = make_run(runspan.root / "other", "run-a", world_size=2, events=[make_step(0, forward=9, all_reduce=1)])
    (slow / "rank-00001.jsonl").replace(directory / "rank-00001.jsonl")
    assert "Rank 1 is slow" in runspan("show", "run-a").out
    assert runspan("show", "run-a", "--json").document["slow_rank"] == 1


def test_show_tells_of_ranks_that_storage_lacks(runspan: Cli) -> None:
    """Where only rank 0 wrote to storage, show names the command that completes it."""
    directory = make_run(runspan.root, "run-a")
    store(runspan.root, directory)
    for rank in range(2):
        source = make_run(runspan.root / "other", "run-a", world_size=2) / f"rank-0000{rank}.jsonl"
        source.replace(directory / source.name)
    assert f"runspan import {directory}" in runspan("show", "run-a").out


def test_a_file_that_cannot_be_read_does_not_hide_the_other_ranks(runspan: Cli) -> None:
    """Case 34: an empty trace file is told of on stderr, and the ranks beside it are shown."""
    directory = make_run(runspan.root, "run-a", world_size=2)
    (directory / "rank-00001.jsonl").write_bytes(b"")
    answer = runspan("show", "run-a", "--json")
    assert [rank["status"] for rank in answer.document["ranks"]] == ["success", "interrupted"]
    assert "rank-00001.jsonl: empty" in answer.err


def test_secrets_that_an_older_recorder_wrote_are_not_printed(runspan: Cli) -> None:
    """A parameter with a secret's name shows as *** in text, JSON and diff."""
    for run_id, secret in (("run-a", "hunter2"), ("run-b", "hunter3")):
        make_run(runspan.root, run_id, events=[Param("db_password", secret)])
    for command in (("show", "run-a"), ("show", "run-a", "--json"), ("diff", "run-a", "run-b")):
        answer = runspan(*command)
        assert answer.code == 0
        assert "hunter" not in answer.out + answer.err
    assert "***" in runspan("show", "run-a").out


def test_a_run_is_found_by_id_prefix_latest_or_path(runspan: Cli) -> None:
    """Each way to name a run finds it; an exact id wins over being the beginning of another."""
    make_run(runspan.root, "run")
    directory = make_run(runspan.root, "run-b/2", start_s=60)
    elsewhere = make_run(runspan.root / "elsewhere", "run-c")

    def found(reference: str) -> str:
        document = runspan("show", reference, "--json").document
        return str(document["run_id"])

    references = ("run", "run-b/2", "run-", "latest", str(directory), str(elsewhere))
    assert [found(reference) for reference in references] == ["run", *["run-b/2"] * 4, "run-c"]


def test_an_ambiguous_or_unknown_run_is_an_error_that_names_candidates(runspan: Cli) -> None:
    """Both errors are one line on stderr, exit 2, and say which runs there are."""
    for number in range(7):
        make_run(runspan.root, f"run-{number}", start_s=number)
    for reference, expected in (("run-", "beginning of 7 runs"), ("nothing", "no run 'nothing'"), ("", "no run ''")):
        answer = runspan("show", reference)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        assert expected in answer.err
        assert "run-6, run-5, run-4, run-3, run-2 and 2 more" in answer.err


def test_an_empty_workspace_says_where_it_looked(runspan: Cli) -> None:
    """`latest` of nothing is an error that names the folder and the options."""
    answer = runspan("show", "latest")
    assert answer.code == 2
    assert str(runspan.root) in answer.err
    assert "--dir" in answer.err


def test_metrics_prints_points_exactly(runspan: Cli) -> None:
    """Values have all their digits, NaN its name; JSON has the same points."""
    make_run(runspan.root, "run-a", events=[make_metric(3, value=0.1 + 0.2), make_metric(4, value=math.nan)])
    lines = runspan("metrics", "run-a", "loss").out.splitlines()
    assert lines[0].split() == ["STEP", "VALUE", "TIME_UNIX_NANO", "RANK", "ATTEMPT"]
    assert lines[4].split() == ["3", "0.30000000000000004", str(START_UNIX_NANO), "0", "0"]
    assert lines[5].split()[1] == "NaN"
    points = runspan("metrics", "run-a", "loss", "--json").document["points"]
    assert [point["value"] for point in points] == [0.0, 0.25, 0.5, 0.30000000000000004, "NaN"]


def test_metrics_narrows_to_rank_and_limit(runspan: Cli) -> None:
    """--rank keeps one rank's points, --limit the first, the last and some between."""
    make_run(runspan.root, "run-a", world_size=2, events=[make_metric(step) for step in range(3, 100)])
    of_rank = runspan("metrics", "run-a", "loss", "--rank", "1", "--json").document["points"]
    assert {point["rank"] for point in of_rank} == {1}
    assert len(of_rank) == 100
    sampled = runspan("metrics", "run-a", "loss", "--rank", "1", "--limit", "5", "--json").document["points"]
    assert len(sampled) == 5
    assert (sampled[0]["step"], sampled[-1]["step"]) == (0, 99)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run-a", "acc"), "no metric 'acc': it has loss"),
        (("run-a", "loss", "--rank", "7"), "no points of --rank 7: it has rank 0 attempt 0"),
        (("run-a", "loss", "--attempt", "2"), "no points of --attempt 2"),
        (("run-a", "loss", "--limit", "0"), "--limit"),
    ],
)
def test_metrics_says_what_there_is_instead(runspan: Cli, arguments: tuple[str, ...], expected: str) -> None:
    """An unknown key, rank or attempt is an error that names what the run has."""
    make_run(runspan.root, "run-a")
    answer = runspan("metrics", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert expected in answer.err


def test_diff_shows_what_differs_and_nothing_else(runspan: Cli) -> None:
    """Parameters, tags and summaries that are equal are left out; a side without a value has none in JSON."""
    make_run(runspan.root, "run-a", events=[Param("lr", 0.5), Param("layers", 2), Param("note", math.nan)])
    make_run(
        runspan.root, "run-b", events=[Param("lr", 0.25), Param("layers", 2), Param("note", math.nan), make_metric(3)]
    )
    document = runspan("diff", "run-a", "run-b", "--json").document
    assert document["params"] == {"lr": {"a": 0.5, "b": 0.25}}
    assert document["summary"]["loss count"] == {"a": 3, "b": 4}
    assert document["tags"] == {}
    text = runspan("diff", "run-a", "run-b").out
    assert "-0.25" in text
    assert "layers" not in text
    assert "No difference" in runspan("diff", "run-a", "run-a").out


def test_diff_tells_types_apart(runspan: Cli) -> None:
    """1, 1.0 and true are equal for Python, and still different parameters."""
    make_run(runspan.root, "run-a", events=[Param("flag", True)])
    make_run(runspan.root, "run-b", events=[Param("flag", 1)])
    assert runspan("diff", "run-a", "run-b", "--json").document["params"] == {"flag": {"a": True, "b": 1}}


def test_import_fills_storage_and_adds_nothing_twice(runspan: Cli) -> None:
    """Case 37: the second import of a folder of runs finds every point known."""
    make_run(runspan.root, "run-a")
    make_run(runspan.root, "run-b", world_size=2)
    runs = str(runspan.root / "runs")
    first = runspan("import", runs, "--json")
    assert (first.code, [report["points_added"] for report in first.document["reports"]]) == (0, [3, 6])
    second = runspan("import", runs, "--json").document["reports"]
    assert [(report["points_added"], report["points_known"]) for report in second] == [(0, 3), (0, 6)]
    assert [run["in_storage"] for run in runspan("runs", "--json").document] == [True, True]


def test_import_goes_on_past_a_broken_run_and_says_so(runspan: Cli) -> None:
    """Case 34: one run directory without a readable trace: exit 1, the other is imported."""
    make_run(runspan.root, "run-a")
    (make_run(runspan.root, "run-b") / "rank-00000.jsonl").write_bytes(b"")
    answer = runspan("import", str(runspan.root / "runs"))
    assert answer.code == 1
    assert "run-a: 3 points added" in answer.out
    assert "not imported" in answer.err


def test_import_of_what_is_no_run_directory_is_an_error(runspan: Cli, tmp_path: Path) -> None:
    """A folder without traces is named, with what was expected."""
    answer = runspan("import", str(tmp_path))
    assert answer.code == 2
    assert str(tmp_path) in answer.err
    assert "rank-*.jsonl" in answer.err


def test_rm_removes_rows_and_directory(runspan: Cli) -> None:
    """After rm --yes neither storage nor disk has the run; others stay."""
    directory = make_run(runspan.root, "run-a")
    store(runspan.root, directory)
    kept = make_run(runspan.root, "run-b")
    assert runspan("rm", "run-a", "--yes").code == 0
    assert not directory.exists()
    assert kept.exists()
    assert [run["run_id"] for run in runspan("runs", "--json").document] == ["run-b"]


def test_rm_without_a_terminal_needs_yes(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot ask removes nothing, and says which option is missing."""
    directory = make_run(runspan.root, "run-a")
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        answer = runspan("rm", "run-a")
    assert answer.code == 2
    assert "--yes" in answer.err
    assert directory.exists()


def test_rm_refuses_a_running_run_unless_forced(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose last line is young is still running; --force removes it all the same."""
    directory = make_run(runspan.root, "run-a")
    cut_end(directory)
    monkeypatch.setattr("runspan._clock.SystemClock.time_ns", staticmethod(lambda: START_UNIX_NANO + 1_000_000_000))
    answer = runspan("rm", "run-a", "--yes")
    assert answer.code == 2
    assert "still running" in answer.err
    assert directory.exists()
    assert runspan("rm", "run-a", "--yes", "--force").code == 0
    assert not directory.exists()


def test_rm_leaves_a_symbolic_link_alone(runspan: Cli, tmp_path: Path) -> None:
    """A run directory that is a link is not followed into a folder that may be anybody's."""
    directory = make_run(runspan.root, "run-a")
    target = tmp_path / "target"
    directory.rename(target)
    directory.symlink_to(target)
    answer = runspan("rm", "run-a", "--yes")
    assert answer.code == 2
    assert "symbolic link" in answer.err
    assert (target / "rank-00000.jsonl").exists()


def test_gc_lists_first_and_removes_with_yes(runspan: Cli) -> None:
    """Without --yes nothing goes; with it the old runs go from storage and disk."""
    directory = make_run(runspan.root, "run-a")
    store(runspan.root, directory)
    cut_end(make_run(runspan.root, "run-b"))
    listed = runspan("gc", "--older-than", "30d", "--json").document
    assert {run["run_id"] for run in listed["runs"]} == {"run-a", "run-b"}
    assert listed["removed"] == []
    assert "add --yes" in runspan("gc", "--older-than", "30d").err
    assert directory.exists()
    assert runspan("gc", "--older-than", "30d", "--yes").code == 0
    assert runspan("runs", "--json").document == []


def test_gc_keeps_what_is_younger(runspan: Cli) -> None:
    """A run that ended within the age is not listed."""
    make_run(runspan.root, "run-a")
    assert runspan("gc", "--older-than", "2000w", "--json").document == {"runs": [], "removed": []}


def test_gc_goes_on_past_what_it_cannot_remove(runspan: Cli, tmp_path: Path) -> None:
    """One run that must be left alone: exit 1, it is named, and the others are gone."""
    linked, other = make_run(runspan.root, "run-a"), make_run(runspan.root, "run-b")
    linked.rename(tmp_path / "target")
    linked.symlink_to(tmp_path / "target")
    answer = runspan("gc", "--older-than", "30d", "--yes")
    assert answer.code == 1
    assert "run-a" in answer.err
    assert not other.exists()


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1y", "1.5h"])
def test_gc_takes_an_age_with_a_unit(runspan: Cli, age: str) -> None:
    """Anything else is an error that shows how an age is written."""
    answer = runspan("gc", f"--older-than={age}")
    assert answer.code == 2
    assert "30d" in answer.err


def test_runs_names_the_run_directories_that_it_could_not_read(runspan: Cli) -> None:
    """Each is a line on stderr that says why; the others are listed, and the exit code is 0."""
    make_run(runspan.root, "run-a")
    newer, empty = make_run(runspan.root, "run-b"), make_run(runspan.root, "run-c")
    (newer / "rank-00000.jsonl").write_text('{"kind":"meta","schema":"runspan/trace/9"}\n')
    (empty / "rank-00000.jsonl").write_text("")
    (runspan.root / "runs" / "no-run").mkdir()
    answer = runspan("runs", "--json")
    assert [run["run_id"] for run in answer.document] == ["run-a"]
    first, second = answer.err.splitlines()
    assert str(newer) in first
    assert "runspan/trace/9" in first
    assert str(empty) in second
    assert answer.code == 0


def test_show_sums_what_was_lost_over_the_ranks(runspan: Cli) -> None:
    """Dropped lines of all ranks add up by signal and reason; a run without any has no such line."""
    lost = [Dropped("traces", "budget", 3), Dropped("file", "ENOSPC", 1), Dropped("file", "ENOSPC", 1)]
    make_run(runspan.root, "run-a", world_size=2, events=lost)
    make_run(runspan.root, "run-b")
    assert "Lost: file 4 (ENOSPC), traces 6 (budget)" in runspan("show", "run-a").out
    assert runspan("show", "run-a", "--json").document["losses"] == [
        {"signal": "file", "reason": "ENOSPC", "count": 4},
        {"signal": "traces", "reason": "budget", "count": 6},
    ]
    assert "Lost" not in runspan("show", "run-b").out
    assert runspan("show", "run-b", "--json").document["losses"] == []


def test_a_foreign_database_is_an_error_that_names_it(runspan: Cli, tmp_path: Path) -> None:
    """A file that is no SQLite database is one line on stderr and exit 2."""
    database = tmp_path / "foreign.db"
    database.write_text("this is no database, however long it goes on\n" * 100)
    answer = runspan("runs", "--storage", str(database))
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert str(database) in answer.err


def test_a_database_that_was_named_must_exist(runspan: Cli, tmp_path: Path) -> None:
    """A mistyped --storage is not answered with an empty list."""
    answer = runspan("runs", "--storage", str(tmp_path / "missing.db"))
    assert answer.code == 2
    assert "missing.db" in answer.err


def test_storage_can_be_named_or_turned_off(runspan: Cli, tmp_path: Path) -> None:
    """--storage names another database, and `none` leaves the run directories alone to answer."""
    directory = make_run(runspan.root, "run-a")
    database = tmp_path / "other.db"
    assert runspan("import", str(directory), "--storage", str(database)).code == 0
    assert runspan("runs", "--json", "--storage", str(database)).document[0]["in_storage"] is True
    assert runspan("runs", "--json", "--storage", "none").document[0]["in_storage"] is False
    assert runspan("import", str(directory), "--storage", "none").code == 2


def test_a_storage_password_is_never_printed(runspan: Cli) -> None:
    """Neither doctor's report nor an error shows the password of a storage URL."""
    url = "postgresql://user:hunter2@127.0.0.1:1/runs"
    for command in (("doctor", "--storage", url), ("runs", "--storage", url), ("runs", "--storage", url + "?%%")):
        answer = runspan(*command)
        assert answer.code in {1, 2}
        assert "hunter2" not in answer.out + answer.err


def test_a_root_that_is_a_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--dir with a file names the option and what it takes."""
    (tmp_path / "file").touch()
    answer = Cli(tmp_path / "file", capsys)("runs")
    assert answer.code == 2
    assert "--dir" in answer.err


def test_names_with_escape_sequences_do_not_reach_the_terminal(runspan: Cli) -> None:
    """Keys, parameters and run ids are the user's: control characters are shown escaped."""
    make_run(runspan.root, "run-\x1b[31m", events=[Param("a\nb", "\x1b[2J"), make_metric(0, key="k\x1b[0m")])
    for command in (("runs",), ("show", "run-"), ("metrics", "run-", "other")):
        answer = runspan(*command)
        assert "\x1b" not in answer.out + answer.err


@pytest.mark.parametrize("command", ["", "runs", "show", "metrics", "diff", "import", "rm", "gc", "doctor", "demo"])
def test_help_fits_80_columns_and_tells_the_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command's help says what its exit codes mean."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert "Exit codes: 0 done;" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and version."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("runspan 0.")


def test_show_draws_a_long_series_in_one_line(runspan: Cli) -> None:
    """The sparkline of 20,000 points is 20 bars from the lowest to the highest, its last value the last one."""
    directory = make_run(runspan.root, "run-a", events=[make_metric(step) for step in range(3, 20_000)])
    store(runspan.root, directory)
    assert runspan("show", "run-a", "--json").document["metrics"] == {"loss": 19_999 / 4}
    drawn = re.findall("[▁▂▃▄▅▆▇█]+", runspan("show", "run-a").out)
    assert [len(bars) for bars in drawn] == [20]
    assert "".join(sorted(drawn[0])) == drawn[0]
    assert (drawn[0][0], drawn[0][-1]) == ("▁", "█")
