"""Appends whole lines to a trace file, so that what a call returned from survives the process.

One ``os.write`` on an O_APPEND descriptor for one or several whole lines: after it the bytes are the kernel's, and
SIGKILL cannot take them back. A write that fails is rolled back to the last whole line and counted; the count itself
becomes a ``dropped`` line once the disk takes writes again.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile._compression import compress_in_background
from runspan.tracefile._descriptor import identify, reopen
from runspan.tracefile._fitting import MAY_NOT_FIT_BYTES, fitting
from runspan.tracefile.events import Dropped, Meta, SegmentEnd, TraceEvent, encode, encode_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from runspan.tracefile.layout import TraceName

__all__ = ["ClosedWriter", "FileWriter", "NullWriter", "TraceWriter"]

logger = logging.getLogger("runspan")

_CANNOT_WRITE = "trace file %s cannot be written (%s): what is lost is counted, and recording goes on when it can"
_WENT_ELSEWHERE = "trace file %s: the program closed its descriptor and reused the number: %d bytes went elsewhere"


class TraceWriter:
    """What recording code writes to: a lock, and an append that the lock's holder calls.

    The lock is reentrant and shared with the recording code, which does its own bookkeeping under it. A signal handler
    asks :meth:`is_inside` whether it interrupted a recording call, and must then not write.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # A Condition is the public way to ask whether this thread owns a reentrant lock.
        self._ownership = threading.Condition(self.lock)
        #: Threads inside a recording call that holds other locks than this one, for which no signal handler may wait.
        self.threads_inside: set[int] = set()
        #: Work left for the end of the recording call that the lock's holder is inside of, and that call's thread.
        self.deferred: tuple[int, Callable[[], None]] | None = None
        #: The thread whose deferred work waits for more than the end of its recording calls.
        self.held_back_thread: int | None = None

    def is_inside(self) -> bool:
        """Whether the calling thread is inside a recording call."""
        if threading.get_ident() in self.threads_inside:
            return True
        try:
            self._ownership.notify(0)
        except RuntimeError:
            return False
        return True

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Mark the calling thread as inside a recording call, without taking the lock; may be nested."""
        thread_id = threading.get_ident()
        is_outermost = thread_id not in self.threads_inside
        self.threads_inside.add(thread_id)
        try:
            yield
        finally:
            if is_outermost:
                self.threads_inside.discard(thread_id)
                self.run_deferred()

    def append(self, data: bytes) -> bool:
        """Append whole lines; the caller holds :attr:`lock`. Return whether they were accepted."""
        raise NotImplementedError

    def write(self, event: TraceEvent) -> bool:
        """Encode and append one event; return whether it was accepted."""
        line = encode(event)
        with self.lock:
            accepted = self.append(line)
        if self.deferred is not None:
            self.run_deferred()
        return accepted

    def write_plain(self, event: TraceEvent) -> bool:
        """Do :meth:`write`'s work for an event whose floats are finite: quicker, for hot paths."""
        try:
            line = encode_plain(event)
        except UnicodeEncodeError:  # a lone surrogate
            line = encode(event)
        with self.lock:
            accepted = self.append(line)
        if self.deferred is not None:
            self.run_deferred()
        return accepted

    def defer(self, work: Callable[[], None]) -> None:
        """Have the recording call that the calling thread is inside of do this at its end."""
        self.deferred = threading.get_ident(), work

    def run_deferred(self) -> None:
        """Do what was deferred, unless the caller is still inside a recording call.

        Only the thread that was interrupted does it: signals are the main thread's, and so is what handlers raise.
        """
        deferred = self.deferred
        if deferred is None or deferred[0] != threading.get_ident() or deferred[0] == self.held_back_thread:
            return
        if not self.is_inside():
            self.deferred = None
            deferred[1]()

    def lost(self) -> Mapping[str, int]:
        """Return how many lines were lost, by reason (an errno's name)."""
        return {}

    def sync(self) -> None:
        """Force what was written to the disk; an error is ignored, since the data stays with the kernel."""

    def reclaim(self) -> None:
        """Reopen the file if the program has closed its descriptor, whose number may be another file's by now."""

    def close(self) -> None:
        """Close for good; later appends are refused."""

    def abandon(self) -> None:
        """Let go of the file in a forked child, without touching what the parent process writes."""

    @property
    def path(self) -> Path | None:
        """The file being written, None when there is none."""
        return None


class NullWriter(TraceWriter):
    """Accepts everything and keeps nothing: a run without a trace directory."""

    def append(self, data: bytes) -> bool:
        """Accept."""
        return bool(data)


class ClosedWriter(TraceWriter):
    """Refuses everything: what a recorder writes to after its run has finished.

    Args:
        refused: called at the end of each recording call, behind the lock.
    """

    def __init__(self, refused: Callable[[], None]) -> None:
        super().__init__()
        self._refused = refused
        self.defer(refused)

    def append(self, data: bytes) -> bool:
        """Refuse."""
        return not data

    def run_deferred(self) -> None:
        """Tell of the refusal, at every call."""
        self._refused()


class FileWriter(TraceWriter):
    """Writes one trace: its first line is meta, and it goes on in numbered parts.

    Args:
        folder: the folder of the rank's files; it must exist.
        name: the file's name; opened with O_EXCL.
        meta: the first line.
        max_file_bytes: size from which the trace goes on in another part.
        durable: whether the first line and the end are synced to the disk, which takes milliseconds.

    Raises:
        FileExistsError: another process took the name.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, name: TraceName, meta: Meta, *, max_file_bytes: int, durable: bool = True) -> None:
        super().__init__()
        self._durable = durable
        self._folder = folder
        self._name = name
        self._meta = meta
        self._max_file_bytes = max_file_bytes
        self._pending_losses: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        # An exception that a signal handler raises behind a write leaves the line uncounted: good enough to end a part.
        self._size = 0
        #: Bytes that a failed write left at the end of the file and that could not be cut yet.
        self._torn_bytes = 0
        #: Size up to which an append takes the short path; negative: look before every write.
        self._fast_limit = max_file_bytes
        self._fd = -1
        self._closed = False
        self._open(name, meta)

    @property
    def path(self) -> Path:
        """The part being written."""
        return self._folder / self._name.filename

    def append(self, data: bytes) -> bool:
        """Append whole lines; the caller holds the lock. Return whether they were accepted."""
        byte_count = len(data)
        if byte_count > MAY_NOT_FIT_BYTES:
            data = fitting(data)
            byte_count = len(data)
        size = self._size + byte_count
        if size > self._fast_limit:
            return self._append_with_care(data)
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            return self._append_with_care(data) if error.errno == errno.EBADF else self._lose(data, error)
        if written != byte_count:
            return self._complete(data, written)
        self._size = size
        return True

    def lost(self) -> Mapping[str, int]:
        """Return how many lines were lost, by errno name."""
        return dict(self._losses)

    def sync(self) -> None:
        """Force what was written to the disk."""
        with suppress(OSError):  # the data stays with the kernel, and the next write reports a dead disk
            os.fsync(self._fd)

    def reclaim(self) -> None:
        """Reopen the file if the program has closed its descriptor, whose number may be another file's by now.

        What was written to that other file meanwhile counts as one lost line: how many there were is not known.
        """
        with self.lock, suppress(OSError):  # tried again before the next write, which counts what is lost
            self._reclaim()
        if self.deferred is not None:
            self.run_deferred()

    def close(self) -> None:
        """Sync and close; later appends are refused."""
        with self.lock:
            if self._durable and self._is_ours():
                self.sync()
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor without touching the file: it is the parent process's."""
        if self._is_ours():
            os.close(self._fd)
        self._fd = -1
        self._closed = True
        self._fast_limit = -1

    def _is_ours(self) -> bool:
        """Whether the descriptor is open and still stands for the file: a program may close every one there is."""
        return self._fd >= 0 and identify(self._fd) == self._identity

    def _reclaim(self) -> None:
        """Make the descriptor ours again.

        Raises:
            OSError: the file cannot be opened once more.
        """
        if self._closed or self._is_ours():
            return
        self._fd = self._fast_limit = -1
        self._fd = reopen(self.path, self._identity)
        size = os.fstat(self._fd).st_size
        if size != self._size + self._torn_bytes:
            self._torn_bytes = 0  # what was torn was written elsewhere
        if size < self._size:
            self._warn_first(_WENT_ELSEWHERE, self.path, self._size - size)
            self._count_loss(errno.errorcode[errno.EBADF], 1)
        self._size = size

    def _open(self, name: TraceName, meta: Meta) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self._folder / name.filename, flags, 0o644)
        line = encode(meta)
        try:
            _write_whole(descriptor, line)
            if self._durable:
                os.fsync(descriptor)
        except OSError:
            os.close(descriptor)
            (self._folder / name.filename).unlink(missing_ok=True)
            raise
        opened = os.fstat(descriptor)
        self._identity = opened.st_dev, opened.st_ino
        self._fd, self._name, self._size = descriptor, name, len(line)
        self._first_line_bytes = len(line)

    def _append_with_care(self, data: bytes) -> bool:
        """Append when the part is full, losses wait to be told, a torn tail waits to be cut, or the file is closed."""
        if self._closed:
            return False
        try:
            self._reclaim()
            self._cut_torn_tail()
        except OSError as error:
            return self._lose(data, error)
        if self._size + len(data) > self._max_file_bytes and self._size > self._first_line_bytes:
            self._rotate()
        losses = [(reason, count) for reason, count in self._pending_losses.items() if count]
        told = b"".join(encode(Dropped("file", reason, count)) for reason, count in losses) + data
        self._fast_limit = self._max_file_bytes
        try:
            written = os.write(self._fd, told)
            if written != len(told):
                written = self._write_rest(told, written)
        except OSError as error:
            return self._lose(data, error)
        self._size += written
        self._pending_losses.clear()
        return True

    def _complete(self, data: bytes, written: int) -> bool:
        """Finish a short write, or roll it back."""
        try:
            self._size += self._write_rest(data, written)
        except OSError as error:
            return self._lose(data, error)
        return True

    def _write_rest(self, data: bytes, written: int) -> int:
        """Write what a short write has left over, and return the size of it all.

        Raises:
            OSError: it cannot be written, and what was has to be cut off.
        """
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            self._torn_bytes = written
            raise
        return written

    def _lose(self, data: bytes, error: OSError) -> bool:
        """Count lines that could not be written, and cut what a failed write left behind."""
        self._warn_first(_CANNOT_WRITE, self.path, error.strerror or error)
        self._count_loss(errno.errorcode.get(error.errno or 0, "OSError"), data.count(b"\n"))
        with suppress(OSError):  # tried again before the next write
            self._reclaim()
            self._cut_torn_tail()
        return False

    def _warn_first(self, message: str, *values: object) -> None:
        """Log the first loss."""
        if not self._losses and self.deferred is None:
            # Not under the lock: a log handler may hold a lock of its own and record into this run.
            self.defer(functools.partial(logger.warning, message, *values))

    def _count_loss(self, reason: str, lines: int) -> None:
        self._pending_losses[reason] += lines
        self._losses[reason] += lines
        self._fast_limit = -1

    def _cut_torn_tail(self) -> None:
        """Cut the part of a line that a failed write left; nobody else writes to this file."""
        if self._torn_bytes:
            whole = os.fstat(self._fd).st_size - self._torn_bytes
            os.ftruncate(self._fd, whole)
            self._size, self._torn_bytes = whole, 0

    def _rotate(self) -> None:
        """Go on in the next part; when it cannot be opened, go on in this one."""
        following = self._name.next_part()
        finished, finished_fd = self.path, self._fd
        try:
            self._open(following, msgspec.structs.replace(self._meta, part=following.part))
        except OSError:
            return
        # Without this line a reader goes on at the next part all the same; a cut one it passes over.
        with suppress(OSError):
            os.write(finished_fd, encode(SegmentEnd(following.filename)))
        os.close(finished_fd)
        compress_in_background(finished)


def _write_whole(descriptor: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written:])
