"""The bytes of a trace: its parts in order, plain or gzipped, as lines, whatever state a crash left them in."""

from __future__ import annotations

import os
import stat
import zlib
from typing import IO, TYPE_CHECKING, Protocol, Self

import msgspec

from runspan.errors import TraceFormatError
from runspan.tracefile._limits import RefusedLine, bounded, has_long_integer
from runspan.tracefile.layout import TraceName

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = [
    "MAX_LINE_BYTES",
    "Part",
    "Tail",
    "find_part",
    "later_parts",
    "open_first",
    "open_last",
    "open_part",
]

#: A line longer than this is an error: no event is, and a file without newlines must not fill the memory.
MAX_LINE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
_GZIP_CHUNK_BYTES = 1 << 14
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's way to ask for a gzip header and trailer


class _Source(Protocol):
    cut: bool
    damage: str | None

    def read(self) -> bytes: ...

    def skip_to_last(self, byte_count: int) -> int: ...


class _PlainSource:
    """The bytes of a plain file; after the end it can go on, when the file has grown."""

    cut = False
    damage: str | None = None

    def __init__(self, file: IO[bytes], read_ahead: bytes) -> None:
        self._file = file
        self._read_ahead = read_ahead

    def read(self) -> bytes:
        """Return the next bytes; none at what is the end for now."""
        if self._read_ahead:
            chunk, self._read_ahead = self._read_ahead, b""
            return chunk
        return self._file.read(_CHUNK_BYTES)

    def skip_to_last(self, byte_count: int) -> int:
        """Go where so many bytes are left; return how many were skipped."""
        skipped = max(0, os.fstat(self._file.fileno()).st_size - byte_count)
        self._read_ahead = b""
        return self._file.seek(skipped)


class _GzipSource:
    """The decompressed bytes of one or several gzip members.

    Unlike the standard library's reader it gives every byte that stands before a cut or a damaged place.

    Attributes:
        cut: whether the file ended inside a member.
        damage: what is wrong with the compressed data, apart from a cut.
    """

    def __init__(self, file: IO[bytes], read_ahead: bytes) -> None:
        self._file = file
        self._begin(read_ahead)

    def _begin(self, read_ahead: bytes) -> None:
        self.cut = False
        self.damage: str | None = None
        self._input = read_ahead
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._member_began = False

    def read(self) -> bytes:
        """Return the next decompressed bytes; none at the end, after which nothing follows."""
        while not self.cut and self.damage is None:
            if self._member.eof:
                # Padding with NULs between and behind members is ignored, as gzip does.
                self._input = self._member.unused_data.lstrip(b"\0")
                self._member = zlib.decompressobj(_GZIP_WINDOW)
                self._member_began = False
            if not self._input:
                self._input = self._file.read(_GZIP_CHUNK_BYTES)
                if not self._member_began:
                    self._input = self._input.lstrip(b"\0") or self._skip_padding()
                if not self._input:
                    self.cut = self._member_began
                    return b""
            data = self._decompress()
            if data:
                return data
        return b""

    def skip_to_last(self, byte_count: int) -> int:  # noqa: ARG002 - the signature of a source
        """Go to the beginning: the only way to the end leads through the whole file."""
        self._begin(b"")
        return self._file.seek(0)

    def _skip_padding(self) -> bytes:
        while chunk := self._file.read(_GZIP_CHUNK_BYTES):
            if rest := chunk.lstrip(b"\0"):
                return rest
        return b""

    def _decompress(self) -> bytes:
        self._member_began = True
        before = self._member.copy()
        piece = self._input
        try:
            data = self._member.decompress(piece, _CHUNK_BYTES)
        except zlib.error as error:
            return self._salvage(before, piece, str(error))
        self._input = self._member.unconsumed_tail
        return data

    def _salvage(self, before: zlib._Decompress, piece: bytes, error: str) -> bytes:
        """Decompress byte by byte up to the damaged place: zlib gives nothing of a call that failed."""
        salvaged = bytearray()
        position = 0
        try:
            while position < len(piece):
                salvaged += before.decompress(piece[position : position + 1])
                position += 1
        except zlib.error:
            pass
        if piece[position:].strip(b"\0") or self._file.read(_GZIP_CHUNK_BYTES).strip(b"\0"):
            self.damage = f"gzip data damaged: {error}"
        else:  # only NULs follow: a power loss took the end
            self.cut = True
        return bytes(salvaged)


class Part:
    """One open file of a trace, read as lines in batches.

    Args:
        file: the open file, unbuffered; closed by this object.
        path: its path.
        name: what its name says, None for a file that is not named as the writer names them.

    Attributes:
        path: the file's path.
        name: what the file's name says.
        line_number: the one-based number of the line in hand; counted by the reader.
        nul_bytes: how many NUL bytes stood where a line should begin: what a power loss leaves of unwritten data.
        has_long_integers: whether the newest lines may hold integers beyond 64 bits, so that it must be checked.
    """

    def __init__(self, file: IO[bytes], path: Path, name: TraceName | None) -> None:
        self.path = path
        self.name = name
        self.line_number = 0
        self.nul_bytes = 0
        self.has_long_integers = False
        self._file = file
        self._held: list[bytes] = []
        self._held_bytes = 0
        #: Up to the last of those held that is no NUL.
        self._held_content_bytes = 0
        try:
            magic = file.read(2)
        except OSError as error:
            file.close()
            raise TraceFormatError(f"cannot be read: {error}", path=str(path)) from error
        self._source: _Source = (_GzipSource if magic == _GZIP_MAGIC else _PlainSource)(file, magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def cut(self) -> bool:
        """Whether the end was reached inside a gzip member."""
        return self._source.cut

    @property
    def damage(self) -> str | None:
        """What is wrong with the compressed data, None when nothing is."""
        return self._source.damage

    @property
    def tail(self) -> bytes:
        """What was read after the last newline."""
        if self._held_bytes > MAX_LINE_BYTES:
            is_hole = self._held_content_bytes <= MAX_LINE_BYTES
            return RefusedLine.of(self._held_bytes, f"a line longer than {MAX_LINE_BYTES} bytes", is_hole=is_hole)
        return bounded(b"".join(self._held))

    def is_tail_gone(self) -> bool:
        """Whether what was read after the last newline was cut off since: the writer does so after a failed write."""
        size = self._held_bytes
        if not size or size > MAX_LINE_BYTES or not isinstance(self._source, _PlainSource):
            return False
        try:
            return os.pread(self._file.fileno(), size, self._file.tell() - size) != b"".join(self._held)
        except OSError as error:
            raise TraceFormatError(f"cannot be read: {error.strerror}", path=str(self.path)) from error

    def read_lines(self) -> list[bytes]:
        """Return the next whole lines without their newlines; none at the end (of a growing file: for now).

        Raises:
            TraceFormatError: the operating system cannot read the file.
        """
        while True:
            chunk = self._read()
            if not chunk:
                return []
            end = chunk.rfind(b"\n")
            if end < 0:
                self._hold(chunk)
                continue
            lines = chunk[:end].split(b"\n")
            self.has_long_integers = has_long_integer(chunk)
            if self._held:
                self._hold(lines[0])
                lines[0] = self.tail
                self.has_long_integers = self.has_long_integers or has_long_integer(lines[0])
                self._held.clear()
                self._held_bytes = self._held_content_bytes = 0
            self._hold(chunk[end + 1 :])
            return lines

    def read_tail(self, byte_count: int) -> Tail:
        """Return the last bytes, wherever the part was read to; its lines cannot be read after that.

        Raises:
            TraceFormatError: the operating system cannot read the file.
        """
        skipped = self._source.skip_to_last(byte_count)
        kept = bytearray()
        while chunk := self._read():
            kept += chunk
            if len(kept) > 2 * byte_count + _CHUNK_BYTES:
                skipped += len(kept) - byte_count
                del kept[:-byte_count]
        surplus = max(0, len(kept) - byte_count)
        return Tail(bytes(kept[surplus:]), is_whole=not skipped + surplus, cut=self.cut or self.damage is not None)

    def _read(self) -> bytes:
        try:
            return self._source.read()
        except OSError as error:
            raise TraceFormatError(f"cannot be read: {error.strerror}", path=str(self.path)) from error

    def _hold(self, piece: bytes) -> None:
        if not self._held_bytes:  # a line begins here
            kept = piece.lstrip(b"\0")
            self.nul_bytes += len(piece) - len(kept)
            piece = kept
        if content := piece.rstrip(b"\0"):
            self._held_content_bytes = self._held_bytes + len(content)
        self._held_bytes += len(piece)
        if self._held_bytes > MAX_LINE_BYTES:
            self._held = [b""]  # only the length is still of interest
        elif piece:
            self._held.append(piece)


def find_part(folder: Path, name: TraceName) -> Path | None:
    """Return where a part is, plain or gzipped; None when it is nowhere."""
    return next((path for path in _spellings(folder, name) if path.exists()), None)


def open_part(folder: Path, name: TraceName) -> Part | None:
    """Open a part by its name, gzipped where there is no plain file; None when there is neither.

    Raises:
        TraceFormatError: it is no regular file, or the operating system refuses.
    """
    return next((part for path in _spellings(folder, name) if (part := _open_file(path)) is not None), None)


def open_first(path: Path) -> Part:
    """Open the first part of the trace that a path names.

    Args:
        path: any part of the trace, or a single file under a name of its own.

    Raises:
        TraceFormatError: it is not there, it is no regular file, or the operating system refuses.
    """
    name = TraceName.parse(path.name)
    if name is None:
        part = _open_file(path)
    else:
        first = msgspec.structs.replace(name, part=0)
        part = open_part(path.parent, first)
        if part is None and find_part(path.parent, name) is not None:
            raise TraceFormatError(f"the trace's first part {first.filename} is missing", path=str(path))
    if part is None:
        raise TraceFormatError("there is no such trace file", path=str(path))
    return part


def open_last(path: Path) -> Part:
    """Open the last part of the trace that a path names, as :func:`open_first` does the first."""
    part = open_first(path)
    name = part.name
    while name is not None and find_part(path.parent, name := name.next_part()) is not None:
        part.close()
        following = open_part(path.parent, name)
        if following is None:
            return open_last(path)  # removed meanwhile
        part = following
    return part


def later_parts(folder: Path, name: TraceName) -> list[TraceName]:
    """Return the parts of the same trace that come after one, in order."""
    names = (TraceName.parse(path.name) for path in folder.glob(f"{name.stem}.part-*"))
    return sorted(
        (other for other in names if other and other.stem == name.stem and other.part > name.part),
        key=lambda other: other.part,
    )


class Tail(msgspec.Struct, frozen=True):
    """The last bytes of a file, decompressed.

    Attributes:
        data: the bytes.
        is_whole: whether they are the whole file.
        cut: whether the file ended inside a gzip member, or is damaged.
    """

    data: bytes
    is_whole: bool
    cut: bool


def _open_file(path: Path) -> Part | None:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TraceFormatError("a directory, not a trace file: read_run() reads run directories", path=str(path))
        if not stat.S_ISREG(mode):
            raise TraceFormatError("not a regular file", path=str(path))
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TraceFormatError(f"cannot be opened: {error.strerror}", path=str(path)) from error
    except ValueError as error:
        raise TraceFormatError(f"cannot be opened: {error}", path=str(path)) from error
    return Part(file, path, TraceName.parse(path.name))


def _spellings(folder: Path, name: TraceName) -> tuple[Path, Path]:
    """Return the plain and the gzipped path, in the order in which a part goes from one to the other."""
    plain = msgspec.structs.replace(name, compressed=False).filename
    return folder / plain, folder / f"{plain}.gz"
