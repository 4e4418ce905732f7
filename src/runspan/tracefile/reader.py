"""Reads a trace as a stream of typed events, whatever state a crash left its files in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from runspan._clock import SystemClock
from runspan.tracefile._parts import open_first
from runspan.tracefile._state import TornTail, TracePeek, TraceState, TraceStatus, peek, read_head, state_of
from runspan.tracefile._stream import TraceStream, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import TracebackType

    from runspan._clock import Clock
    from runspan.tracefile.events import Meta, Terminal, TraceEvent

__all__ = ["TornTail", "TracePeek", "TraceReader", "TraceState", "TraceStatus", "peek", "read"]

_POLL_S = 0.2


def read(
    path: str | Path,
    follow: bool = False,
    *,
    lenient: bool = False,
    clock: Clock | None = None,
    poll_s: float = _POLL_S,
    sleep: Callable[[float], None] = time.sleep,
) -> TraceReader:
    """Open a trace and return an iterator over its events, from the meta event on.

    All parts of the trace are read as one, plain or gzipped: the meta of a later part and ``segment_end`` are not among
    the events. A cut last line is no error (see :attr:`TraceReader.torn`).

    Args:
        path: any file of the trace.
        follow: at the end wait for more, until the terminal event; a last line without its newline is in flight. A
            child process's trace, which needs no terminal event, is followed until its parent's has ended.
        lenient: skip and count lines that break the format, instead of raising.
        clock: tells the present, for the state; None: the system's.
        poll_s: seconds between two looks at a file that is followed.
        sleep: waits so many seconds.

    Raises:
        TraceFormatError: there is no such trace, or its first line is no meta event. While iterating: a line in the
            middle is not JSON or not a valid event, a second meta, the end of a span that is not open, anything after
            the terminal event, or a missing part.
        SchemaVersionError: the trace is of another or a newer schema.
    """
    path = Path(path)
    stream = TraceStream(path, lenient=lenient)
    if follow:
        open_first(path).close()
        wait = Wait(poll_s, sleep, clock or SystemClock())
        return TraceReader(stream, stream.events(wait), clock)
    stream.meta = read_head(path)
    return TraceReader(stream, stream.events(), clock)


class TraceReader:
    """Iterates once over the events of one trace; made by :func:`read`.

    It holds one open file, one chunk of it and the ids of the spans that are open: not more for a longer trace. The
    file is closed at the end of the iteration, by :meth:`close`, or by leaving the reader's context.
    """

    def __init__(self, stream: TraceStream, events: Generator[TraceEvent, None, None], clock: Clock | None) -> None:
        self._stream = stream
        self._events = events
        self._clock = clock or SystemClock()

    def __iter__(self) -> Iterator[TraceEvent]:
        return self._events  # not self: a __next__ in Python would cost a call an event

    def __next__(self) -> TraceEvent:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop iterating and close the open file."""
        self._events.close()

    @property
    def path(self) -> Path:
        """The path that was given."""
        return self._stream.path

    @property
    def meta(self) -> Meta:
        """The meta event, from the first of the trace's parts.

        Raises:
            TraceFormatError: the trace is followed, and its first line is not there yet.
        """
        if self._stream.meta is None:
            self._stream.meta = read_head(self._stream.path)
        return self._stream.meta

    @property
    def terminal(self) -> Terminal | None:
        """The terminal event, once it was read; None for a trace without one."""
        return self._stream.terminal

    @property
    def torn(self) -> tuple[TornTail, ...]:
        """What could not be read at the end of a part; of a running trace's last part it is a line in flight."""
        return tuple(self._stream.torn)

    @property
    def skipped(self) -> int:
        """How many lines (or damaged or missing parts) a lenient reader skipped, and ends whose start a tear lost."""
        return self._stream.skipped

    @property
    def last_seen_unix_nano(self) -> int:
        """Wall time of the newest line read that tells one, ns since the epoch; before any, of the meta event."""
        return self._stream.last_seen(self.meta)

    @property
    def state(self) -> TraceState:
        """Where the trace stands now; before its end was read, by a look at its end."""
        stream = self._stream
        if stream.is_exhausted or stream.terminal is not None:
            return state_of(self.meta, self.last_seen_unix_nano, stream.terminal, stream.path, self._clock)
        return peek(stream.path, clock=self._clock).state
