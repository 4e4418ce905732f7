from __future__ import annotations

import gzip
import hashlib
from typing import TYPE_CHECKING

import pytest

from runspan.errors import TraceFormatError
from runspan.tracefile.events import Metric, Param, Tag, TraceEvent, encode
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import TraceStatus, peek, read
from support.traces import FixedClock, make_meta, make_metric, make_span, make_terminal, write_lines, write_parts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LONG_AGO = FixedClock(3600)
_START, _END = make_span("a1")
_EVENTS: list[TraceEvent] = [
    make_meta(),
    _START,
    make_metric(0),
    Tag("note", "é\U0001f600 tensor"),
    make_metric(1, value=float("nan")),
    Param("nested", {"a": [1, {"$float": "Infinity"}]}),
    _END,
    make_terminal(),
]
_LINES = [encode(event) for event in _EVENTS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of rank 0, not there yet."""
    return tmp_path / "rank-00000.jsonl"


def _lines_of(events: Sequence[TraceEvent]) -> list[str]:
    """Compare by text, since NaN is not equal to itself."""
    return [repr(event) for event in events]


def _whole_lines_before(cut: int) -> int:
    """Return how many lines are whole in so many bytes, a line that only lacks its newline included."""
    length = count = 0
    for line in _LINES:
        length += len(line)
        count += cut >= length - 1
    return count


def test_a_cut_at_every_byte_loses_only_the_line_it_is_in(path: Path) -> None:
    """Case 36: wherever the file ends behind its meta line, every whole line is read, and a cut one is reported."""
    data = b"".join(_LINES)
    path.write_bytes(data)
    expected = _lines_of(list(read(path)))
    for cut in range(len(_LINES[0]) - 1, len(data)):
        path.write_bytes(data[:cut])
        reader = read(path, clock=_LONG_AGO)
        whole = _whole_lines_before(cut)
        assert _lines_of(list(reader)) == expected[:whole], cut
        leftover = cut - sum(map(len, _LINES[:whole]))
        assert [torn.byte_count for torn in reader.torn] == [leftover] * (leftover > 0), cut
        finished = whole == len(_LINES)
        assert reader.state.status is (TraceStatus.FINISHED if finished else TraceStatus.INTERRUPTED)
        glance = peek(path, clock=_LONG_AGO)
        assert (glance.torn, glance.terminal is not None) == (leftover > 0, finished), cut


def test_a_cut_inside_the_meta_line_is_no_trace(path: Path) -> None:
    """Without a whole meta line nothing is known of the file: a named error, at every byte."""
    for cut in range(len(_LINES[0]) - 1):
        path.write_bytes(_LINES[0][:cut])
        for open_it in (read, peek):
            with pytest.raises(TraceFormatError):
                open_it(path)


@pytest.mark.parametrize("nul_bytes", [1, 4096, 3 << 16])
@pytest.mark.parametrize("kept", [0, 1, 40])
def test_nul_bytes_at_the_end_are_a_torn_end(path: Path, nul_bytes: int, kept: int) -> None:
    """A power loss leaves NUL bytes behind a line or inside one: what stands before is read, the rest reported."""
    path.write_bytes(b"".join(_LINES[:3]) + _LINES[4][:kept] + bytes(nul_bytes))
    reader = read(path, clock=_LONG_AGO)
    assert len(list(reader)) == 3
    assert sum(torn.byte_count for torn in reader.torn) == kept + nul_bytes
    assert {torn.line for torn in reader.torn} <= {3, 4}
    assert peek(path, clock=_LONG_AGO).torn


def test_a_torn_last_line_may_have_its_newline(path: Path) -> None:
    """Blocks of the last line that were never written leave NULs inside it, newline kept: still the torn end."""
    path.write_bytes(b"".join(_LINES[:3]) + _LINES[4][:20] + bytes(30) + b"\n\n")
    reader = read(path)
    assert len(list(reader)) == 3
    assert [(torn.path, torn.line, torn.byte_count) for torn in reader.torn] == [(str(path), 4, 50)]


def test_nul_bytes_before_a_line_cost_no_line(path: Path) -> None:
    """Case 36: NUL bytes where lines begin, the first too, are passed over and reported; each whole record is read."""
    path.write_bytes(bytes(100) + _LINES[0] + _LINES[1] + bytes(7) + _LINES[2] + _LINES[6] + _LINES[7])
    reader = read(path)
    assert [type(event).__name__ for event in reader] == ["Meta", "SpanStart", "Metric", "SpanEnd", "Terminal"]
    assert [torn.byte_count for torn in reader.torn] == [107]
    assert reader.state.status is TraceStatus.FINISHED


def test_gzip_cut_at_every_byte_gives_every_record_before_the_cut(path: Path) -> None:
    """Case 36: a gzip file cut by some bytes gives all records whose bytes are there, and reports the cut."""
    # Keys that do not compress, so that the last records lie in the last bytes.
    metrics = [make_metric(step, key=hashlib.sha256(bytes([step])).hexdigest()) for step in range(30)]
    events = [*_EVENTS[:3], *metrics]
    whole = gzip.compress(b"".join(map(encode, events)))
    gz_path = path.with_name(f"{path.name}.gz")
    counts = []
    for cut in range(len(whole) - 1, len(whole) - 200, -1):
        gz_path.write_bytes(whole[:cut])
        reader = read(path)
        read_events = list(reader)
        counts.append(len(read_events))
        assert len(reader.torn) == 1
        assert read_events[3:] == metrics[: len(read_events) - 3]
    assert counts[4] == len(events)  # five bytes are of the trailer alone
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < len(events)


def test_a_cut_in_a_later_gzip_member_keeps_the_earlier_ones(path: Path) -> None:
    """Case 36: concatenated members, the last one cut: all records of the whole ones, and what the last one gives."""
    members = [gzip.compress(line) for line in _LINES[:4]]
    path.write_bytes(b"".join(members)[:-5])
    reader = read(path)
    assert len(list(reader)) == 4
    assert [torn.reason for torn in reader.torn] == ["the gzip data ends early"]
    assert peek(path, clock=_LONG_AGO).torn


def test_gzip_with_its_end_lost_to_nul_bytes_is_cut(path: Path) -> None:
    """A power loss that leaves NULs in place of the end of a gzipped part is reported like a cut, not as damage."""
    data = gzip.compress(b"".join(_LINES[:3]), compresslevel=0)
    path.write_bytes(data[:-30] + bytes(4096))
    reader = read(path)
    assert len(list(reader)) == 2
    assert reader.torn


def test_damaged_gzip_data_is_an_error_behind_what_it_gives(path: Path) -> None:
    """Bytes that were changed inside a gzip file are no cut: an error, after every record that stands before them."""
    data = bytearray(gzip.compress(b"".join(_LINES), compresslevel=0))
    data[-6] ^= 0xFF  # the checksum
    path.write_bytes(bytes(data))
    reader = read(path)
    assert [next(reader) for _ in _LINES]
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl.*gzip data damaged"):
        next(reader)
    lenient = read(path, lenient=True)
    assert len(list(lenient)) == len(_LINES)
    assert lenient.skipped == 1
    path.write_bytes(gzip.compress(_LINES[0]) + b"no gzip member")
    with pytest.raises(TraceFormatError, match="gzip data damaged"):
        list(read(path))


def test_a_torn_part_in_the_middle_loses_nothing_of_the_next(tmp_path: Path) -> None:
    """A closed part that was cut while it was copied is reported; the parts behind it are read."""
    paths = write_parts(tmp_path, TraceName(0), [[make_metric(0), make_metric(1)], [make_metric(2), make_terminal()]])
    packed = paths[0].with_name(f"{paths[0].name}.gz")
    packed.write_bytes(gzip.compress(encode(make_meta()) + encode(make_metric(0)) + encode(make_metric(1))[:-9])[:-8])
    paths[0].unlink()
    reader = read(packed)
    assert [event.step for event in reader if isinstance(event, Metric)] == [0, 2]
    assert [torn.path for torn in reader.torn] == [str(packed)]
    assert reader.state.status is TraceStatus.FINISHED


def test_a_span_whose_start_a_torn_part_lost_is_skipped(tmp_path: Path) -> None:
    """A power loss may tear parts that are not the last: the end of a span that began there is counted, never fatal."""
    first, _ = write_parts(tmp_path, TraceName(0), [[make_metric(0), _START], [_END, make_metric(1)]])
    whole = first.read_bytes()
    start_begins = whole.index(encode(_START))
    first.write_bytes(whole[: start_begins + 20])
    with read(first, clock=_LONG_AGO) as reader:
        assert [type(event) for event in reader][-2:] == [Metric, Metric]
    assert (len(reader.torn), reader.skipped) == (1, 1)
    first.write_bytes(whole.replace(encode(_START), b""))
    with pytest.raises(TraceFormatError, match="which is not open"):
        list(read(first))


def test_what_is_whole_but_wrong_at_the_end_is_an_error(path: Path) -> None:
    """Only a line that is no JSON can be torn: a whole one that breaks the format is an error, newline or not."""
    for newline in (b"", b"\n"):
        path.write_bytes(_LINES[0] + b'{"kind":"tag","key":"a"}' + newline)
        with pytest.raises(TraceFormatError, match=":2: "):
            list(read(path))


def test_a_torn_end_behind_the_terminal_is_refused_as_a_line(path: Path) -> None:
    """Nothing may follow the terminal event, not even half a line; NUL padding is none."""
    write_lines(path, [make_meta(), make_terminal()])
    with path.open("ab") as file:
        file.write(bytes(10))
    assert len(list(read(path))) == 2
    with path.open("ab") as file:
        file.write(b'{"ki')
    with pytest.raises(TraceFormatError, match="a line after the terminal event"):
        list(read(path))
