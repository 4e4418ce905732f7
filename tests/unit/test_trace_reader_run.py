from __future__ import annotations

import gzip
import resource
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runspan.errors import TraceFormatError
from runspan.tracefile import read_run
from runspan.tracefile.events import Metric, SpanStart, Tag, Terminal, TraceEvent, Unknown, encode
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import TraceStatus
from support.traces import (
    FixedClock,
    make_meta,
    make_metric,
    make_span,
    make_terminal,
    write_lines,
    write_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runspan.tracefile._merge import RunTrace


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Lower the descriptor limit to 96 for a test; half of it may be open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, hard))
    yield 96
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _write(folder: Path, name: TraceName, events: list[TraceEvent]) -> Path:
    path = folder / name.filename
    write_lines(path, [make_meta(name.rank, name.attempt), *events])
    return path


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _metrics(run: RunTrace) -> list[tuple[int, int, int]]:
    return [
        (entry.name.rank, entry.name.attempt, event.step) for entry, event in run.events() if isinstance(event, Metric)
    ]


def test_all_ranks_attempts_children_parts_and_captures_are_found(tmp_path: Path) -> None:
    """A run directory's traces come one entry each, whatever their number of parts, attempts kept apart."""
    write_parts(tmp_path, TraceName(0), [[make_metric(0)], [make_metric(1)]])
    _write(tmp_path, TraceName(0, attempt=1), [make_terminal()])
    _write(tmp_path, TraceName(0, child="77"), [make_metric(0)])
    _write(tmp_path / "ranks" / "00001", TraceName(300), [make_terminal()])
    _write(tmp_path / "captures" / "update-000000101", TraceName(0, attempt=1), [make_terminal()])
    run = read_run(str(tmp_path))
    assert [(entry.name.stem, entry.capture) for entry in run.traces] == [
        ("rank-00000", None),
        ("rank-00000.child-77", None),
        ("rank-00000.attempt-1", None),
        ("rank-00300", None),
        ("rank-00000.attempt-1", "update-000000101"),
    ]
    assert run.problems == ()
    assert {key: len(entries) for key, entries in run.attempts.items()} == {(0, 0): 2, (0, 1): 2, (300, 0): 1}
    first = run.traces[0]
    assert first.meta == make_meta()
    assert [type(event).__name__ for event in first.read()] == ["Meta", "Metric", "Metric"]
    assert first.peek(clock=FixedClock(0)).state.status is TraceStatus.RUNNING


def test_events_of_all_traces_come_in_the_order_of_time(tmp_path: Path) -> None:
    """Interleaved ranks and attempts are merged by wall time, each event with its trace."""
    _write(tmp_path, TraceName(0), [make_metric(step, at_s=3 * step) for step in range(4)])
    _write(tmp_path, TraceName(1), [make_metric(step, at_s=3 * step + 1) for step in range(4)])
    _write(tmp_path, TraceName(0, attempt=1), [make_metric(step, at_s=3 * step + 2) for step in range(4)])
    assert _metrics(read_run(tmp_path)) == [
        (rank, attempt, step) for step in range(4) for rank, attempt in ((0, 0), (1, 0), (0, 1))
    ]


def test_a_traces_own_order_is_kept(tmp_path: Path) -> None:
    """Case 14: a wall clock that steps back, and lines without a time, do not reorder a trace's lines."""
    own: list[TraceEvent] = [make_metric(0, at_s=10), make_metric(1, at_s=2), Tag("a", "b"), make_metric(2, at_s=11)]
    _write(tmp_path, TraceName(0), own)
    _write(tmp_path, TraceName(1), [make_metric(step, at_s=step) for step in range(20)])
    pairs = list(read_run(tmp_path).events())
    assert [event for entry, event in pairs if entry.name.rank == 0] == [make_meta(), *own]
    others_before = [
        event.step for entry, event in pairs[: pairs.index((pairs[0][0], own[0]))] if isinstance(event, Metric)
    ]
    assert others_before == list(range(10))


def test_broken_files_are_named_and_the_others_work(tmp_path: Path) -> None:
    """Case 34: empty, meta-less, foreign and torn files are problems by name; the other traces are merged."""
    _write(tmp_path, TraceName(0), [make_metric(0), make_terminal()])
    write_lines(tmp_path / "rank-00001.jsonl", [])
    write_lines(tmp_path / "rank-00002.jsonl", [make_metric(0)])
    write_lines(tmp_path / "rank-00003.jsonl", [make_meta(schema="runspan/trace/2")])
    write_lines(tmp_path / "rank-00004.part-0001.jsonl", [make_meta(part=1)])
    (tmp_path / "rank-00005.jsonl").mkdir()
    (tmp_path / "rank-00000.log").write_text("output")
    run = read_run(tmp_path)
    assert [problem.path.name for problem in run.problems] == [f"rank-0000{rank}{part}.jsonl" for rank, part in
        ((1, ""), (2, ""), (3, ""), (4, ".part-0001"), (5, ""))]  # fmt: skip
    assert all(problem.path.name in str(problem.error) for problem in run.problems)
    assert _metrics(run) == [(0, 0, 0)]


def test_a_bad_line_stops_the_merge_unless_lenient(tmp_path: Path) -> None:
    """A trace that breaks the format behind its first line raises with its place; lenient merging goes on."""
    path = _write(tmp_path, TraceName(0), [make_metric(0)])
    with path.open("ab") as file:
        file.write(b"{\n" + encode(make_metric(1)))
    run = read_run(tmp_path)
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl:3: "):
        list(run.events())
    assert sum(isinstance(event, Metric) for _, event in run.events(lenient=True)) == 2
    assert run.skipped == 1


def test_what_is_no_run_directory_is_named(tmp_path: Path) -> None:
    """A missing path, a file and a folder without traces are errors that say what a run directory is."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name, what in (("none", "is no directory"), ("file", "is no directory"), ("folder", "holds no trace file")):
        with pytest.raises(TraceFormatError, match=rf"{name}: {what}.*<root>/runs/<run id>"):
            read_run(tmp_path / name)


def test_more_traces_than_descriptors_are_merged_in_passes(tmp_path: Path, few_descriptors: int) -> None:
    """1,024 files: at most half of the descriptor limit is open, and every event comes, in order and as it was."""
    start, end = make_span("a1", start_s=9)
    special: list[TraceEvent] = [start, Unknown("later", {"big": 2**70}), end]
    names = [TraceName(rank) for rank in range(1024)]
    for name in names:
        folder = tmp_path / "ranks" / f"{name.rank // 256:05d}"
        _write(folder, name, [make_metric(step, at_s=step + name.rank / 2048) for step in range(3)])
    last = _write(tmp_path / "ranks" / "00004", TraceName(1024), special)
    last.with_name(f"{last.name}.gz").write_bytes(gzip.compress(last.read_bytes()))
    last.unlink()
    run = read_run(tmp_path)
    open_before = _open_files()
    most_open = 0
    steps, times, others = [], [], []
    for entry, event in run.events():
        if isinstance(event, Metric):
            steps.append(event.step)
            times.append(event.time_unix_nano)
            if len(times) % 100 == 0:
                most_open = max(most_open, _open_files() - open_before)
        elif entry.name.rank == 1024:
            others.append(event)
    assert steps == [step for step in range(3) for _ in names]
    assert times == sorted(times)
    assert [type(event) for event in others[1:]] == [type(event) for event in special]
    assert isinstance(others[1], SpanStart)
    assert others[1].attributes == {"nested": {"loss": float("inf"), "name": "é"}}
    assert others[2:] == special[1:]
    assert 1 < most_open <= few_descriptors // 2
    assert _open_files() == open_before


def test_a_merge_that_is_left_closes_its_files(
    tmp_path: Path, few_descriptors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving a merge early leaves no open file and no temporary folder behind."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for rank in range(few_descriptors):
        _write(tmp_path, TraceName(rank), [make_metric(0), Terminal("complete", 1, "success")])
    open_before = _open_files()
    events = read_run(tmp_path).events()
    assert next(events)[1] == make_meta()
    assert len(list(temporary.iterdir())) == 1
    events.close()
    assert _open_files() == open_before
    assert list(temporary.iterdir()) == []
