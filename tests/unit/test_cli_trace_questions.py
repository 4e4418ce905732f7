from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from runspan.tracefile.events import Dropped, Terminal, TraceEvent
from runspan.tracefile.layout import RunDirectory, TraceName
from support.captures import capture_meta, complete_capture, gradient_event, memory_event, span_events
from support.cli import Answer, Cli, cut_end, make_run, make_step
from support.traces import make_meta, make_metric, write_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FAILED = Terminal("failed", 1_000_000_000, "failed", "ValueError: boom")


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands on an empty root folder, whatever this process's environment says."""
    for name in ("RUNSPAN_DIR", "RUNSPAN_STORAGE", "RUNSPAN_TRACE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return Cli(tmp_path / "root", capsys)


def _add_capture(directory: Path, events: Sequence[TraceEvent] = (), rank: int = 0) -> Path:
    path = RunDirectory(directory).capture_folder("update-000000101", rank, 1) / TraceName(rank).filename
    write_lines(path, events or complete_capture())
    return path


def _broken_capture() -> list[TraceEvent]:
    step = span_events("step", None, 0, 100, span_events("child", "gone", 0, 10), measured=True)
    return [capture_meta(), *step, Terminal("complete", 100, "success")]


def _query(runspan: Cli, kind: str, *options: str, trace: str = "run-a") -> Answer:
    return runspan("trace", "query", trace, "--kind", kind, *options)


def test_summary_tells_what_a_run_is_and_holds(runspan: Cli) -> None:
    """Status, counts by kind, steps, spans, metrics, captures, losses and findings of all ranks and captures."""
    steps = [make_step(number, forward=number + 1) for number in range(20)]
    spans = span_events("run", None, 0, 1_000)
    directory = make_run(
        runspan.root, "run-a", world_size=2, events=[*spans, *steps, Dropped("metrics", "queue_full", 3)]
    )
    _add_capture(directory)
    document = runspan("trace", "summary", "run-a", "--json").document
    assert (document["status"], document["meta"]["run_id"]) == ("success", "run-a")
    assert document["events"]["step"] == 40
    assert document["events"]["meta"] == document["events"]["terminal"] == 3
    assert document["steps"] == {"count": 40, "median_ns": 10_500_000, "p95_ns": 19_000_000, "max_ns": 20_000_000}
    assert {"name": "run", "count": 2, "total_ns": 2_000} in document["spans"]
    (loss,) = document["metrics"]
    assert (loss["key"], loss["last"], loss["last_step"], loss["points"], loss["min"]) == ("loss", 0.5, 2, 3, 0)
    assert document["losses"] == {"metrics (queue_full)": 6}
    (capture,) = document["captures"]
    assert (capture["capture_step"], capture["rank"], capture["duration_ns"]) == (101, 0, 100)
    assert [(trace["rank"], trace["capture_step"]) for trace in document["traces"]] == [(0, None), (1, None), (0, 101)]
    text = runspan("trace", "summary", "run-a").out
    for expected in ("3 traces of 2 ranks", "p95", "queue_full", "Captured steps", "0 errors, 0 warnings"):
        assert expected in text


def test_summary_of_one_file_says_how_its_trace_stands(runspan: Cli, tmp_path: Path) -> None:
    """A file is summed up alone: failed with its reason, or interrupted since its last line."""
    path = tmp_path / "any-name.jsonl"
    write_lines(path, [make_meta(), make_metric(0, at_s=5), _FAILED])
    document = runspan("trace", "summary", str(path), "--json").document
    assert (document["status"], document["reason"]) == ("failed", "ValueError: boom")
    write_lines(path, [make_meta(), make_metric(0, at_s=5)])
    assert "interrupted, last seen 2023-11-14 22:13:25Z" in runspan("trace", "summary", str(path)).out


def test_summary_keeps_values_that_are_not_finite(runspan: Cli, tmp_path: Path) -> None:
    """A metric that ends in NaN says so, and its bounds are those of its finite values."""
    path = tmp_path / "trace.jsonl"
    values = [make_metric(0, value=1.0), make_metric(1, value=float("inf")), make_metric(2, value=float("nan"))]
    write_lines(path, [make_meta(), *values, make_metric(0, key="never", value=float("nan"))])
    loss, never = runspan("trace", "summary", str(path), "--json").document["metrics"]
    assert (loss["last"], loss["min"], loss["max"], loss["non_finite"]) == ("NaN", 1, 1, 2)
    assert (never["min"], never["max"]) == (None, None)


def test_a_broken_file_of_a_run_does_not_hide_the_others(runspan: Cli) -> None:
    """What cannot be read is named on stderr, the rest is summed up, and the exit code is 1."""
    directory = make_run(runspan.root, "run-a", world_size=3)
    broken = directory / TraceName(1).filename
    lines = broken.read_bytes().splitlines(keepends=True)
    broken.write_bytes(b"".join([lines[0], b"{}\n", *lines[1:]]))
    (directory / TraceName(2).filename).write_bytes(b"")
    answer = runspan("trace", "summary", "run-a", "--json")
    assert answer.code == 1
    assert [trace["rank"] for trace in answer.document["traces"]] == [0]
    assert f"{broken}:2" in answer.err
    assert "2 files of the run cannot be read" in answer.err
    lenient = runspan("trace", "summary", "run-a", "--json", "--lenient")
    assert [trace["skipped"] for trace in lenient.document["traces"]] == [0, 1]
    assert "1 line skipped" in lenient.err
    assert runspan("trace", "health", "run-a").code == 1


def test_a_broken_file_alone_is_bad_input(runspan: Cli, tmp_path: Path) -> None:
    """The error names file and line, and the exit code is 2; leniently it is read."""
    path = tmp_path / "trace.jsonl"
    data = write_lines(path, [make_meta(), make_metric(0)])
    path.write_bytes(data + b"{}\n" + data.splitlines()[1] + b"\n")
    for command in ("summary", "health"):
        answer = runspan("trace", command, str(path))
        assert answer.code == 2
        assert f"{path}:3" in answer.err
        assert runspan("trace", command, str(path), "--lenient").code == 0
    write_lines(path, [make_metric(0)])
    assert "meta" in runspan("trace", "summary", str(path)).err


def test_a_torn_end_is_told(runspan: Cli) -> None:
    """What a crash cut off is a note beside the answer."""
    directory = make_run(runspan.root, "run-a")
    cut_end(directory)
    path = directory / TraceName(0).filename
    path.write_bytes(path.read_bytes()[:-4])
    answer = runspan("trace", "health", "run-a")
    assert answer.code == 0
    assert f"{path}:4: " in answer.err
    assert "at the end cannot be read" in answer.err


def test_health_of_a_sound_run_is_exit_code_0(runspan: Cli) -> None:
    """Nothing is found, and the answer says of how many traces."""
    _add_capture(make_run(runspan.root, "run-a", world_size=2))
    answer = runspan("trace", "health", "run-a")
    assert (answer.code, answer.out) == (0, "3 traces: 0 errors, 0 warnings\n")


def test_health_names_each_finding_and_fails_for_errors(runspan: Cli) -> None:
    """Errors come first, with the trace they are in; warnings alone leave the exit code at 0."""
    directory = make_run(runspan.root, "run-a")
    path = _add_capture(directory, _broken_capture())
    answer = runspan("trace", "health", "run-a")
    assert answer.code == 1
    first = answer.out.splitlines()[1]
    assert first.split()[:3] == ["error", "unknown_parent", "1"]
    assert "span 'child' names the parent 'gone' (captures/update-000000101/rank-00000.jsonl)" in first
    document = runspan("trace", "health", "run-a", "--json").document
    assert (document["errors"], document["warnings"]) == (1, 9)
    (findings,) = [trace["findings"] for trace in document["traces"] if trace["findings"]]
    assert findings[0] == {
        "code": "unknown_parent",
        "severity": "error",
        "message": "span 'child' names the parent 'gone'",
        "ids": ["child"],
    }
    without = [event for event in complete_capture() if event != gradient_event()]
    write_lines(path, without)
    assert runspan("trace", "health", str(path)).code == 0


@pytest.mark.parametrize("command", ["summary", "health"])
def test_an_unknown_trace_is_bad_input(runspan: Cli, command: str) -> None:
    """Neither a file nor a run: exit code 2 and a line that says what is taken."""
    answer = runspan("trace", command, "nothing-like-it")
    assert answer.code == 2
    assert "nothing-like-it" in answer.err


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "slowest",
            {"path": "step/backward", "op_name": None, "calls": 1, "self_ns": 40, "total_ns": 40, "share": 0.4},
        ),
        ("heaviest", {"path": "step/forward", "op_name": None, "allocated_bytes": 16, "share": 1}),
        (
            "memory",
            {
                "capture_step": 101,
                "rank": 0,
                "device": "cpu",
                "peak_bytes": 16,
                "retained_bytes": 0,
                "device_used_bytes": None,
                "device_reserved_bytes": None,
                "device_capacity_bytes": None,
            },
        ),
        (
            "efficiency",
            {"op_name": "matmul", "calls": 1, "duration_ns": 10, "dense_bytes": 32, "bytes_per_ns": 3.2},
        ),
        (
            "gradients",
            {
                "capture_step": 101,
                "rank": 0,
                "root": "loss",
                "key": "layer.weight",
                "state": "present",
                "norm": 1,
            },
        ),
    ],
)
def test_a_capture_answers(runspan: Cli, kind: str, expected: dict[str, object]) -> None:
    """Every kind about captured steps has its rows, as JSON and as a table."""
    events = [
        msgspec.structs.replace(event, span_id="forward")
        if event == memory_event("alloc", 1, timestamp_ns=20)
        else event
        for event in complete_capture()
    ]
    path = _add_capture(make_run(runspan.root, "run-a"), events)
    for trace in ("run-a", str(path)):
        document = _query(runspan, kind, "--json", trace=trace).document
        assert document["rows"][0] == expected
        assert document["total"] == len(document["rows"])
    answer = _query(runspan, kind)
    assert answer.code == 0
    assert len(answer.out.splitlines()) == document["total"] + 1


def test_a_capture_answers_with_its_spans_and_tensors(runspan: Cli) -> None:
    """Spans stand depth first with their own time; tensors with the path of their span."""
    _add_capture(make_run(runspan.root, "run-a"))
    spans = _query(runspan, "spans", "--json").document["rows"]
    assert [(span["path"], span["step"], span["self_ns"]) for span in spans] == [
        ("step", None, 20),
        ("step/forward", "forward", 30),
        ("step/backward", "backward", 40),
        ("step/optimizer", "optimizer", 10),
    ]
    tensors = _query(runspan, "tensors", "--json").document["rows"]
    assert [(tensor["tensor_id"], tensor["path"], tensor["shape"]) for tensor in tensors] == [
        ("t0", "step/forward", [2, 2]),
        ("t1", "step/forward", [2, 2]),
    ]
    assert "  forward" in _query(runspan, "spans").out
    assert "2x2" in _query(runspan, "tensors").out


def test_memory_has_its_timeline_as_json(runspan: Cli) -> None:
    """What was live after each change stands beside the rows."""
    _add_capture(make_run(runspan.root, "run-a"))
    (timeline,) = _query(runspan, "memory", "--json").document["timelines"]
    assert [(point["timestamp_ns"], point["live_bytes"]) for point in timeline["points"]] == [(20, 16), (90, 0)]


def test_captures_of_several_ranks_are_asked_together(runspan: Cli) -> None:
    """Spans of one path add up over all captures, and the share is of all their measured time."""
    directory = make_run(runspan.root, "run-a")
    for rank in range(2):
        meta = capture_meta(process=make_meta(rank).process)
        _add_capture(directory, [meta, *complete_capture()[1:]], rank)
    rows = _query(runspan, "slowest", "--json").document["rows"]
    assert rows[0] == {
        "path": "step/backward",
        "op_name": None,
        "calls": 2,
        "self_ns": 80,
        "total_ns": 80,
        "share": 0.4,
    }
    assert [row["path"] for row in rows if row["op_name"] == "matmul"] == ["step/forward"]


def test_a_run_without_captures_answers_with_its_own_spans(runspan: Cli) -> None:
    """Nothing is measured in them, so there is no share."""
    make_run(runspan.root, "run-a", events=span_events("run", None, 0, 10))
    (row,) = _query(runspan, "slowest", "--json").document["rows"]
    assert (row["path"], row["self_ns"], row["share"]) == ("run", 10, None)


@pytest.mark.parametrize("kind", ["heaviest", "memory", "efficiency", "tensors", "gradients"])
def test_what_was_not_recorded_is_unknown(runspan: Cli, kind: str) -> None:
    """No row, a note that says unknown and what records it, and exit code 1."""
    make_run(runspan.root, "run-a", events=span_events("run", None, 0, 10))
    answer = _query(runspan, kind)
    assert (answer.code, answer.out) == (1, "")
    assert "unknown, not zero; hooks tell `step.recorder` of it" in answer.err


def test_a_graph_is_not_made_of_a_broken_capture(runspan: Cli) -> None:
    """Alone it is bad input; among good ones it is left out, and the answer is partial."""
    directory = make_run(runspan.root, "run-a")
    path = _add_capture(directory, _broken_capture())
    answer = _query(runspan, "slowest", trace=str(path))
    assert (answer.code, answer.out) == (2, "")
    assert "unknown_parent" in answer.err
    assert _query(runspan, "slowest").code == 2
    meta = capture_meta(process=make_meta(1).process)
    _add_capture(directory, [meta, *complete_capture()[1:]], 1)
    partial = _query(runspan, "spans", "--json")
    assert partial.code == 1
    assert {row["rank"] for row in partial.document["rows"]} == {1}
    assert "the answer is partial" in partial.err


def test_the_limit_bounds_the_rows(runspan: Cli) -> None:
    """A table has twenty rows unless told, and says how many there are; JSON has all unless told."""
    make_run(runspan.root, "run-a", events=[make_step(number, forward=1) for number in range(30)])
    table = _query(runspan, "steps")
    assert len(table.out.splitlines()) == 21
    assert "20 of 30 rows shown" in table.err
    assert len(_query(runspan, "steps", "--limit", "25").out.splitlines()) == 26
    assert len(_query(runspan, "steps", "--json").document["rows"]) == 30
    document = _query(runspan, "steps", "--json", "--limit", "2").document
    assert (len(document["rows"]), document["total"]) == (2, 30)


def test_steps_are_compared_over_ranks(runspan: Cli) -> None:
    """The longest step comes first, with the rank that was slowest in it."""
    directory = make_run(runspan.root, "run-a")
    for rank in range(3):
        steps = [make_step(0, forward=10), make_step(1, forward=10 + 5 * rank)]
        write_lines(directory / TraceName(rank).filename, [make_meta(rank), *steps])
    rows = _query(runspan, "steps", "--json").document["rows"]
    assert rows == [
        {
            "step": 1,
            "count": 3,
            "min_ns": 10_000_000,
            "mean_ns": 15_000_000,
            "max_ns": 20_000_000,
            "slowest_rank": 2,
        },
        {
            "step": 0,
            "count": 3,
            "min_ns": 10_000_000,
            "mean_ns": 10_000_000,
            "max_ns": 10_000_000,
            "slowest_rank": 0,
        },
    ]


def test_a_later_attempt_supersedes_the_steps_of_an_earlier_one(runspan: Cli) -> None:
    """From the step on at which it resumed; those before it stay."""
    directory = make_run(runspan.root, "run-a")
    for attempt, numbers in enumerate((range(213), range(200, 300))):
        steps = [make_step(number, forward=attempt + 1) for number in numbers]
        write_lines(directory / TraceName(0, attempt).filename, [make_meta(0, attempt), *steps])
    rows = {row["step"]: row for row in _query(runspan, "steps", "--json").document["rows"]}
    assert sorted(rows) == list(range(300))
    assert all(row["count"] == 1 for row in rows.values())
    assert [rows[step]["max_ns"] for step in (199, 200, 212)] == [1_000_000, 2_000_000, 2_000_000]


def test_metrics_are_listed_by_rank_and_attempt(runspan: Cli) -> None:
    """Each trace's keys have their points, bounds and newest value."""
    make_run(runspan.root, "run-a", world_size=2, events=[make_metric(7, key="acc", value=float("nan"))])
    rows = _query(runspan, "metrics", "--json").document["rows"]
    assert [
        (row["key"], row["rank"], row["attempt"], row["points"], row["last"], row["non_finite"]) for row in rows
    ] == [
        ("loss", 0, 0, 3, 0.5, 0),
        ("acc", 0, 0, 1, "NaN", 1),
        ("loss", 1, 0, 3, 0.5, 0),
        ("acc", 1, 0, 1, "NaN", 1),
    ]
    assert _query(runspan, "metrics").out.splitlines()[2].split()[0] == "acc"


def test_stragglers_name_the_rank_that_the_others_wait_for(runspan: Cli) -> None:
    """Its own work takes longer, while every rank's step takes as long as its."""
    directory = make_run(runspan.root, "run-a")
    for rank in range(4):
        own_ms = 30 if rank == 2 else 10
        steps = [make_step(number, backward=own_ms, all_reduce=40 - own_ms) for number in range(5)]
        write_lines(directory / TraceName(rank).filename, [make_meta(rank), *steps])
    document = _query(runspan, "stragglers", "--json").document
    assert document["rows"][0]["rank"] == 2
    assert document["slow_rank"] == {
        "rank": 2,
        "own_median_ns": 30_000_000,
        "others_median_ns": 10_000_000,
        "phase": "backward",
    }
    answer = _query(runspan, "stragglers", "--limit", "1")
    assert "Rank 2 is slow" in answer.out
    assert answer.code == 0


def test_stragglers_say_when_there_are_none(runspan: Cli) -> None:
    """Ranks alike: a note; no steps at all: a note and exit code 1."""
    directory = make_run(runspan.root, "run-a", world_size=2, events=[make_step(0, forward=1)])
    assert "no rank is clearly slower" in _query(runspan, "stragglers").err
    make_run(runspan.root, "run-b")
    answer = _query(runspan, "stragglers", trace="run-b")
    assert (answer.code, answer.out) == (1, "")
    one_file = _query(runspan, "stragglers", trace=str(directory / TraceName(0).filename))
    assert one_file.code == 2
    assert "give a run" in one_file.err


def test_a_kind_must_be_given_and_known(runspan: Cli) -> None:
    """Bad usage is exit code 2 and names what there is."""
    assert runspan("trace", "query", "run-a").code == 2
    answer = _query(runspan, "fastest")
    assert answer.code == 2
    assert "stragglers" in answer.err
