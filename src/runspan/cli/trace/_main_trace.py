"""Which one trace of a run a command takes that can take one only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runspan.cli.trace._target import find_trace_files
from runspan.tracefile.layout import TraceName

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.cli._workspace import Workspace

__all__ = ["find_main_trace"]


def find_main_trace(workspace: Workspace, reference: str) -> Path:
    """Return the file itself where a reference is one, else a run's newest attempt of its lowest rank.

    Raises:
        RunNotFoundError: there is no such file and no such run.
        ConfigError: the reference is ambiguous.
    """
    files = find_trace_files(workspace, reference)
    names = {path: TraceName.parse(path.name) for path in files}
    own = {path: name for path, name in names.items() if name is not None and name.child is None}
    return min(own or files, key=lambda path: (own[path].rank, -own[path].attempt) if own else (0, 0))
