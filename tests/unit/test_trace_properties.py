"""What holds for every trace: any sequence of events round-trips through files, and a cut costs one record at most."""

from __future__ import annotations

import gzip
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runspan.tracefile._merge import read_run
from runspan.tracefile.events import (
    DeviceInterval,
    DeviceMemory,
    Edge,
    Gradient,
    Memory,
    Meta,
    Metric,
    Op,
    SegmentEnd,
    SpanEnd,
    SpanStart,
    Tensor,
    Terminal,
    TraceEvent,
    encode,
)
from runspan.tracefile.layout import RunDirectory, TraceName
from runspan.tracefile.reader import TraceStatus, peek, read
from runspan.tracefile.writer import FileWriter
from support.captures import complete_capture
from support.trace_strategies import EVENTS, same, strict_json, with_jsonable_values
from support.traces import FixedClock, make_meta, make_metric, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONG_AGO = FixedClock(3600)
_RANK = TraceName(0)
_GOLDEN = Path(__file__).parent.parent / "golden" / "run-trace.jsonl"
_EVIDENCE = {Op, Tensor, Memory, DeviceMemory, Gradient, Edge, DeviceInterval}


def _valid(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Make any events the inside of a trace: no first or last lines, and each end of a span for one that is open."""
    inside: list[TraceEvent] = []
    still_open: list[str] = []
    for event in events:
        if isinstance(event, SpanStart):
            still_open.append(event.id)
        if isinstance(event, SpanEnd):
            if still_open:
                inside.append(msgspec.structs.replace(event, id=still_open.pop()))
        elif not isinstance(event, Meta | SegmentEnd | Terminal):
            inside.append(event)
    return inside


def _write_trace(folder: Path, events: Iterable[TraceEvent], max_file_bytes: int) -> None:
    """Write a trace as a run does, in parts of about so many bytes, all but the last of them gzipped in the end."""
    writer = FileWriter(folder, _RANK, make_meta(), max_file_bytes=max_file_bytes, durable=False)
    for event in events:
        writer.write(with_jsonable_values(event))
    writer.write(make_terminal())
    writer.close()
    for thread in threading.enumerate():
        if thread.name == "runspan-gzip":
            thread.join()


def _has_meta(path: Path) -> bool:
    """Whether the file still holds a whole meta line."""
    try:
        peek(path)
    except ValueError:
        return False
    return True


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=25), st.sampled_from([500, 3_000, 1 << 20]))
def test_any_sequence_of_events_round_trips_through_files(events: list[TraceEvent], max_file_bytes: int) -> None:
    """Case 35: every kind, NaN and maps like wrapped floats too, is read as it was written, over all parts."""
    inside = _valid(events)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_trace(folder, inside, max_file_bytes)
        read_events = list(read(folder / _RANK.filename))
    assert same(read_events, [make_meta(), *inside, make_terminal()])


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_a_strict_parser_takes_every_line_that_is_written(events: list[TraceEvent]) -> None:
    """Case 35: no line of any part holds bare NaN or infinity; each is one object, its kind first."""
    with tempfile.TemporaryDirectory() as name:
        _write_trace(Path(name), events, 1 << 20)
        lines = (Path(name) / _RANK.filename).read_bytes().splitlines(keepends=True)
    assert len(lines) == len(events) + 2
    assert all(next(iter(strict_json(line))) == "kind" for line in lines)


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=10), st.data(), st.booleans())
def test_any_trace_cut_anywhere_is_read_up_to_the_cut(
    events: list[TraceEvent], data: st.DataObject, compressed: bool
) -> None:
    """Case 36: what is read of a cut file is a beginning of what was written, with at most one torn record."""
    written = [make_meta(), *_valid(events), make_terminal()]
    lines = [encode(with_jsonable_values(event)) for event in written]
    content = b"".join(lines)
    content = gzip.compress(content, data.draw(st.sampled_from([0, 6]))) if compressed else content
    cut = data.draw(st.integers(0 if compressed else len(lines[0]), len(content)))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "cut.jsonl"
        path.write_bytes(content[:cut])
        reader = read(path, clock=_LONG_AGO) if not compressed or _has_meta(path) else None
        read_events = [] if reader is None else list(reader)
    assert same(read_events, written[: len(read_events)])
    if reader is not None:
        assert len(reader.torn) <= 1
    if not compressed:
        assert len(read_events) == _whole_lines(lines, cut)


def _whole_lines(lines: list[bytes], cut: int) -> int:
    """Return how many lines are whole in so many bytes, one that only lacks its newline included."""
    ends = [sum(map(len, lines[: number + 1])) - 1 for number in range(len(lines))]
    return sum(end <= cut for end in ends)


def _trace_of_every_kind() -> list[TraceEvent]:
    """Return a run trace of every kind in the golden file."""
    events = list(read(_GOLDEN))
    assert len({type(event) for event in events}) >= 15
    return events


@pytest.mark.parametrize("is_capture", [False, True], ids=["run trace", "capture"])
def test_a_cut_at_every_byte_costs_one_record(tmp_path: Path, is_capture: bool) -> None:
    """Case 36: of every kind, evidence too: everything before the cut is read, and one torn record is reported."""
    events = complete_capture() if is_capture else _trace_of_every_kind()
    assert not is_capture or {type(event) for event in events} >= _EVIDENCE
    lines = [encode(event) for event in events] if is_capture else _GOLDEN.read_bytes().splitlines(keepends=True)
    content = b"".join(lines)
    path = tmp_path / _RANK.filename
    for cut in range(len(lines[0]), len(content)):
        path.write_bytes(content[:cut])
        reader = read(path, clock=_LONG_AGO)
        read_events = list(reader)
        whole = _whole_lines(lines, cut)
        assert same(read_events, events[:whole]), cut
        leftover = max(0, cut - sum(map(len, lines[:whole])))
        assert [torn.byte_count for torn in reader.torn] == [leftover] * (leftover > 0), cut
        expected = TraceStatus.FINISHED if whole == len(lines) else TraceStatus.INTERRUPTED
        assert reader.state.status is expected, cut


@pytest.mark.parametrize("level", [0, 9])
def test_a_gzipped_capture_cut_at_every_byte_gives_what_is_there(tmp_path: Path, level: int) -> None:
    """Case 36: of a cut gzip file every record before the cut is read, more of them the later it is."""
    events = complete_capture()
    content = gzip.compress(b"".join(map(encode, events)), level)
    path = tmp_path / f"{_RANK.filename}.gz"
    counts = []
    for cut in range(len(content) - 1, len(content) // 2, -1):
        path.write_bytes(content[:cut])
        reader = read(path, clock=_LONG_AGO)
        read_events = list(reader)
        counts.append(len(read_events))
        assert same(read_events, events[: len(read_events)]), cut
        assert len(reader.torn) == 1, cut
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == len(events)
    assert counts[-1] < len(events)


def test_a_cut_capture_costs_its_run_nothing_else(tmp_path: Path) -> None:
    """Case 36: wherever a capture's last records are cut, the run's other traces are merged whole."""
    directory = RunDirectory(tmp_path)
    metrics: list[TraceEvent] = [make_metric(step, at_s=step) for step in range(3)]
    write_lines(tmp_path / _RANK.filename, [make_meta(), *metrics, make_terminal(at_s=5)])
    capture = directory.capture_folder("update-000000101", rank=0, world_size=1) / _RANK.filename
    events = complete_capture()
    content = write_lines(capture, events)
    for cut in range(len(content) - 400, len(content)):
        capture.write_bytes(content[:cut])
        merged = list(read_run(tmp_path).events())
        assert [event for entry, event in merged if entry.capture is None and isinstance(event, Metric)] == metrics
        kept = [event for entry, event in merged if entry.capture is not None]
        assert kept == events[: len(kept)]
        assert len(kept) >= len(events) - 6
