"""Where a trace stands: finished, running or interrupted; told from its first line and its last ones."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan._clock import SystemClock
from runspan.errors import TraceFormatError
from runspan.tracefile._limits import RefusedLine, bounded, check_integers
from runspan.tracefile._parts import open_first, open_last, open_part
from runspan.tracefile._schemas import decode_meta, line_decoder
from runspan.tracefile.events import DeviceMemory, Memory, Meta, Op, SpanEnd, Terminal, Unknown
from runspan.tracefile.layout import TraceName
from runspan.tracefile.meta import iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runspan._clock import Clock
    from runspan.tracefile._parts import Part
    from runspan.tracefile._schemas import LineDecoder
    from runspan.tracefile.events import TraceEvent

__all__ = [
    "TornTail",
    "TracePeek",
    "TraceState",
    "TraceStatus",
    "empty_file",
    "event_time",
    "has_parent_ended",
    "is_blank",
    "meta_at",
    "peek",
    "read_head",
    "state_of",
]

#: A trace is interrupted when its last line is older than so many heartbeats.
_HEARTBEATS = 3
_NS_PER_S = 1_000_000_000
#: How much of a trace's end is looked at: little, and so much only where that holds no whole line that tells a time.
_TAIL_BYTES = (64 << 10, 16 << 20)


class TraceStatus(StrEnum):
    """Whether a trace is whole, still growing, or was cut off."""

    FINISHED = "finished"
    RUNNING = "running"
    INTERRUPTED = "interrupted"


class TraceState(msgspec.Struct, frozen=True):
    """The state of a trace.

    Attributes:
        status: finished, running or interrupted.
        last_seen_unix_nano: wall time of the last line that tells one.
    """

    status: TraceStatus
    last_seen_unix_nano: int

    def __str__(self) -> str:
        if self.status is TraceStatus.INTERRUPTED:
            return f"interrupted, last seen {iso_timestamp(self.last_seen_unix_nano)}"
        return str(self.status)


class TornTail(msgspec.Struct, frozen=True):
    """What is unreadable at the end of a file, because a crash or a power loss cut it.

    Attributes:
        path: the file.
        line: the one-based number of the line.
        byte_count: how many (decompressed) bytes could not be used.
        reason: what was found there.
    """

    path: str
    line: int
    byte_count: int
    reason: str


class TracePeek(msgspec.Struct, frozen=True):
    """What the first and the last lines of a trace say.

    Attributes:
        meta: the meta event.
        state: where the trace stands.
        terminal: the terminal event, None without one; of a schema that has none, what the end of a whole trace stands
            for, at the latest time that these lines tell.
        torn: whether the last line is cut (of a running trace: it may be in flight).
    """

    meta: Meta
    state: TraceState
    terminal: Terminal | None
    torn: bool


def event_time(event: TraceEvent, meta: Meta, span_start_ns: int | None = None) -> int | None:
    """Return the wall time at which a line was written, unix ns; None when it does not tell.

    Args:
        event: the line.
        meta: the trace's meta, from whose time ``*_ns`` fields count.
        span_start_ns: for the end of a span: its ``start_ns``.
    """
    match event:
        case Terminal() | Op() | Memory() | DeviceMemory():
            return meta.time_unix_nano + event.timestamp_ns
        case SpanEnd():
            return None if span_start_ns is None else meta.time_unix_nano + span_start_ns + event.duration_ns
        case Unknown(fields=fields):
            return _unknown_time(fields, meta)
    return getattr(event, "time_unix_nano", None)


def _unknown_time(fields: dict[str, object], meta: Meta) -> int | None:
    wall = fields.get("time_unix_nano")
    if isinstance(wall, int):
        return wall
    elapsed = fields.get("timestamp_ns", fields.get("start_ns"))
    return meta.time_unix_nano + elapsed if isinstance(elapsed, int) else None


def state_of(meta: Meta, last_seen_unix_nano: int, terminal: Terminal | None, path: Path, clock: Clock) -> TraceState:
    """Return a trace's state from what was read of it.

    A child process's file needs no terminal: without one it stands where its parent's trace does.

    Args:
        meta: the trace's meta.
        last_seen_unix_nano: wall time of its last line.
        terminal: its terminal event, if it has one.
        path: any file of the trace.
        clock: tells the present.
    """
    if terminal is not None:
        return TraceState(TraceStatus.FINISHED, last_seen_unix_nano)
    age_ns = clock.time_ns() - last_seen_unix_nano
    is_young = age_ns < _HEARTBEATS * meta.heartbeat_s * _NS_PER_S
    name = TraceName.parse(path.name)
    if name is not None and name.child is not None:
        return TraceState(_child_status(path.parent, name, clock, is_young=is_young), last_seen_unix_nano)
    return TraceState(TraceStatus.RUNNING if is_young else TraceStatus.INTERRUPTED, last_seen_unix_nano)


def _child_status(folder: Path, name: TraceName, clock: Clock, *, is_young: bool) -> TraceStatus:
    parent = folder / TraceName(name.rank, name.attempt).filename
    try:
        return peek(parent, clock=clock).state.status
    except TraceFormatError:  # the parent's file is gone or broken: the child's own lines are all there is
        return TraceStatus.RUNNING if is_young else TraceStatus.FINISHED


def has_parent_ended(path: Path, clock: Clock) -> bool:
    """Whether a path is a child process's trace, and its parent's trace has ended."""
    name = TraceName.parse(path.name)
    if name is None or name.child is None:
        return False
    return _child_status(path.parent, name, clock, is_young=True) is not TraceStatus.RUNNING


def read_head(path: Path) -> Meta:
    """Read the meta event of the trace that a path names, from the first of its parts.

    Raises:
        TraceFormatError: there is no such trace, or its first line is no meta event.
        SchemaVersionError: the trace is of another schema.
    """
    with open_first(path) as part:
        while lines := part.read_lines():
            for line in lines:
                part.line_number += 1
                if not is_blank(line):
                    return meta_at(line, part)
        if is_blank(part.tail):
            raise empty_file(part)
        part.line_number += 1
        return meta_at(part.tail, part)


def meta_at(line: bytes, part: Part) -> Meta:
    """Decode the line that a part begins with, its newest one read; errors name the file and the line."""
    try:
        if isinstance(line, RefusedLine):
            raise TraceFormatError(f"the first line must be the meta event, but it is {line.reason}")  # noqa: TRY301
        meta = decode_meta(line.lstrip(b"\0"))
        check_integers(meta)
    except TraceFormatError as error:
        raise type(error)(str(error), path=str(part.path), line=part.line_number) from error
    return meta


def empty_file(part: Part) -> TraceFormatError:
    """Return the error for a file without any line."""
    return TraceFormatError("empty: the process ended before it wrote the meta line", path=str(part.path))


def is_blank(line: bytes) -> bool:
    """Whether a line holds nothing but white space and NUL bytes."""
    return not line.strip(b"\0 \t\r\n")


def peek(path: str | Path, *, clock: Clock | None = None) -> TracePeek:
    """Tell where a trace stands from its first line and the last 64 KiB; for lists of many runs.

    Args:
        path: any file of the trace.
        clock: tells the present; None: the system's.

    Raises:
        TraceFormatError: there is no such trace, or its first line is no meta event.
        SchemaVersionError: the trace is of another schema.
    """
    path = Path(path)
    meta = read_head(path)
    with open_last(path) as part:
        ending, name = _read_ending(part, meta), part.name
    seen = ending.last_seen_unix_nano
    while seen is None and name is not None and name.part > 0:  # the last part has just begun
        name = msgspec.structs.replace(name, part=name.part - 1)
        seen = _last_seen_in(path.parent, name, meta)
    if seen is None:
        seen = meta.time_unix_nano
    state = state_of(meta, seen, ending.terminal, path, clock or SystemClock())
    return TracePeek(meta, state, ending.terminal, ending.torn)


class _Ending(msgspec.Struct, frozen=True):
    last_seen_unix_nano: int | None
    terminal: Terminal | None
    torn: bool


def _last_seen_in(folder: Path, name: TraceName, meta: Meta) -> int | None:
    part = open_part(folder, name)
    if part is None:
        return None
    with part:
        return _read_ending(part, meta).last_seen_unix_nano


def _read_ending(part: Part, meta: Meta) -> _Ending:
    decoder = line_decoder(meta)
    for byte_count in _TAIL_BYTES:
        tail = part.read_tail(byte_count)
        lines = _lines_from_end(tail.data, is_whole=tail.is_whole)
        ending = _ending_of(lines, meta, decoder)
        if ending.last_seen_unix_nano is not None or tail.is_whole:
            break
    torn = ending.torn or tail.cut or tail.data.endswith(b"\0")
    terminal = decoder.ending() if ending.terminal is None and not torn else ending.terminal
    return msgspec.structs.replace(ending, terminal=terminal, torn=torn)


def _lines_from_end(data: bytes, *, is_whole: bool) -> Iterator[bytes]:
    """Yield lines from the last to the first; that one only when it did not begin before the data."""
    end = len(data)
    while (newline := data.rfind(b"\n", 0, end)) >= 0:
        yield data[newline + 1 : end]
        end = newline
    if is_whole:
        yield data[:end]


def _ending_of(lines: Iterable[bytes], meta: Meta, decoder: LineDecoder) -> _Ending:
    terminal: Terminal | None = None
    torn = False
    is_last_event = True
    for line in lines:
        if is_blank(line):
            continue
        try:
            event = decoder.decode(bounded(line.lstrip(b"\0")))
            check_integers(event)
        except TraceFormatError:
            torn = torn or is_last_event
            continue
        if is_last_event and isinstance(event, Terminal):
            terminal = event
        is_last_event = False
        # The meta of a later part repeats the time of the trace's start.
        time_unix_nano = None if isinstance(event, Meta) else event_time(event, meta)
        if time_unix_nano is not None:
            return _Ending(time_unix_nano, terminal, torn)
    return _Ending(None, terminal, torn)
