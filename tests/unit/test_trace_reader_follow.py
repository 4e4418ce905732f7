from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile.events import Metric, SegmentEnd, TraceEvent, encode
from runspan.tracefile.reader import TraceReader, TraceStatus, read
from support.traces import FixedClock, make_meta, make_metric, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_POLL_S = 0.125


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of rank 0, not there yet."""
    return tmp_path / "rank-00000.jsonl"


def _append(path: Path, *pieces: bytes | TraceEvent) -> None:
    with path.open("ab") as file:
        file.writelines(piece if isinstance(piece, bytes) else encode(piece) for piece in pieces)


def _follow(path: Path, happenings: Iterable[Callable[[], object]], now_s: float = 0) -> TraceReader:
    """Follow a file; at each wait the next thing happens to it, and a wait too many fails the test."""
    waiting = iter(happenings)

    def happen(seconds: float) -> None:
        assert seconds == _POLL_S
        happening = next(waiting, None)
        if happening is None:
            pytest.fail("the reader waits although the trace has ended")
        happening()

    return read(path, follow=True, clock=FixedClock(now_s), poll_s=_POLL_S, sleep=happen)


def _steps(reader: TraceReader) -> list[int]:
    return [event.step for event in reader if isinstance(event, Metric)]


def test_following_ends_with_the_terminal_event(path: Path) -> None:
    """New lines are handed out as they come, however often nothing came; terminal ends it without another wait."""
    write_lines(path, [make_meta(), make_metric(0)])
    reader = _follow(
        path,
        [
            lambda: None,
            lambda: _append(path, make_metric(1), make_metric(2)),
            lambda: None,
            lambda: _append(path, make_terminal()),
        ],
    )
    assert _steps(reader) == [0, 1, 2]
    assert (reader.terminal, reader.torn) == (make_terminal(), ())
    assert reader.state.status is TraceStatus.FINISHED


def test_a_partial_last_line_is_in_flight(path: Path) -> None:
    """A line that arrives byte by byte, cut inside a character too, is one line when its newline is there."""
    events: list[TraceEvent] = [make_meta(), make_metric(0, key="é\U0001f600"), make_terminal()]
    data = b"".join(map(encode, events))
    path.write_bytes(b"")
    pieces = [data[position : position + 1] for position in range(len(data))]
    reader = _follow(path, [lambda piece=piece: _append(path, piece) for piece in pieces])  # type: ignore[misc]
    assert list(reader) == events
    assert reader.torn == ()


def test_a_whole_line_without_its_newline_waits_for_it(path: Path) -> None:
    """What could be the beginning of a longer write is not handed out early."""
    write_lines(path, [make_meta()])
    _append(path, encode(make_metric(0))[:-1])
    seen: list[TraceEvent] = []
    reader = _follow(
        path,
        [lambda: seen.append(make_metric(0)), lambda: _append(path, b"\n"), lambda: _append(path, make_terminal())],
    )
    assert next(reader) == make_meta()
    assert next(reader) == make_metric(0)
    assert seen == [make_metric(0)]  # it came after the first wait
    assert list(reader) == [make_terminal()]


def test_a_new_part_is_followed(path: Path) -> None:
    """The next part is taken up when the old one ends, gzipped meanwhile or not, in whatever order they are written."""
    following = path.with_name("rank-00000.part-0001.jsonl")
    third = path.with_name("rank-00000.part-0002.jsonl")

    def gzip_first() -> None:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        _append(following, make_metric(2))

    write_lines(path, [make_meta(), make_metric(0)])
    reader = _follow(
        path,
        [
            lambda: _append(path, make_metric(1), SegmentEnd(following.name)),
            lambda: None,  # segment_end can be seen before the part that it names
            lambda: write_lines(following, [make_meta(part=1)]),
            gzip_first,
            lambda: write_lines(third, [make_meta(part=2), make_metric(3)]),  # segment_end was lost to a full disk
            lambda: _append(third, make_terminal()),
        ],
    )
    assert _steps(reader) == [0, 1, 2, 3]


def test_lines_that_came_just_before_a_new_part_are_not_lost(path: Path) -> None:
    """A part that grew and was closed within one wait is read to its end before the next one."""
    following = path.with_name("rank-00000.part-0001.jsonl")

    def grow_and_go_on() -> None:
        _append(path, make_metric(1))
        write_lines(following, [make_meta(part=1), make_metric(2), make_terminal()])

    write_lines(path, [make_meta(), make_metric(0)])
    assert _steps(_follow(path, [grow_and_go_on])) == [0, 1, 2]


def test_meta_is_waited_for(path: Path) -> None:
    """A file that was just created has no first line yet: iterating waits for it, asking for it now is an error."""
    path.touch()
    reader = _follow(path, [lambda: write_lines(path, [make_meta(), make_terminal()])])
    with pytest.raises(TraceFormatError, match="empty"):
        _ = reader.meta
    assert len(list(reader)) == 2
    assert reader.meta == make_meta()


def test_following_refuses_what_reading_refuses(path: Path) -> None:
    """A foreign schema or a bad line raises as soon as it is there."""
    path.touch()
    with pytest.raises(SchemaVersionError):
        list(_follow(path, [lambda: write_lines(path, [make_meta(schema="other")])]))
    write_lines(path, [make_meta()])
    reader = _follow(path, [lambda: _append(path, b"{\n"), lambda: _append(path, make_terminal())])
    with pytest.raises(TraceFormatError, match=":2: "):
        list(reader)


def test_a_child_is_followed_until_its_parents_trace_has_ended(path: Path) -> None:
    """A child's file has no terminal event: it is over, last lines included, when its parent's trace is."""
    child = path.with_name("rank-00000.child-7.jsonl")

    def end_both() -> None:
        _append(child, make_metric(1))
        _append(path, make_terminal())

    write_lines(path, [make_meta()])
    write_lines(child, [make_meta(), make_metric(0)])
    reader = _follow(child, [lambda: None, end_both])
    assert _steps(reader) == [0, 1]
    assert reader.state.status is TraceStatus.FINISHED
