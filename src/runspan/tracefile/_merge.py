"""A run directory as a whole: its traces, and their events merged by time."""

from __future__ import annotations

import heapq
import pickle
import resource
from contextlib import ExitStack
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import TraceFormatError
from runspan.tracefile._state import peek, read_head
from runspan.tracefile.events import Meta, TraceEvent
from runspan.tracefile.layout import RunDirectory, TraceName, first_parts
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from runspan._clock import Clock
    from runspan.tracefile._state import TracePeek
    from runspan.tracefile.reader import TraceReader

__all__ = ["RunTrace", "TraceEntry", "TraceProblem", "read_run"]

#: One event on its way through a merge: its time (unix ns), the position of its trace, itself.
_Timed = tuple[int, int, TraceEvent]
#: However many descriptors there are: each open trace also holds a chunk of decoded lines, some 200 KB.
_MAX_OPEN_FILES = 1024


class TraceEntry(msgspec.Struct, frozen=True):
    """One trace of a run directory.

    Attributes:
        name: what its file name says: rank, attempt, child.
        path: its first part.
        meta: its meta event.
        capture: the folder name of the captured step that it belongs to; None for a run trace.
    """

    name: TraceName
    path: Path
    meta: Meta
    capture: str | None = None

    def read(self, *, lenient: bool = False) -> TraceReader:
        """Open the trace; see :func:`runspan.tracefile.read`."""
        return read(self.path, lenient=lenient)

    def peek(self, *, clock: Clock | None = None) -> TracePeek:
        """Tell where the trace stands; see :func:`runspan.tracefile.reader.peek`."""
        return peek(self.path, clock=clock)


class TraceProblem(msgspec.Struct, frozen=True):
    """A file that cannot be opened as a trace.

    Attributes:
        path: the file.
        error: what is wrong with it; its text names the file.
    """

    path: Path
    error: TraceFormatError


class RunTrace:
    """The traces of one run directory; made by :func:`read_run`.

    Attributes:
        directory: the run directory.
        traces: every trace that can be opened: run traces by rank, attempt and child, then captures.
        problems: the files that cannot; the other traces are not affected.
        skipped: lines that lenient reading of their events has passed over so far.
    """

    def __init__(self, directory: RunDirectory, traces: Sequence[TraceEntry], problems: Sequence[TraceProblem]) -> None:
        self.directory = directory
        self.traces = tuple(traces)
        self.problems = tuple(problems)
        self.skipped = 0

    @property
    def attempts(self) -> dict[tuple[int, int], tuple[TraceEntry, ...]]:
        """The traces by (rank, attempt), each with its children and captures; sorted."""
        groups: dict[tuple[int, int], list[TraceEntry]] = {}
        for entry in self.traces:
            groups.setdefault((entry.name.rank, entry.name.attempt), []).append(entry)
        return {key: tuple(groups[key]) for key in sorted(groups)}

    def events(self, *, lenient: bool = False) -> Generator[tuple[TraceEntry, TraceEvent], None, None]:
        """Yield every event of every trace with its trace, in the order of time.

        The events of one trace keep their order: one whose line tells no time, or an earlier one than the line before
        it (the wall clock stepped back), counts as of the newest time before it. Memory and open files are bounded,
        however many traces there are: at most half of the process's descriptor limit is open, and what is more is
        merged in passes through temporary files. Closing the generator closes and removes them.

        Args:
            lenient: skip and count lines that break the format, instead of raising.

        Raises:
            TraceFormatError: a trace breaks the format behind its first line.
        """
        sources = [self._timed_events(position, entry, lenient=lenient) for position, entry in enumerate(self.traces)]
        with ExitStack() as cleanup:
            for _, position, event in _merge(sources, _open_file_budget(), cleanup):
                yield self.traces[position], event

    def _timed_events(self, position: int, entry: TraceEntry, *, lenient: bool) -> Iterator[_Timed]:
        newest = 0
        with entry.read(lenient=lenient) as reader:
            for event in reader:
                newest = max(newest, reader.last_seen_unix_nano)
                yield newest, position, event
            self.skipped += reader.skipped


def read_run(directory: str | Path) -> RunTrace:
    """Find the traces of a run directory: all ranks, attempts, children and captures.

    Only first lines are read; a file without a valid one is among the problems.

    Raises:
        TraceFormatError: the path is no directory, holds no trace file, or one of its folders cannot be listed.
    """
    run_directory = RunDirectory(Path(directory))
    run_directory.check_readable()
    listed = ((None, run_directory.trace_files()), *run_directory.capture_files().items())
    found = [(capture, name, path) for capture, files in listed for name, path in first_parts(files)]
    if not found:
        what = "holds no trace file" if run_directory.path.is_dir() else "is no directory"
        raise TraceFormatError(
            f"{what}: a run directory is <root>/runs/<run id>, with a rank-00000.jsonl for each rank",
            path=str(directory),
        )
    traces, problems = [], []
    for capture, name, path in found:
        try:
            traces.append(TraceEntry(name, path, read_head(path), capture))
        except TraceFormatError as error:
            problems.append(TraceProblem(path, error))
    return RunTrace(run_directory, traces, problems)


def _open_file_budget() -> int:
    """Return how many files may be open: half of the descriptor limit, at least enough to merge two into one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_OPEN_FILES
    return max(3, min(limit // 2, _MAX_OPEN_FILES))


def _merge(sources: list[Iterator[_Timed]], budget: int, cleanup: ExitStack) -> Iterator[_Timed]:
    """Merge sorted sources, each of which opens a file when it is begun, within a budget of open files."""
    import tempfile  # noqa: PLC0415 - heavy, and every start of a run imports this package

    fan_in = budget - 1  # one more file is open: the one that a pass writes
    while len(sources) > budget:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="runspan-merge-")))
        waiting = iter(sources)
        spilled: list[Iterator[_Timed]] = []
        while group := list(islice(waiting, fan_in)):
            path = folder / str(len(spilled))
            _spill(heapq.merge(*group, key=itemgetter(0)), path)
            spilled.append(_read_spilled(path))
        sources = spilled
    return heapq.merge(*sources, key=itemgetter(0))


def _spill(events: Iterable[_Timed], path: Path) -> None:
    with path.open("wb") as file:
        for timed in events:
            pickle.dump(timed, file, pickle.HIGHEST_PROTOCOL)


def _read_spilled(path: Path) -> Iterator[_Timed]:
    with path.open("rb") as file:
        while True:
            try:
                timed: _Timed = pickle.load(file)  # noqa: S301 - this process wrote it, into a folder of its own
            except EOFError:
                return
            yield timed
