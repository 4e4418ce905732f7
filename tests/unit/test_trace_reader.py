from __future__ import annotations

import gzip
import os
import tracemalloc
from typing import TYPE_CHECKING

import msgspec
import pytest

from runspan import tracefile
from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile import _parts
from runspan.tracefile.events import Metric, SegmentEnd, SpanEnd, SpanStart, Tag, Terminal, TraceEvent, Unknown, encode
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import TraceReader, read
from support.traces import make_meta, make_metric, make_span, make_terminal, write_lines, write_parts

if TYPE_CHECKING:
    from pathlib import Path

_STEM = TraceName(0)
_BAD_JSON = b'{"kind":"tag","key":\n'
_BAD_EVENT = b'{"kind":"tag","key":"a"}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of rank 0, not there yet."""
    return tmp_path / _STEM.filename


def _steps(reader: TraceReader) -> list[int]:
    return [event.step for event in reader if isinstance(event, Metric)]


def test_a_whole_trace_is_read_as_it_was_written(path: Path) -> None:
    """Every event comes back typed and in order, with meta and terminal at hand."""
    start, end = make_span("a1")
    events: list[TraceEvent] = [
        make_meta(),
        start,
        make_metric(0),
        Unknown("later", {"x": 1}),
        Tag("a", "b"),
        end,
        make_terminal(),
    ]
    write_lines(path, events)
    reader = read(path)
    assert reader.meta == make_meta()
    read_events = list(reader)
    assert read_events[1:] == [_with_plain_floats(start), *events[2:]]
    assert (read_events[0], reader.terminal, reader.torn, reader.skipped) == (make_meta(), make_terminal(), (), 0)
    assert reader.path == path


def _with_plain_floats(start: SpanStart) -> SpanStart:
    """Return a span's start with the attributes that it reads back as."""
    assert start.attributes == {"nested": {"loss": {"$float": "Infinity"}, "name": "é"}}
    return msgspec.structs.replace(start, attributes={"nested": {"loss": float("inf"), "name": "é"}})


def test_a_reader_iterates_once_and_can_be_left_early(path: Path) -> None:
    """Iterating goes on where it stopped; a closed reader ends, and leaves no open file behind."""
    write_lines(path, [make_meta(), make_metric(0), make_metric(1)])
    with read(str(path)) as reader:
        assert isinstance(next(reader), tracefile.Meta)
        assert next(iter(reader)) == make_metric(0)
    assert list(reader) == []


def test_blank_lines_are_skipped(path: Path) -> None:
    """Empty lines, also before meta and at the end, mean nothing; line numbers count them."""
    path.write_bytes(b"\n" + encode(make_meta()) + b"\n  \n\r\n" + encode(make_metric(0)) + b"\n\n" + _BAD_EVENT)
    reader = read(path)
    assert [next(reader), next(reader)] == [make_meta(), make_metric(0)]
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl:9: ") as caught:
        next(reader)
    assert (caught.value.path, caught.value.line) == (str(path), 9)


@pytest.mark.parametrize("bad", [_BAD_JSON, _BAD_EVENT, b"[]\n", b'{"kind":"met\xff"}\n', b"[" * 100_000 + b"\n"])
def test_a_bad_line_in_the_middle_is_an_error_with_its_place(path: Path, bad: bytes) -> None:
    """A line that cannot be read and has others behind it names path and line; lenient reading skips and counts it."""
    path.write_bytes(encode(make_meta()) + encode(make_metric(0)) + bad + encode(make_metric(1)))
    reader = read(path)
    with pytest.raises(TraceFormatError) as caught:
        list(reader)
    assert (caught.value.path, caught.value.line) == (str(path), 3)
    lenient = read(path, lenient=True)
    assert _steps(lenient) == [0, 1]
    assert (lenient.skipped, lenient.torn) == (1, ())


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\0" * 4096])
def test_an_empty_file_is_named(path: Path, data: bytes) -> None:
    """Case 34: a file without any line is an error that says what happened to it."""
    path.write_bytes(data)
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl: empty: the process ended before"):
        read(path)


def test_meta_must_be_there_and_first(path: Path) -> None:
    """Case 34: a file that begins with another event, or with a cut meta line, is refused when it is opened."""
    write_lines(path, [make_metric(0), make_meta()])
    with pytest.raises(TraceFormatError, match=r":1: the first line must be the meta event, found 'metric'"):
        read(path, lenient=True)
    path.write_bytes(encode(make_meta())[:-20])
    with pytest.raises(TraceFormatError, match=r":1: the first line must be the meta event"):
        read(path)


def test_a_second_meta_is_an_error(path: Path) -> None:
    """Case 34: a relaunch that appended to an old file is told by its meta line; lenient reading goes on."""
    write_lines(path, [make_meta(), make_metric(0), make_meta(attempt=1), make_metric(1)])
    with pytest.raises(TraceFormatError, match=":3: a second meta event"):
        list(read(path))
    lenient = read(path, lenient=True)
    assert _steps(lenient) == [0, 1]
    assert lenient.skipped == 1


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("runspan/trace/2", "pip install -U runspan"),
        ("candle-graph/trace/11", "newer candle-graph"),
        ("candle-graph/trace/5", "reads 'runspan/trace/1'"),
    ],
)
def test_another_schema_is_refused_with_advice(path: Path, schema: str, message: str) -> None:
    """A newer or foreign schema is a SchemaVersionError when the file is opened, lenient or not."""
    write_lines(path, [make_meta(schema=schema)])
    for lenient in (False, True):
        with pytest.raises(SchemaVersionError, match=message) as caught:
            read(path, lenient=lenient)
        assert caught.value.path == str(path)


def test_nothing_may_follow_the_terminal_event(path: Path) -> None:
    """An event after terminal is an error; lenient reading skips it and keeps the terminal."""
    write_lines(path, [make_meta(), make_terminal(), make_metric(0)])
    with pytest.raises(TraceFormatError, match=":3: a line after the terminal event"):
        list(read(path))
    lenient = read(path, lenient=True)
    assert _steps(lenient) == []
    assert (lenient.terminal, lenient.skipped) == (make_terminal(), 1)


def test_the_end_of_a_span_that_is_not_open_is_an_error(path: Path) -> None:
    """An end without a start, or a second end, names the span and the line."""
    start, end = make_span("a1")
    write_lines(path, [make_meta(), start, end, end])
    with pytest.raises(TraceFormatError, match=r":4: the end of span 'a1', which is not open"):
        list(read(path))
    lenient = read(path, lenient=True)
    assert sum(isinstance(event, SpanEnd) for event in lenient) == 1
    assert lenient.skipped == 1


def test_duplicate_span_ids_are_left_to_health(path: Path) -> None:
    """An id that is opened three times can be ended three times, not four."""
    start, end = make_span("a1")
    write_lines(path, [make_meta(), *[start] * 3, *[end] * 3, end])
    reader = read(path)
    with pytest.raises(TraceFormatError, match=":8: "):
        list(reader)


@pytest.mark.parametrize("member_count", [1, 3])
def test_gzipped_traces_are_read_alike(tmp_path: Path, member_count: int) -> None:
    """Case 36: a gzipped trace, of one member or several with padding behind, reads as the plain one."""
    events: list[TraceEvent] = [make_meta(), *map(make_metric, range(2000)), make_terminal()]
    data = b"".join(map(encode, events))
    size = len(data) // member_count + 1
    members = [gzip.compress(data[start : start + size]) for start in range(0, len(data), size)]
    for name in ("rank-00000.jsonl.gz", "copy.json"):
        path = tmp_path / name
        path.write_bytes(b"".join(members) + bytes(512))
        assert list(read(path)) == events
    assert list(read(tmp_path / "rank-00000.jsonl")) == events  # the name it had before it was gzipped


@pytest.mark.parametrize("compressed", [(), (0,), (0, 1), (0, 1, 2)])
def test_all_parts_are_one_trace(tmp_path: Path, compressed: tuple[int, ...]) -> None:
    """Whichever part is named, the parts are read in order, with one meta and no segment_end."""
    start, end = make_span("a1")
    paths = write_parts(
        tmp_path, _STEM, [[start, make_metric(0)], [make_metric(1)], [make_metric(2), end, make_terminal()]]
    )
    for part in compressed:
        paths[part].with_name(f"{paths[part].name}.gz").write_bytes(gzip.compress(paths[part].read_bytes()))
        paths[part].unlink()
    kinds = ["Meta", "SpanStart", "Metric", "Metric", "Metric", "SpanEnd", "Terminal"]
    for path in [*paths, *tmp_path.iterdir()]:
        assert [type(event).__name__ for event in read(path)] == kinds


def test_a_part_that_is_there_twice_is_read_once(tmp_path: Path) -> None:
    """A crash between gzipping a part and removing the plain file duplicates nothing."""
    paths = write_parts(tmp_path, _STEM, [[make_metric(0)], [make_metric(1), make_terminal()]])
    paths[0].with_name(f"{paths[0].name}.gz").write_bytes(gzip.compress(paths[0].read_bytes()))
    assert _steps(read(paths[0])) == [0, 1]


def test_a_part_without_segment_end_is_followed_by_name(tmp_path: Path) -> None:
    """A full disk can cost segment_end, and a crash the new part's lines; the parts are still one trace."""
    paths = write_parts(tmp_path, _STEM, [[make_metric(0)], [make_metric(1)], []])
    write_lines(paths[0], [make_meta(), make_metric(0)])
    for data in (b"", encode(make_meta(part=2))[:-9]):
        paths[2].write_bytes(data)
        reader = read(paths[0])
        assert _steps(reader) == [0, 1]
        assert bool(reader.torn) == bool(data)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """A gap between parts is an error that names the part; lenient reading counts it and goes on."""
    paths = write_parts(tmp_path, _STEM, [[make_metric(0)], [make_metric(1)], [make_metric(2), make_terminal()]])
    paths[1].unlink()
    with pytest.raises(TraceFormatError, match=r"part-0001\.jsonl is missing, while rank-00000\.part-0002\.jsonl is"):
        list(read(paths[0]))
    lenient = read(paths[0], lenient=True)
    assert _steps(lenient) == [0, 2]
    assert lenient.skipped == 1
    paths[0].unlink()
    with pytest.raises(TraceFormatError, match=r"first part rank-00000\.jsonl is missing"):
        read(paths[2])


def test_a_last_part_that_was_announced_and_is_not_there_ends_the_trace(tmp_path: Path) -> None:
    """A crash right behind segment_end leaves a trace without a terminal, not an error."""
    paths = write_parts(tmp_path, _STEM, [[make_metric(0)], []])
    paths[1].unlink()
    reader = read(paths[0])
    assert _steps(reader) == [0]
    assert reader.terminal is None


@pytest.mark.parametrize("following", ["../rank-00000.part-0001.jsonl", "/etc/passwd", "rank-00000.jsonl", "x", ""])
def test_segment_end_leads_nowhere_else(path: Path, following: str) -> None:
    """segment_end cannot name another folder, this part again, or another trace's file."""
    write_lines(path, [make_meta(), SegmentEnd(following)])
    with pytest.raises(TraceFormatError, match="segment_end names"):
        list(read(path))
    lenient = read(path, lenient=True)
    list(lenient)
    assert lenient.skipped == 1


def test_lines_after_segment_end_are_an_error(tmp_path: Path) -> None:
    """segment_end is the last line of its part."""
    paths = write_parts(tmp_path, _STEM, [[make_metric(0)], [make_metric(1)]])
    with paths[0].open("ab") as file:
        file.write(encode(make_metric(9)))
    with pytest.raises(TraceFormatError, match="a line after segment_end"):
        list(read(paths[0]))
    assert _steps(read(paths[0], lenient=True)) == [0, 1]


def test_a_part_of_another_run_is_refused(tmp_path: Path) -> None:
    """Files of two runs that were copied into one folder do not become one trace, nor does a part without meta."""
    paths = write_parts(tmp_path, _STEM, [[make_metric(0)], [make_metric(1)]])
    write_lines(paths[1], [make_meta(run_id="run-b", part=1), make_metric(1)])
    with pytest.raises(TraceFormatError, match=r"part-0001\.jsonl:1: this part's meta is of another run"):
        list(read(paths[0]))
    write_lines(paths[1], [make_metric(1), make_metric(2)])
    with pytest.raises(TraceFormatError, match=r"part-0001\.jsonl:1: the first line must be the meta event"):
        list(read(paths[0]))
    lenient = read(paths[0], lenient=True)
    assert _steps(lenient) == [0, 1, 2]
    assert lenient.skipped == 1


def test_a_renamed_first_part_finds_the_rest(tmp_path: Path) -> None:
    """A trace under a name of its own follows what segment_end names in its folder."""
    paths = write_parts(tmp_path, _STEM, [[make_metric(0)], [make_metric(1), make_terminal()]])
    assert _steps(read(paths[0].rename(tmp_path / "golden.jsonl"))) == [0, 1]


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    """A missing file, a directory and a pipe are errors that name the path, at once."""
    os.mkfifo(tmp_path / "pipe")
    for path, message in [
        (tmp_path / "none.jsonl", "there is no such trace file"),
        (tmp_path, r"a directory.*read_run"),
        (tmp_path / "pipe", "not a regular file"),
    ]:
        for follow in (False, True):
            with pytest.raises(TraceFormatError, match=message) as caught:
                read(path, follow)
            assert caught.value.path == str(path)


def test_a_line_without_end_is_an_error_and_no_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line beyond the limit is refused without being kept, in the middle and at the end."""
    monkeypatch.setattr(_parts, "MAX_LINE_BYTES", 1 << 20)
    endless = b'{"kind":"tag","key":"' + b"x" * (16 << 20)
    path.write_bytes(encode(make_meta()) + endless + b"\n" + encode(make_metric(0)) + endless)
    tracemalloc.start()
    try:
        with pytest.raises(TraceFormatError, match=r":2: a line longer than"):
            list(read(path))
        lenient = read(path, lenient=True)
        assert _steps(lenient) == [0]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (lenient.skipped, lenient.torn) == (2, ())
    assert peak_bytes < 4 << 20


def test_memory_does_not_grow_with_the_file(path: Path) -> None:
    """A trace of ten times the length takes no more memory: nothing is kept but the spans that are open."""
    peaks = []
    for count in (2_000, 20_000):
        spans = [event for number in range(count // 2) for event in make_span(f"{number:x}")]
        write_lines(path, [make_meta(), *map(make_metric, range(count)), *spans, make_terminal()])
        tracemalloc.start()
        for _ in read(path):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_the_packages_names_are_read_read_run_and_one_class_a_kind() -> None:
    """The package exports the two readers and the event classes, and each is there."""
    assert {"read", "read_run", "Meta", "Metric", "Terminal"} <= set(tracefile.__all__)
    assert all(hasattr(tracefile, name) for name in tracefile.__all__)
    assert Terminal is tracefile.Terminal
