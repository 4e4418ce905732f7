from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from runspan.tracefile import read
from runspan.tracefile.events import Terminal
from runspan.tracefile.layout import TraceName
from support.captures import complete_capture, gradient_event, memory_event, span_events
from support.cli import Cli, cut_end, make_run
from support.traces import make_meta, make_metric, make_terminal, write_lines

if TYPE_CHECKING:
    from pathlib import Path

_MS = 1_000_000


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands on an empty root folder, whatever this process's environment says."""
    for name in ("RUNSPAN_DIR", "RUNSPAN_STORAGE", "RUNSPAN_TRACE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return Cli(tmp_path / "root", capsys)


def _timed_run(root: Path, run_id: str, took_ms: int) -> Path:
    epochs = [
        *span_events("e0", "run", 0, took_ms * _MS // 2, name="epoch"),
        *span_events("e1", "run", took_ms * _MS // 2, took_ms * _MS, name="epoch"),
    ]
    return make_run(root, run_id, events=span_events("run", None, 0, took_ms * _MS, epochs))


def test_compare_prints_totals_and_spans(runspan: Cli) -> None:
    """Two runs: both ids, the change of the total, and the spans, those that changed most first."""
    _timed_run(runspan.root, "run-a", 200)
    _timed_run(runspan.root, "run-b", 150)
    answer = runspan("trace", "compare", "run-a", "run-b")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "baseline   run-a",
        "candidate  run-b",
        "total      -50.0 ms (-25.0 %)",
        "",
        "SPAN       COUNT  BASELINE  CANDIDATE              CHANGE",
        "run            1    200 ms     150 ms  -50.0 ms (-25.0 %)",
        "run/epoch      2    200 ms     150 ms  -50.0 ms (-25.0 %)",
    ]


def test_compare_shows_memory_gradients_and_warnings(runspan: Cli, tmp_path: Path) -> None:
    """Captures given as files: peaks, changed gradients, spans that one side lacks; not comparable is exit code 1."""
    meta, step, *inside, step_end, terminal = complete_capture()
    more = [memory_event("alloc", 9, 4096), gradient_event("zero", 0.0), *span_events("extra", "step", 91, 95)]
    write_lines(tmp_path / "a.jsonl", complete_capture())
    write_lines(tmp_path / "b.jsonl", [meta, step, *inside, *more, step_end, terminal])
    answer = runspan("trace", "compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[2:4] == ["total      0 s (+0.0 %)", "peak       16 B -> 4.00 KiB"]
    (extra,) = [line.split() for line in lines if "step/extra" in line]
    assert extra[1:5] == ["0", "->", "1", "-"]
    assert lines[-1].split() == ["layer.weight", "1", "0"]
    write_lines(tmp_path / "c.jsonl", [make_meta(device="cuda:0"), terminal])
    answer = runspan("trace", "compare", str(tmp_path / "a.jsonl"), str(tmp_path / "c.jsonl"))
    assert answer.code == 1
    assert "warning    not comparable: device is 'cpu' in the baseline and 'cuda:0' in the candidate" in answer.out


def test_compare_as_json(runspan: Cli) -> None:
    """The document has the fields of the format, strict JSON; long tables are cut for people only."""
    many = [event for number in range(30) for event in span_events(f"s{number}", "run", number, number + 1)]
    for run_id in ("run-a", "run-b"):
        make_run(runspan.root, run_id, events=span_events("run", None, 0, 100, many))
    document = runspan("trace", "compare", "run-a", "run-b", "--json").document
    assert (document["baseline_run_id"], document["candidate_run_id"], document["comparable"]) == (
        "run-a",
        "run-b",
        True,
    )
    assert len(document["spans"]) == 31
    assert document["baseline_peak_bytes"] is None
    assert runspan("trace", "compare", "run-a", "run-b").out.splitlines()[-1] == "... and 11 more: --json has all"


def test_compare_groups(runspan: Cli) -> None:
    """Five runs a side around the word vs: statistics, interval and verdict, the same at each call."""
    for number in range(5):
        _timed_run(runspan.root, f"old-{number}", 200 + number)
        _timed_run(runspan.root, f"new-{number}", 100 + number)
    before, after = ([f"{side}-{number}" for number in range(5)] for side in ("old", "new"))
    answer = runspan("trace", "compare", *before, "vs", *after)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "verdict    candidate_faster"
    assert lines[1] == "median     -100 ms (-49.5 %)"
    assert lines[2].startswith("interval   -10")
    assert lines[2].endswith("(95 %, seed 0)")
    assert lines[-2].split() == ["baseline", "5", "202", "ms", "204", "ms", "1.00", "ms"]
    document = runspan("trace", "compare", *before, "vs", *after, "--json", "--seed", "3").document
    assert (document["verdict"], document["seed"]) == ("candidate_faster", 3)
    assert document == runspan("trace", "compare", *before, "vs", *after, "--json", "--seed", "3").document
    slower = runspan("trace", "compare", *after, "vs", *before)
    assert (slower.code, slower.out.splitlines()[0]) == (0, "verdict    candidate_slower")


def test_compare_of_too_small_groups_is_a_negative_answer(runspan: Cli) -> None:
    """Two against one is told to be ineligible, with the reasons, and the exit code is 1."""
    for run_id in ("run-a", "run-b", "run-c"):
        _timed_run(runspan.root, run_id, 100)
    answer = runspan("trace", "compare", "run-a", "run-b", "vs", "run-c")
    assert answer.code == 1
    assert answer.out.splitlines()[:3] == [
        "verdict    ineligible",
        "reason     only 2 in the baseline group: a verdict takes at least 5 runs a side",
        "reason     only 1 in the candidate group: a verdict takes at least 5 runs a side",
    ]


@pytest.mark.parametrize(
    ("traces", "told"),
    [
        (["run-a"], "1 trace without the word vs: give two traces"),
        (["run-a"] * 3, "3 traces without the word vs"),
        (["vs", "run-a"], "the word vs stands once, between traces"),
        (["run-a", "vs"], "the word vs stands once, between traces"),
        (["run-a", "vs", "run-a", "vs", "run-a"], "the word vs stands once, between traces"),
        (["run-a", "nowhere"], "no run 'nowhere'"),
        (["run-a", "cut"], "needs a complete trace, and this one has no terminal event"),
    ],
)
def test_compare_refuses_bad_input(runspan: Cli, traces: list[str], told: str) -> None:
    """What cannot be compared is one line on stderr and exit code 2."""
    _timed_run(runspan.root, "run-a", 100)
    cut_end(_timed_run(runspan.root, "cut", 100))
    answer = runspan("trace", "compare", *traces)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err


def test_a_run_stands_for_its_newest_attempt_of_rank_0(runspan: Cli) -> None:
    """Of several ranks, attempts and children one trace is taken: rank 0's last attempt."""
    _timed_run(runspan.root, "run-a", 100)
    directory = make_run(runspan.root, "run-b", world_size=2)
    for name in (TraceName(0, attempt=2), TraceName(0, attempt=10), TraceName(0, attempt=11, child="7")):
        took_ns = 100 * _MS + name.attempt
        meta = make_meta(0, name.attempt, run_id="run-b")
        write_lines(directory / name.filename, [meta, *span_events("run", None, 0, took_ns), make_terminal()])
    document = runspan("trace", "compare", "run-a", "run-b", "--json").document
    assert document["total_delta_ns"] == 10


def test_promote_makes_a_golden_trace(runspan: Cli, tmp_path: Path) -> None:
    """A run's trace is copied to the path; a second time only by force; --json says what was written."""
    directory = _timed_run(runspan.root, "run-a", 100)
    golden = tmp_path / "golden.jsonl"
    answer = runspan("trace", "promote", "run-a", "--to", str(golden))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{golden}: 11 events of {directory / 'rank-00000.jsonl'}\n"
    assert list(read(golden)) == list(read(directory / "rank-00000.jsonl"))
    again = runspan("trace", "promote", "run-a", "--to", str(golden))
    assert (again.code, again.out) == (2, "")
    assert "is there already: give --force to replace it" in again.err
    document = runspan("trace", "promote", "run-a", "--to", str(golden), "--force", "--json").document
    assert document == {
        "source": str(directory / "rank-00000.jsonl"),
        "golden_trace_path": str(golden),
        "events": 11,
    }


def test_promote_refuses_a_run_that_failed(runspan: Cli, tmp_path: Path) -> None:
    """Only a complete, successful run can be golden: exit code 2, the reason, and no file."""
    make_run(runspan.root, "run-a", terminal=Terminal("failed", 1, "failed", "ValueError: boom"))
    answer = runspan("trace", "promote", "run-a", "--to", str(tmp_path / "golden.jsonl"))
    assert answer.code == 2
    assert "it ended as failed (ValueError: boom), and only a complete, successful one can" in answer.err
    assert not (tmp_path / "golden.jsonl").exists()


def test_merge_writes_one_file(runspan: Cli, tmp_path: Path) -> None:
    """The traces of all ranks become one file, and the answer counts them."""
    make_run(runspan.root, "run-a", world_size=2)
    output = tmp_path / "merged.jsonl"
    answer = runspan("trace", "merge", "run-a", "-o", str(output))
    assert (answer.code, answer.out, answer.err) == (0, f"{output}: 12 events of 2 traces\n", "")
    assert len(list(read(output))) == 12
    document = runspan("trace", "merge", "run-a", "--output", str(output), "--json").document
    assert document == {"output": str(output), "events": 12, "traces": 2, "left_out": []}


def test_merge_tells_what_it_left_out(runspan: Cli, tmp_path: Path) -> None:
    """Case 34: a rank whose file is empty is left out, which makes the answer partial: exit code 1."""
    directory = make_run(runspan.root, "run-a", world_size=2)
    (directory / TraceName(1).filename).write_bytes(b"")
    answer = runspan("trace", "merge", "run-a", "-o", str(tmp_path / "merged.jsonl"))
    assert answer.code == 1
    assert "left out: " in answer.err
    assert "rank-00001.jsonl: empty" in answer.err
    assert json.loads((tmp_path / "merged.jsonl").read_text().splitlines()[-1])["kind"] == "source_terminal"


def test_merge_refuses_bad_input(runspan: Cli, tmp_path: Path) -> None:
    """An unknown run, a broken line and a folder that is not there are exit code 2; --lenient skips the broken line."""
    directory = make_run(runspan.root, "run-a", events=[make_metric(7)])
    output = str(tmp_path / "merged.jsonl")
    assert runspan("trace", "merge", "nowhere", "-o", output).code == 2
    answer = runspan("trace", "merge", "run-a", "-o", str(tmp_path / "no" / "merged.jsonl"))
    assert (answer.code, "cannot be written (No such file or directory)" in answer.err) == (2, True)
    path = directory / TraceName(0).filename
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"broken\n", *lines[2:]]))
    answer = runspan("trace", "merge", "run-a", "-o", output)
    assert (answer.code, "rank-00000.jsonl:3: " in answer.err) == (2, True)
    answer = runspan("trace", "merge", "run-a", "-o", output, "--lenient")
    assert (answer.code, answer.err) == (0, "runspan: 1 line skipped\n")
