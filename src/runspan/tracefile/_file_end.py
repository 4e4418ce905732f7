"""Where the whole lines of a trace's last file end: what stands behind them is cut off, and events are added there."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile._parts import MAX_LINE_BYTES, open_last
from runspan.tracefile._state import is_blank
from runspan.tracefile.events import encode

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.tracefile.events import Meta, TraceEvent

__all__ = ["FileEnd", "append_events", "cut_tail"]

#: How much of a file is looked at from its end; more, where its last line is longer.
_TAIL_BYTES = 64 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_NEWLINE = ord("\n")
#: White space, and the NUL bytes that a power loss leaves of data that was not written.
_BLANK = b"\0 \t\r\n"
_SEGMENT_END = b'{"kind":"segment_end"'


def cut_tail(path: Path) -> FileEnd | None:
    """Cut what stands behind the last whole line of a trace, and return what was there.

    A compressed part stays as it is, and is None: readers pass over its torn end.

    Args:
        path: any file of the trace.

    Raises:
        TraceFormatError: there is no such trace.
        OSError: the file cannot be read or written.
    """
    with closing(open_last(path)) as last:
        file = last.path
    if _is_packed(file):
        return None
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        end = _find_end(descriptor)
        if end.cut_bytes:
            os.ftruncate(descriptor, end.size)
        if not end.has_newline:
            os.write(descriptor, b"\n")
    finally:
        os.close(descriptor)
    return end


def append_events(path: Path, meta: Meta, events: list[TraceEvent]) -> None:
    """Append events to a trace that ends in a whole line, in one piece, on the disk when this returns.

    A last part that is compressed, or says that another follows, stays as it is: the events become the next part.

    Args:
        path: any file of the trace.
        meta: its meta event.
        events: what is added.

    Raises:
        TraceFormatError: there is no such trace.
        OSError: the file cannot be read or written; what a full disk did not take is cut off again.
    """
    with closing(open_last(path)) as last:
        file, name = last.path, last.name
    if not _is_packed(file):
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            end = _find_end(descriptor)
            if not end.is_segment_end or name is None:
                part = None if name is None else name.part or None
                # Without a line the part had just begun.
                opening = [] if end.size else [msgspec.structs.replace(meta, part=part)]
                _append_to(descriptor, end.size, b"".join(map(encode, [*opening, *events])))
                return
        finally:
            os.close(descriptor)
    if name is None:
        raise OSError(None, "it is compressed, and has no name that another part could follow")
    following = name.next_part()
    opening = [msgspec.structs.replace(meta, part=following.part)]
    _create(file.with_name(following.filename), b"".join(map(encode, [*opening, *events])))


def _append_to(descriptor: int, size: int, data: bytes) -> None:
    """Write at the end of a file of this size; what a full disk does not take is cut off again."""
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


class FileEnd(msgspec.Struct, frozen=True):
    """Where the whole lines of a file end.

    Attributes:
        size: bytes up to there.
        cut_bytes: bytes behind it.
        torn_bytes: those of them that are neither white space nor NUL bytes.
        has_newline: whether the last whole line has its newline; also where there is no line.
        is_segment_end: whether that line says that another part follows.
    """

    size: int
    cut_bytes: int
    torn_bytes: int
    has_newline: bool
    is_segment_end: bool


def _find_end(descriptor: int) -> FileEnd:
    """Look for the last line that is whole, from the end on: everything before it stays.

    Raises:
        OSError: the file cannot be read, or ends in more bytes without a newline than a line may have.
    """
    total = os.fstat(descriptor).st_size
    window = _TAIL_BYTES
    while True:
        begin = max(0, total - window)
        data = _read_at(descriptor, begin, total - begin)
        end = _last_line_in(data, begin)
        if end is not None:
            return end
        if begin == 0:
            torn_bytes = len(data.strip(_BLANK))
            return FileEnd(0, total, torn_bytes, has_newline=True, is_segment_end=False)
        if window > MAX_LINE_BYTES:
            raise OSError(None, f"its last {MAX_LINE_BYTES} bytes hold no line")
        window = min(window * 8, MAX_LINE_BYTES + _TAIL_BYTES)


def _last_line_in(data: bytes, offset: int) -> FileEnd | None:
    """Find the last whole line in the bytes that a file ends with.

    Args:
        data: these bytes.
        offset: where in the file they begin.
    """
    stop = len(data)
    while stop > 0:
        has_newline = data[stop - 1] == _NEWLINE
        begin = data.rfind(b"\n", 0, stop - has_newline) + 1
        if begin == 0 and offset > 0:
            return None  # it may have begun before
        line = data[begin : stop - has_newline]
        if not is_blank(line) and _is_whole(line):
            size = stop if has_newline else begin + len(line.rstrip(_BLANK))
            is_segment_end = line.lstrip(b"\0").startswith(_SEGMENT_END)
            return FileEnd(offset + size, len(data) - size, len(data[size:].strip(_BLANK)), has_newline, is_segment_end)
        stop = begin
    return None


def _is_whole(line: bytes) -> bool:
    """Whether a line is JSON, so that no cut explains what is wrong with it, if anything is."""
    try:
        msgspec.json.decode(line.strip(_BLANK))
    except msgspec.ValidationError:
        return True
    except msgspec.DecodeError:
        return False
    except RecursionError:
        return True
    return True


def _read_at(descriptor: int, offset: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.pread(descriptor, size, offset)):
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return b"".join(pieces)


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


def _create(path: Path, data: bytes) -> None:
    """Create a file whole; one that is there already is not touched.

    Raises:
        FileExistsError: it is.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # a rename would replace another process's
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
