"""What a new attempt takes over from the files of earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile._parts import open_part
from runspan.tracefile._state import meta_at, read_head

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.tracefile._parts import Part
    from runspan.tracefile.layout import RunDirectory, TraceName

__all__ = ["first_start", "next_automatic_steps"]

#: Begins every line that may move a step counter: ``kind`` stands first, ``metric`` and ``metrics`` share these bytes.
_METRIC_LINE = b'{"kind":"metric'


class _Metric(msgspec.Struct, tag_field="kind", tag="metric", gc=False):
    """Of a ``metric`` line, what concerns counters."""

    key: str
    step: int
    explicit: bool = False


class _Metrics(msgspec.Struct, tag_field="kind", tag="metrics", gc=False):
    """Of a ``metrics`` line, what concerns counters: ``steps`` holds the automatic ones."""

    steps: dict[str, int] | None = None


_decoder = msgspec.json.Decoder(_Metric | _Metrics)


def next_automatic_steps(directory: RunDirectory, rank: int, before_attempt: int) -> dict[str, int]:
    """Return for each metric key the step that its next automatic value gets.

    All earlier attempts of the rank count, since a key that the last one did not log goes on from where an older one
    left it. Values logged at an explicit step move no counter: a key that only has such values is absent. Lines that a
    crash cut are passed over.

    Args:
        directory: the run directory.
        rank: the rank whose files are read.
        before_attempt: attempts from this one on are left out.

    Raises:
        TraceFormatError: a file cannot be read, or is of another schema.
    """
    next_steps: dict[str, int] = {}
    for name, path in directory.trace_files():
        if name.rank == rank and name.attempt < before_attempt and name.child is None:
            _scan(name, path, next_steps)
    return next_steps


def first_start(directory: RunDirectory) -> int | None:
    """Return when rank 0's first attempt started, unix ns; None when no file of it tells.

    Raises:
        SchemaVersionError: its trace is of another schema.
    """
    for name, path in directory.trace_files():
        if name.rank == 0 and name.child is None and name.part == 0:
            try:
                return read_head(path).time_unix_nano
            except SchemaVersionError:
                raise
            except TraceFormatError:
                continue  # ended before its meta line was written: the next attempt is the first that counts
    return None


def _scan(name: TraceName, path: Path, next_steps: dict[str, int]) -> None:
    part = open_part(path.parent, name)
    if part is None:
        raise TraceFormatError("the file was removed while the run directory was read", path=str(path))
    with part:
        is_first = True
        while lines := part.read_lines():
            if is_first:
                _refuse_other_schemas(lines[0], part)
                is_first = False
            for line in lines:
                if line.startswith(_METRIC_LINE):
                    _count(line, next_steps)
        if part.tail.startswith(_METRIC_LINE):
            _count(part.tail, next_steps)


def _refuse_other_schemas(line: bytes, part: Part) -> None:
    part.line_number = 1
    try:
        meta_at(line, part)
    except SchemaVersionError:
        raise
    except TraceFormatError:
        pass  # damaged: the lines behind it may still be whole


def _count(line: bytes, next_steps: dict[str, int]) -> None:
    try:
        event = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return  # cut by a crash, or of a kind that only begins like ours
    if isinstance(event, _Metrics):
        for key, step in (event.steps or {}).items():
            if step >= next_steps.get(key, 0):
                next_steps[key] = step + 1
    elif not event.explicit and event.step >= next_steps.get(event.key, 0):
        next_steps[event.key] = event.step + 1
