"""Follows the lines of a trace that a display shows: each look takes up what has been written since the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan.errors import TraceFormatError
from runspan.tracefile._limits import check_integers
from runspan.tracefile._parts import find_part, open_part
from runspan.tracefile._schemas import OwnDecoder, decode_meta, line_decoder
from runspan.tracefile._state import is_blank
from runspan.tracefile.events import SCHEMA, Meta, Terminal, TraceEvent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runspan.tracefile._parts import Part
    from runspan.tracefile._schemas import LineDecoder
    from runspan.tracefile.layout import TraceName

__all__ = ["TailPosition", "TraceTail"]

#: How the lines begin that a display shows, as the writer writes them. Its others are not even decoded.
_WRITTEN = b'{"kind":"'
_SHOWN = tuple(f'{{"kind":"{kind}",'.encode() for kind in ("metric", "metrics", "step", "usage", "event", "terminal"))


class TailPosition(msgspec.Struct, frozen=True, order=True, array_like=True):
    """How far a trace was read.

    Attributes:
        part: the part's number.
        line: how many of its lines were read.
    """

    part: int = 0
    line: int = 0


class TraceTail:
    """What one trace has to show; lines that cannot be decoded are passed over.

    Holds one open file until the terminal event was read.

    Args:
        folder: the folder of the trace's files.
        name: the name of one of its parts.
        position: where to go on; the lines before it are not decoded.

    Attributes:
        meta: the meta event; None before it is there.
        terminal: the terminal event, once it was read.
        position: how far it was read; moves with each batch.
    """

    def __init__(self, folder: Path, name: TraceName, position: TailPosition | None = None) -> None:
        self.meta: Meta | None = None
        self.terminal: Terminal | None = None
        self.position = position or TailPosition()
        self._folder = folder
        self._name = msgspec.structs.replace(name, part=self.position.part, compressed=False)
        #: Of the part in hand: how many lines were read, and how many of its first ones are not decoded.
        self._lines_read = 0
        self._first_line = self.position.line
        self._part: Part | None = None
        self._decoder: LineDecoder = OwnDecoder()

    @property
    def is_open(self) -> bool:
        """Whether a file is open."""
        return self._part is not None

    def close(self) -> None:
        """Close the file that is open; the next look opens it again, and goes on where this one was."""
        if self._part is not None:
            self._part.close()
            self._part = None
            self._lines_read, self._first_line = 0, self.position.line

    def batches(self, until: TailPosition | None = None) -> Iterator[list[TraceEvent]]:
        """Yield what was written since the last look, some hundred lines at a time, until the end for now.

        Args:
            until: where to stop; the rest of the lines that were read with it is lost to this object.

        Raises:
            TraceFormatError: a file is no regular file, or the operating system refuses.
            SchemaVersionError: the trace is of another schema.
        """
        if self._part is not None and self._part.is_tail_gone():
            self.close()
        while self.terminal is None:
            if self._part is None:
                self._part = open_part(self._folder, self._name)
                if self._part is None:
                    return
            # Looked for before the lines are: what this part gets later is its end alone.
            is_followed = find_part(self._folder, self._name.next_part()) is not None
            while not self._has_reached(until) and (lines := self._part.read_lines()):
                if until is not None and until.part == self._name.part:
                    lines = lines[: until.line - self._lines_read]
                if self.meta is None:
                    self._read_meta(lines)
                events = self._decoded(lines[max(0, self._first_line - self._lines_read) :], self._part)
                self._lines_read += len(lines)
                self.position = TailPosition(self._name.part, max(self._lines_read, self._first_line))
                yield events
            if self._has_reached(until):
                return
            if not is_followed:
                self._end_foreign()
                return
            self.close()
            self._name = self._name.next_part()
            self._lines_read = self._first_line = 0
            self.position = TailPosition(self._name.part, 0)
        self.close()

    def _has_reached(self, until: TailPosition | None) -> bool:
        return until is not None and TailPosition(self._name.part, self._lines_read) >= until

    def _decoded(self, lines: list[bytes], part: Part) -> list[TraceEvent]:
        is_own = isinstance(self._decoder, OwnDecoder)
        events: list[TraceEvent] = []
        for line in lines:
            if is_own and line.startswith(_WRITTEN) and not line.startswith(_SHOWN):
                continue
            try:
                event = self._decoder.decode(line)
                if part.has_long_integers:
                    check_integers(event)
            except TraceFormatError:
                continue
            if isinstance(event, Terminal):
                self.terminal = event
            events.append(event)
        return events

    def _read_meta(self, lines: list[bytes]) -> None:
        first = next((line for line in lines if not is_blank(line)), None)
        if first is None:
            return
        meta = decode_meta(first.lstrip(b"\0"))
        check_integers(meta)
        self.meta = meta
        if meta.schema != SCHEMA:
            self._decoder = line_decoder(meta)

    def _end_foreign(self) -> None:
        """Take the end of the file for the end of the trace, where its schema knows no other."""
        if self.meta is not None and self.terminal is None:
            self.terminal = self._decoder.ending()
