"""The traces that a command is asked about: one file, or all of a run, of which broken ones do not hide the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from runspan.cli._output import counted
from runspan.cli._references import named_file
from runspan.cli.trace._target import find_directory
from runspan.errors import TraceFormatError
from runspan.tracefile import read, read_run
from runspan.tracefile._health import is_capture
from runspan.tracefile._state import read_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from runspan.cli._workspace import Workspace
    from runspan.tracefile.reader import TraceReader

__all__ = ["LenientOption", "Traces"]

_T = TypeVar("_T")

LenientOption = Annotated[
    bool, typer.Option("--lenient", help="Skip and count lines that break the format, instead of refusing the file.")
]


class Traces:
    """What a reference means, and what went wrong while it was read.

    Args:
        workspace: where to look for runs.
        reference: a trace file, or a run.
        lenient: skip and count lines that break the format.

    Attributes:
        directory: the run directory; None for a file.
        run_traces: the files of the run itself, by rank, attempt and child.
        captures: the files of its captured steps.
        problems: what could not be read; with any of them an answer is partial.
        notes: what was skipped or cut off in what could be read.

    Raises:
        RunNotFoundError: there is no such file and no such run.
        ConfigError: the reference is ambiguous.
        TraceFormatError: it is a file that is no trace.
    """

    def __init__(self, workspace: Workspace, reference: str, *, lenient: bool) -> None:
        self._lenient = lenient
        self.problems: list[str] = []
        self.notes: list[str] = []
        path = named_file(reference)
        self.directory: Path | None = None
        if path is not None:
            captured = is_capture(read_head(path))
            self.run_traces, self.captures = ([], [path]) if captured else ([path], [])
            return
        self.directory = find_directory(workspace, reference)
        run = read_run(self.directory)
        self.run_traces = [entry.path for entry in run.traces if entry.capture is None]
        self.captures = [entry.path for entry in run.traces if entry.capture is not None]
        self.problems += [str(problem.error) for problem in run.problems]

    @property
    def all(self) -> list[Path]:
        """Every file: the run's own, then those of captured steps."""
        return [*self.run_traces, *self.captures]

    def shown(self, path: str) -> str:
        """Return a path as people want to read it: within the run directory."""
        if self.directory is None:
            return path
        return str(Path(path).relative_to(self.directory))

    def each(self, paths: Iterable[Path], answer: Callable[[TraceReader], _T]) -> Iterator[_T]:
        """Yield what every trace answers; of a run, a broken one becomes a problem.

        Raises:
            TraceFormatError: the only trace is broken.
        """
        for path in paths:
            try:
                with read(path, lenient=self._lenient) as reader:
                    answered = answer(reader)
            except TraceFormatError as error:
                if self.directory is None:
                    raise
                self.problems.append(str(error))
                continue
            if reader.skipped:
                self.notes.append(f"{path}: {counted(reader.skipped, 'line')} skipped")
            self.notes += [
                f"{torn.path}:{torn.line}: {counted(torn.byte_count, 'byte')} at the end cannot be read ({torn.reason})"
                for torn in reader.torn
            ]
            yield answered
