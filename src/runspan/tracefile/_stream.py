"""The stream behind a trace reader: decodes the parts' lines and enforces the rules of the format on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile._limits import RefusedLine, check_integers, has_long_integer
from runspan.tracefile._parts import find_part, later_parts, open_first, open_part
from runspan.tracefile._schemas import OwnDecoder, line_decoder
from runspan.tracefile._state import TornTail, empty_file, event_time, has_parent_ended, is_blank, meta_at
from runspan.tracefile._untyped import quoted
from runspan.tracefile.events import (
    Artifact,
    DeviceInterval,
    Dropped,
    Edge,
    Environment,
    Gradient,
    Meta,
    Param,
    SegmentEnd,
    SpanEnd,
    SpanStart,
    Tag,
    Tensor,
    Terminal,
    TraceEvent,
    Unknown,
)
from runspan.tracefile.layout import TraceName

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from runspan._clock import Clock
    from runspan.tracefile._parts import Part
    from runspan.tracefile._schemas import LineDecoder

__all__ = ["TraceStream", "Wait"]

#: What tells no time, or one on another clock than the trace's.
_UNTIMED = (Environment, Param, Tag, Artifact, Dropped, Tensor, Gradient, Edge, DeviceInterval)


class Wait(msgspec.Struct, frozen=True):
    """How to wait for more of a trace that is being written.

    Attributes:
        poll_s: seconds between two looks.
        sleep: waits so many seconds.
        clock: tells the present.
    """

    poll_s: float
    sleep: Callable[[float], None]
    clock: Clock

    def __call__(self) -> None:
        self.sleep(self.poll_s)


class TraceStream:
    """What is known of a trace while its events are decoded one after the other.

    Args:
        path: any file of the trace.
        lenient: skip and count what breaks the format, instead of raising.

    Attributes:
        meta: the meta event, once it was read.
        terminal: the terminal event, once it was read; of a schema without one, what a whole trace's end stands for.
        torn: the unreadable ends of parts.
        skipped: how many lines or parts were skipped.
        is_exhausted: whether the end of the trace was reached.
    """

    def __init__(self, path: Path, *, lenient: bool) -> None:
        self.path = path
        self.meta: Meta | None = None
        self.terminal: Terminal | None = None
        self.torn: list[TornTail] = []
        self.skipped = 0
        self.is_exhausted = False
        self._lenient = lenient
        self._wait: Wait | None = None
        self._decoder: LineDecoder = OwnDecoder()
        #: By id of each open span its ``start_ns``; for ids that are open more than once, how many times more.
        self._open_spans: dict[str, int] = {}
        self._reopened: dict[str, int] = {}
        #: The newest line that tells a time; for a span's end also its ``start_ns``.
        self._last_timed: TraceEvent | None = None
        self._last_start_ns: int | None = None
        # Of the part in hand: whether its meta line was seen, and the event that closed it.
        self._has_meta = False
        self._closed_by: SegmentEnd | Terminal | None = None
        #: A line that is no JSON: the torn end, unless another line follows.
        self._suspect: TornTail | None = None
        #: Whether one of these three asks for a look at the next line before it is decoded.
        self._watchful = True

    def last_seen(self, meta: Meta) -> int:
        """Return the wall time of the newest line that tells one, unix ns."""
        seen = None if self._last_timed is None else event_time(self._last_timed, meta, self._last_start_ns)
        return meta.time_unix_nano if seen is None else seen

    def events(self, wait: Wait | None = None) -> Generator[TraceEvent, None, None]:  # noqa: C901 - see the loop
        """Yield the trace's events, over all its parts.

        Args:
            wait: given, the end of an unfinished trace is waited for.

        Raises:
            TraceFormatError: see :func:`runspan.tracefile.reader.read`.
        """
        checks: dict[type, Callable[[Part, Any], bool]] = {
            Meta: self._check_meta,
            SpanStart: self._check_span_start,
            SpanEnd: self._check_span_end,
            SegmentEnd: self._check_segment_end,
            Terminal: self._check_terminal,
            Unknown: self._check_unknown,
            **dict.fromkeys(_UNTIMED, _accept_untimed),
        }
        self._wait = wait
        part: Part | None = open_first(self.path)
        while part is not None:
            with part:
                self._has_meta, self._closed_by, self._watchful = False, None, True
                for lines in self._batches(part):
                    # What every event passes stands in this one loop: a call more costs a tenth of the time.
                    for line in lines:
                        part.line_number += 1
                        if self._watchful and not self._admits(part, line):
                            continue
                        try:
                            event = self._decoder.decode(line)
                            if part.has_long_integers and has_long_integer(line):
                                check_integers(event)
                        except TraceFormatError as error:
                            salvaged = self._salvage(part, line, error)
                            if salvaged is None:
                                continue
                            event = salvaged
                        check = checks.get(type(event))
                        if check is None:
                            self._last_timed = event
                        elif not check(part, event):
                            continue
                        yield event
                self._end_part(part)
            part = self._next_part(part)
        if self.terminal is None and not self.torn and (ending := self._decoder.ending()) is not None:
            self.terminal = self._last_timed = ending
            yield ending
        self.is_exhausted = True

    def _batches(self, part: Part) -> Iterator[list[bytes]]:
        """Yield the lines of a part as they come; last what stands behind its last newline."""
        while True:
            if lines := part.read_lines():
                yield lines
            elif (wait := self._wait) is None or self._closed_by is not None:
                break
            else:
                # First the look at what ends this part, then another one for lines that came before that.
                is_over = self._is_superseded(part) or has_parent_ended(part.path, wait.clock)
                if lines := part.read_lines():
                    yield lines
                elif is_over:
                    break
                else:
                    wait()
        if tail := part.tail:
            part.has_long_integers = True
            yield [tail]

    def _is_superseded(self, part: Part) -> bool:
        return part.name is not None and find_part(part.path.parent, part.name.next_part()) is not None

    def _admits(self, part: Part, line: bytes) -> bool:
        """Look at a line that is a part's first, or stands behind one that is no JSON or should be the last."""
        if is_blank(line):
            return True
        if self._suspect is not None:
            suspect, self._suspect = self._suspect, None
            self._reject(part, suspect.reason, suspect.line)
        if self._closed_by is not None:
            closing = "the terminal event" if isinstance(self._closed_by, Terminal) else "segment_end"
            self._reject(part, f"a line after {closing}, which must be the last")
            return False
        if not self._has_meta and not self._begin_part(part, line):
            return False
        self._watchful = False
        return True

    def _begin_part(self, part: Part, line: bytes) -> bool:
        """Check a part's meta line; return whether the line is an event of the trace: a later part's meta is not."""
        is_first_part = self._last_timed is None
        try:
            meta = meta_at(line, part)
        except TraceFormatError as error:
            if is_first_part or isinstance(error, SchemaVersionError):
                raise
            if not _is_json(line):
                self._suspect = _torn(part, line)
                return False
            if not self._lenient:
                raise
            self.skipped += 1
            self._has_meta = True
            return True  # the meta line is missing; this one may be whole
        self._has_meta = True
        if is_first_part:
            self.meta = meta
            self._decoder = line_decoder(meta)
            if self._decoder.ending() is not None:
                self._wait = None  # nothing in such a trace tells that it is over
        elif self.meta is not None and (meta.run_id, meta.process.rank) != (self.meta.run_id, self.meta.process.rank):
            self._reject(part, "this part's meta is of another run or rank than the first part's")
        return is_first_part

    def _salvage(self, part: Part, line: bytes, error: TraceFormatError) -> TraceEvent | None:
        """Return the event of a line behind NUL bytes; note or reject what cannot be decoded."""
        content = line.lstrip(b"\0")
        part.nul_bytes += len(line) - len(content)
        if is_blank(content):
            return None
        if content != line:
            try:
                event = self._decoder.decode(content)
                check_integers(event)
            except TraceFormatError as content_error:
                error = content_error
            else:
                return event
        if isinstance(line, RefusedLine) and not line.is_hole:
            self._reject(part, line.reason)  # the writer's lines are shorter, whole or cut
        elif isinstance(line, RefusedLine) or not _is_json(content):
            self._suspect = _torn(part, line, str(error))
            self._watchful = True
        else:
            self._reject(part, str(error))
        return None

    def _check_meta(self, part: Part, event: Meta) -> bool:
        if self._last_timed is not None:
            self._reject(part, "a second meta event: a trace has one, as its first line")
            return False
        self._last_timed = event
        return True

    def _check_span_start(self, part: Part, event: SpanStart) -> bool:  # noqa: ARG002 - the signature of a check
        if event.id in self._open_spans:
            self._reopened[event.id] = self._reopened.get(event.id, 0) + 1
        self._open_spans[event.id] = event.start_ns
        self._last_timed = event
        return True

    def _check_span_end(self, part: Part, event: SpanEnd) -> bool:
        start_ns = self._open_spans.get(event.id)
        if start_ns is None and (self.torn or part.nul_bytes):
            self.skipped += 1  # its start was lost with the end of an earlier part, which is reported
            return False
        if start_ns is None:
            self._reject(part, f"the end of span {quoted(event.id)}, which is not open")
            return False
        times = self._reopened.pop(event.id, 0)
        if times == 0:
            del self._open_spans[event.id]
        elif times > 1:
            self._reopened[event.id] = times - 1
        self._last_timed, self._last_start_ns = event, start_ns
        return True

    def _check_segment_end(self, part: Part, event: SegmentEnd) -> bool:  # noqa: ARG002 - the signature of a check
        self._closed_by = event
        self._watchful = True
        return False

    def _check_terminal(self, part: Part, event: Terminal) -> bool:  # noqa: ARG002 - the signature of a check
        self.terminal = self._closed_by = self._last_timed = event
        self._watchful = True
        return True

    def _check_unknown(self, part: Part, event: Unknown) -> bool:  # noqa: ARG002 - the signature of a check
        if self.meta is not None and event_time(event, self.meta) is not None:
            self._last_timed = event
        return True

    def _end_part(self, part: Part) -> None:
        """Tell what is wrong with the end of a part."""
        if not self._has_meta and self._last_timed is None:
            raise empty_file(part)
        if self._suspect is not None:
            self.torn.append(self._suspect)
        elif part.cut:
            self.torn.append(_torn(part, b"", "the gzip data ends early"))
        if part.nul_bytes:
            self.torn.append(TornTail(str(part.path), part.line_number, part.nul_bytes, "NUL bytes in place of data"))
        self._suspect = None
        if part.damage is not None:
            self._reject(part, part.damage)

    def _next_part(self, part: Part) -> Part | None:
        """Open the part that follows; None at the end of the trace."""
        if isinstance(self._closed_by, Terminal):
            return None
        if isinstance(self._closed_by, SegmentEnd):
            name = self._named_successor(part, self._closed_by)
        else:
            name = None if part.name is None else part.name.next_part()
        if name is None:
            return None
        folder = part.path.parent
        while (following := open_part(folder, name)) is None and self._wait is not None and self._closed_by is not None:
            self._wait()
        if following is None and part.name is not None and (later := later_parts(folder, part.name)):
            self._reject(part, f"the next part {name.filename} is missing, while {later[0].filename} is there")
            following = open_part(folder, later[0])
        return following

    def _named_successor(self, part: Part, segment_end: SegmentEnd) -> TraceName | None:
        name = TraceName.parse(segment_end.next)
        expected = None if part.name is None else part.name.next_part()
        if name is not None and (name == expected or (expected is None and name.part > 0)):
            return name
        self._reject(part, f"segment_end names {quoted(segment_end.next)}, which is not the part after this one")
        return expected

    def _reject(self, part: Part, message: str, line: int | None = None) -> None:
        """Raise for what breaks the format, or count it when lenient."""
        if not self._lenient:
            raise TraceFormatError(message, path=str(part.path), line=line or part.line_number)
        self.skipped += 1


def _accept_untimed(part: Part, event: TraceEvent) -> bool:  # noqa: ARG001 - the signature of a check
    return True


def _torn(part: Part, line: bytes, reason: str = "cut off") -> TornTail:
    if isinstance(line, RefusedLine):
        return TornTail(str(part.path), part.line_number, line.byte_count, line.reason)
    return TornTail(str(part.path), part.line_number, len(line), reason)


def _is_json(line: bytes) -> bool:
    """Whether a line is whole JSON, so that no cut explains what is wrong with it."""
    try:
        msgspec.json.decode(line)
    except msgspec.ValidationError:
        return True  # JSON, with a number out of range
    except msgspec.DecodeError:
        return False
    except RecursionError:
        return True
    return True
