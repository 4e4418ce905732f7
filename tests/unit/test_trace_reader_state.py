from __future__ import annotations

import gzip
import os
import time
from typing import TYPE_CHECKING

import pytest

from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile.events import Param, Tag, Terminal, TraceEvent, Unknown, Usage, encode
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import TraceState, TraceStatus, peek, read
from support.traces import (
    START_UNIX_NANO,
    FixedClock,
    make_meta,
    make_metric,
    make_span,
    make_terminal,
    write_lines,
    write_parts,
)

if TYPE_CHECKING:
    from pathlib import Path

_S = 1_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of rank 0, not there yet."""
    return tmp_path / "rank-00000.jsonl"


def _state(path: Path, now_s: float) -> TraceState:
    """Return the state that a whole reading gives, having checked that a glance gives the same."""
    clock = FixedClock(now_s)
    reader = read(path, clock=clock)
    before_reading = reader.state
    for _ in reader:
        pass
    assert before_reading == reader.state == peek(path, clock=clock).state
    return reader.state


def test_a_terminal_event_makes_a_trace_finished(path: Path) -> None:
    """However old it is, a trace with its terminal event is finished, last seen at that event."""
    write_lines(path, [make_meta(), make_metric(0, at_s=1), make_terminal(at_s=5)])
    for now_s in (0, 5, 10**6):
        state = _state(path, now_s)
        assert state == TraceState(TraceStatus.FINISHED, START_UNIX_NANO + 5 * _S)
        assert str(state) == "finished"
    assert peek(path).terminal == make_terminal(at_s=5)


def test_without_a_terminal_event_the_last_lines_age_decides(path: Path) -> None:
    """Case 4: younger than three heartbeats is running, older is interrupted with its time, never finished."""
    write_lines(path, [make_meta(heartbeat_s=10.0), *(make_metric(step, at_s=step) for step in range(100))])
    last_seen = START_UNIX_NANO + 99 * _S
    assert _state(path, 99 + 29.9) == TraceState(TraceStatus.RUNNING, last_seen)
    assert _state(path, 99 + 30) == TraceState(TraceStatus.INTERRUPTED, last_seen)
    assert str(_state(path, 99 + 30)) == "interrupted, last seen 2023-11-14T22:14:59.000Z"


def test_a_clock_that_is_behind_the_writers_is_no_interruption(path: Path) -> None:
    """Case 14: a reader on another host, whose clock is an hour behind, takes the trace for running."""
    write_lines(path, [make_meta(), make_metric(0, at_s=3600)])
    assert _state(path, 0).status is TraceStatus.RUNNING


@pytest.mark.parametrize(
    ("event", "seen_s"),
    [
        (Usage(timestamp_ns=8 * _S, time_unix_nano=START_UNIX_NANO + 7 * _S), 7),
        (make_span("a1", start_s=7)[0], 7),
        (Unknown("later", {"timestamp_ns": 7 * _S}), 7),
        (Unknown("later", {"time_unix_nano": START_UNIX_NANO + 7 * _S}), 7),
        (Unknown("later", {"start_ns": 7 * _S}), 7),
        (Unknown("later", {"x": 7}), 2),
        (Tag("a", "b"), 2),
        (Param("a", 1), 2),
    ],
)
def test_the_last_line_that_tells_a_time_is_when_it_was_seen(path: Path, event: TraceEvent, seen_s: int) -> None:
    """A line's time is its wall time, or its elapsed time from the trace's start; one without is passed over."""
    write_lines(path, [make_meta(), make_metric(0, at_s=2), event])
    assert _state(path, 10**4).last_seen_unix_nano == START_UNIX_NANO + seen_s * _S


def test_the_end_of_a_span_was_seen_when_it_ended(path: Path) -> None:
    """A reader knows when an open span began, and so when its end was written."""
    start, end = make_span("a1", start_s=1, duration_s=6)
    write_lines(path, [make_meta(), start, make_metric(0, at_s=2), end])
    reader = read(path, clock=FixedClock(10**4))
    list(reader)
    assert reader.last_seen_unix_nano == START_UNIX_NANO + 7 * _S


def test_a_trace_of_meta_alone_was_seen_at_its_start(path: Path) -> None:
    """Killed right behind its meta line, a trace was last seen when it began."""
    write_lines(path, [make_meta()])
    assert _state(path, 100) == TraceState(TraceStatus.INTERRUPTED, START_UNIX_NANO)


def test_a_line_in_flight_does_not_hide_the_state(path: Path) -> None:
    """A partial last line of a running trace is in flight; of an old one it is torn; both states are told."""
    path.write_bytes(encode(make_meta()) + encode(make_metric(0, at_s=1)) + encode(make_metric(1, at_s=2))[:-5])
    assert _state(path, 5).status is TraceStatus.RUNNING
    assert _state(path, 500) == TraceState(TraceStatus.INTERRUPTED, START_UNIX_NANO + _S)
    assert peek(path).torn


def test_the_last_part_decides(tmp_path: Path) -> None:
    """With parts, gzipped or not, the state is that of the newest one's last line; a part just begun says nothing."""
    paths = write_parts(tmp_path, TraceName(0), [[make_metric(0, at_s=1)], [make_metric(1, at_s=50)], [Tag("a", "b")]])
    assert _state(paths[0], 60) == TraceState(TraceStatus.RUNNING, START_UNIX_NANO + 50 * _S)
    for part in paths:
        part.with_name(f"{part.name}.gz").write_bytes(gzip.compress(part.read_bytes()))
        part.unlink()
    assert _state(paths[1], 90).status is TraceStatus.INTERRUPTED


@pytest.mark.parametrize("compressed", [False, True])
def test_a_glance_reads_the_ends_of_a_long_trace(path: Path, *, compressed: bool) -> None:
    """Records longer than the window, and a window that holds no time, do not mislead a glance."""
    long_tags = [Tag("config", "x" * 200_000)] * 3
    data = write_lines(path, [make_meta(), make_metric(0, at_s=1), make_metric(1, at_s=9), *long_tags])
    if compressed:
        path.write_bytes(gzip.compress(data))
    assert _state(path, 10) == TraceState(TraceStatus.RUNNING, START_UNIX_NANO + 9 * _S)


def test_a_glance_does_not_read_the_middle(path: Path) -> None:
    """Gigabytes between the first and the last lines cost nothing: only the ends are looked at."""
    write_lines(path, [make_meta(), make_metric(0)])
    with path.open("r+b") as file:
        file.seek(4 << 30)
        file.write(b"\n" + b"".join(encode(make_metric(step, at_s=9)) for step in range(1000)))
    began = time.process_time()
    assert peek(path, clock=FixedClock(10)).state.status is TraceStatus.RUNNING
    assert time.process_time() - began < 1


def test_a_glance_refuses_what_a_reader_refuses(tmp_path: Path) -> None:
    """Missing, empty and foreign files are the same errors."""
    with pytest.raises(TraceFormatError, match="no such trace"):
        peek(tmp_path / "rank-00000.jsonl")
    write_lines(tmp_path / "rank-00001.jsonl", [])
    with pytest.raises(TraceFormatError, match="empty"):
        peek(tmp_path / "rank-00001.jsonl")
    write_lines(tmp_path / "rank-00002.jsonl", [make_meta(schema="runspan/trace/9")])
    with pytest.raises(SchemaVersionError):
        peek(str(tmp_path / "rank-00002.jsonl"))


@pytest.mark.parametrize(
    ("parent_events", "now_s", "status"),
    [
        ([make_terminal(at_s=3)], 10**6, TraceStatus.FINISHED),
        ([make_metric(0, at_s=1000)], 1001, TraceStatus.RUNNING),
        ([make_metric(0, at_s=1000)], 10**6, TraceStatus.INTERRUPTED),
    ],
)
def test_a_childs_trace_stands_where_its_parents_does(
    tmp_path: Path, parent_events: list[TraceEvent], now_s: float, status: TraceStatus
) -> None:
    """A child process's file needs no terminal: it is finished once its parent's is, and interrupted with it."""
    child = TraceName(2, attempt=1, child="77-1")
    write_lines(tmp_path / TraceName(2, attempt=1).filename, [make_meta(2, 1), *parent_events])
    write_lines(tmp_path / child.filename, [make_meta(2, 1), make_metric(0, at_s=2)])
    assert _state(tmp_path / child.filename, now_s) == TraceState(status, START_UNIX_NANO + 2 * _S)


def test_a_childs_trace_without_its_parents_is_never_interrupted(path: Path) -> None:
    """Where the parent's file is missing, a child's old file is taken as finished."""
    child = path.with_name("rank-00000.child-77.jsonl")
    write_lines(child, [make_meta(), make_metric(0, at_s=2)])
    assert _state(child, 10).status is TraceStatus.RUNNING
    assert _state(child, 10**4).status is TraceStatus.FINISHED
    write_lines(child, [make_meta(), make_terminal()])
    assert _state(child, 10).status is TraceStatus.FINISHED


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_the_state_is_the_same_in_every_time_zone(path: Path, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """Case 30: the same epoch is read and shown alike whatever TZ says."""
    monkeypatch.setitem(os.environ, "TZ", zone)
    time.tzset()
    try:
        write_lines(path, [make_meta(), make_metric(0, at_s=1)])
        assert str(_state(path, 1000)) == "interrupted, last seen 2023-11-14T22:13:21.000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_state_while_iterating_is_the_files_not_the_positions(path: Path) -> None:
    """A reader that has only begun tells the state of the whole trace, which a look at the end gives."""
    write_lines(path, [make_meta(), make_metric(0), make_terminal(at_s=4)])
    with read(path, clock=FixedClock(10**4)) as reader:
        next(reader)
        assert reader.terminal is None
        assert reader.state.status is TraceStatus.FINISHED
    assert isinstance(peek(path).terminal, Terminal)
