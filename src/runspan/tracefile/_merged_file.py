"""One file of a whole run: the traces of all its ranks, attempts, children and captures, in the order of time."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan._output_file import whole_file
from runspan.errors import ConfigError
from runspan.tracefile.events import SCHEMA, DeviceMemory, Memory, Meta, Op, SpanStart, Terminal, Unknown, Usage, encode
from runspan.tracefile.layout import TraceName
from runspan.tracefile.meta import iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runspan.tracefile._merge import RunTrace, TraceEntry
    from runspan.tracefile.events import TraceEvent

__all__ = ["write_merged"]

#: The fields that count from a trace's start; those of a device interval count on the device's own clock.
_ELAPSED = ("start_ns", "timestamp_ns")
_ELAPSED_FIELDS: dict[type, str] = {
    SpanStart: "start_ns",
    **dict.fromkeys((Op, Memory, DeviceMemory, Usage, Terminal), "timestamp_ns"),
}
_EVENTS_A_CALL = 4096


def write_merged(
    run: RunTrace, output: Path, *, lenient: bool = False, progress: Callable[[int], None] | None = None
) -> int:
    """Write all traces of a run into one file, and return how many events it has.

    The file is a trace of the one schema, so that this library's reader, and whatever else reads runspan's traces or
    JSON lines, takes it as it is:

    - the first line is a meta event, that of the first trace; it starts when the earliest trace did, and all times
      since the start count from there;
    - every other line is an event of one of the traces, in the order of time, with one field more, which readers of
      traces skip: ``source`` is ``{rank, attempt, child?, capture?}`` and tells whose event it is;
    - the meta event of each trace stands where the trace begins, as kind ``source_meta``, and its terminal event where
      it ends, as kind ``source_terminal``: a trace has one of either;
    - the last line is a terminal event if the newest attempt of every rank has one, complete if all of them are, else
      the first failed rank's. A run that is still going on, was cut off, or of which a file cannot be read, has none.

    Kinds that this version does not know are kept, fields of known kinds that it does not know are left out. Ids are
    not changed: span ids are unique over a run, except that ``run`` comes again in every attempt; ids of storages and
    tensors are a process's own.

    Args:
        run: the traces, as ``read_run`` found them.
        output: where to; written whole or not at all, and gzipped where its name ends with ``.gz``.
        lenient: skip lines that break the format, instead of raising.
        progress: called with the number of events written since the last call.

    Raises:
        ConfigError: the output cannot be written, or would be taken for one of the run's own files.
        TraceFormatError: no trace of the run can be opened, or one breaks the format behind its first line.
    """
    _check_output(run, output)
    if not run.traces:
        raise run.problems[0].error
    began_unix_nano = min(entry.meta.time_unix_nano for entry in run.traces)
    sources = {id(entry): _Source(entry, began_unix_nano) for entry in run.traces}
    first = msgspec.structs.replace(
        run.traces[0].meta,
        schema=SCHEMA,
        time_unix_nano=began_unix_nano,
        timestamp=iso_timestamp(began_unix_nano),
        part=None,
    )
    written = 1
    with whole_file(output) as target, closing(run.events(lenient=lenient)) as events:
        target.write(encode(first))
        for entry, event in events:
            target.write(sources[id(entry)].line_of(event))
            written += 1
            if progress is not None and written % _EVENTS_A_CALL == 0:
                progress(_EVENTS_A_CALL)
        end = None if run.problems else _joint_terminal(list(sources.values()))
        if end is not None:
            target.write(encode(end))
            written += 1
    return written


class _Source:
    """One trace on its way into the merged file.

    Args:
        entry: the trace.
        began_unix_nano: the wall time from which the merged file counts.

    Attributes:
        terminal: its terminal event, as the merged file counts, once it came by.
    """

    def __init__(self, entry: TraceEntry, began_unix_nano: int) -> None:
        self.entry = entry
        self.terminal: Terminal | None = None
        self._later_ns = entry.meta.time_unix_nano - began_unix_nano
        name = entry.name
        told = {"rank": name.rank, "attempt": name.attempt, "child": name.child, "capture": entry.capture}
        source = msgspec.json.encode({key: value for key, value in told.items() if value is not None})
        self._ending = b',"source":' + source + b"}\n"

    def line_of(self, event: TraceEvent) -> bytes:
        """Return the line of an event."""
        if isinstance(event, Unknown) and "source" in event.fields:  # a key stands once in an object
            renamed = {"source_" if name == "source" else name: value for name, value in event.fields.items()}
            event = Unknown(event.kind, renamed)
        event = _later(event, self._later_ns)
        line = encode(event)
        if isinstance(event, Meta):
            line = _renamed(line, b"meta")
        elif isinstance(event, Terminal):
            self.terminal = event
            line = _renamed(line, b"terminal")
        return line[:-2] + self._ending  # in place of the closing brace and the newline


def _check_output(run: RunTrace, output: Path) -> None:
    place = Path(os.path.realpath(output))
    is_inside = place.is_relative_to(os.path.realpath(run.directory.path))
    if is_inside and TraceName.parse(place.name) is not None:
        raise ConfigError(f"{output} would be taken for one of the run's own files: give another name")


def _later(event: TraceEvent, by_ns: int) -> TraceEvent:
    """Let an event count from an earlier start."""
    if by_ns == 0:
        return event
    if isinstance(event, Unknown):
        times = {name: event.fields[name] + by_ns for name in _ELAPSED if isinstance(event.fields.get(name), int)}
        return Unknown(event.kind, {**event.fields, **times})
    name = _ELAPSED_FIELDS.get(type(event))
    return event if name is None else msgspec.structs.replace(event, **{name: getattr(event, name) + by_ns})


def _renamed(line: bytes, kind: bytes) -> bytes:
    """Give a line's kind the prefix ``source_``; ``kind`` is always the first field."""
    return line.replace(b'{"kind":"' + kind, b'{"kind":"source_' + kind, 1)


def _joint_terminal(sources: Sequence[_Source]) -> Terminal | None:
    """Return what the newest attempts of all ranks come to, None while one has no end."""
    newest: dict[int, _Source] = {}
    for source in sources:
        name = source.entry.name
        if name.child is not None or source.entry.capture is not None:
            continue
        if name.rank not in newest or newest[name.rank].entry.name.attempt < name.attempt:
            newest[name.rank] = source
    ends = [source.terminal for _, source in sorted(newest.items())]
    known = [end for end in ends if end is not None]
    if not known or len(known) < len(ends):
        return None
    decisive = next((end for end in known if end.outcome != "complete"), known[0])
    last_ns = max(source.terminal.timestamp_ns for source in sources if source.terminal is not None)
    return msgspec.structs.replace(decisive, timestamp_ns=last_ns)
