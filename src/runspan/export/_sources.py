"""Which files an export reads: the traces that were asked for, and the steps that they captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan.errors import TraceFormatError
from runspan.tracefile._state import TraceStatus, peek, read_head
from runspan.tracefile.events import SCHEMA
from runspan.tracefile.layout import RunDirectory, TraceName, first_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from runspan.tracefile.events import Meta

__all__ = ["Source", "Sources", "cut_ends", "find_sources"]


class Source(msgspec.Struct, frozen=True):
    """One trace of an export.

    Attributes:
        path: its first part.
        meta: its meta event.
        capture: the folder name of the captured step that it is; None for a run trace.
        child: ``<pid>`` or ``<pid>-<n>`` of the child process that wrote it; None for a rank's own.
    """

    path: Path
    meta: Meta
    capture: str | None = None
    child: str | None = None

    @property
    def rank(self) -> int:
        """The rank that wrote it."""
        return self.meta.process.rank

    @property
    def attempt(self) -> int:
        """The rank's attempt."""
        return self.meta.process.attempt

    @property
    def has_metrics(self) -> bool:
        """Whether a live run exports metrics of it: a rank's own, none of captured steps and of child processes."""
        return self.capture is None and self.child is None and self.meta.schema == SCHEMA

    @property
    def label(self) -> str:
        """What tells it from the other traces of its rank; empty for the first attempt's own."""
        parts = (
            f"attempt {self.attempt}" if self.attempt else None,
            None if self.child is None else f"child {self.child}",
            self.capture,
        )
        return " · ".join(part for part in parts if part is not None)


class Sources(msgspec.Struct, frozen=True):
    """The traces of an export.

    Attributes:
        traces: those that can be opened, by rank: its run traces, each followed by the steps that it captured.
        problems: what is wrong with the others, a line each.
    """

    traces: tuple[Source, ...]
    problems: tuple[str, ...]

    @property
    def run_id(self) -> str:
        """The run; of several the first one's."""
        return self.traces[0].meta.run_id

    @property
    def start_unix_nano(self) -> int:
        """When the first of the traces starts, unix ns: what an export's times count from."""
        return min(source.meta.time_unix_nano for source in self.traces)


def find_sources(traces: Sequence[Path]) -> Sources:
    """Open the first line of each trace and of the captured steps that belong to it.

    Args:
        traces: the first part of each trace file.

    Raises:
        TraceFormatError: none of them can be opened.
        SchemaVersionError: the same, for the only one is of another schema.
    """
    found: list[Source] = []
    errors: list[TraceFormatError] = []
    captures = _Captures()
    for path in traces:
        _, own_capture = RunDirectory.of_trace(path)
        for file, capture in ((path, own_capture), *captures.of(path)):
            name = TraceName.parse(file.name)
            try:
                found.append(Source(file, read_head(file), capture, None if name is None else name.child))
            except TraceFormatError as error:
                errors.append(error)
    if not found:
        raise errors[0] if errors else TraceFormatError("there is no trace to export: give a trace file or a run")
    found.sort(key=lambda source: source.rank)
    return Sources(tuple(found), tuple(map(str, errors)))


def cut_ends(sources: Sources) -> list[str]:
    """Return the files of traces that a crash has cut; the end of one that is being written is in flight, and not cut.

    Raises:
        TraceFormatError: a trace can be opened no more.
    """
    found = []
    for source in sources.traces:
        seen = peek(source.path)
        if seen.torn and seen.state.status is not TraceStatus.RUNNING:
            found.append(str(source.path))
    return found


class _Captures:
    """The captured steps of run directories, each of which is listed once."""

    def __init__(self) -> None:
        self._files: dict[Path, dict[str, list[tuple[str, Path]]]] = {}

    def of(self, trace: Path) -> Iterable[tuple[Path, str]]:
        """Return the first part of each step that a run trace's process captured, and the step's folder name."""
        name = TraceName.parse(trace.name)
        directory, own_capture = RunDirectory.of_trace(trace)
        if name is None or own_capture is not None:
            return ()
        if directory.path not in self._files:
            by_stem: dict[str, list[tuple[str, Path]]] = {}
            for capture, files in directory.capture_files().items():
                for captured, path in first_parts(files):
                    by_stem.setdefault(captured.stem, []).append((capture, path))
            self._files[directory.path] = by_stem
        return ((path, capture) for capture, path in self._files[directory.path].get(name.stem, ()))
