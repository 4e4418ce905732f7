"""Folded stacks: a line for each path of spans, with the time that was spent there and in no span below.

What flame graph programs read: ``run;rank;validate 1200345``, in ns. Self time is a span's duration minus the union of
its children's intervals, summed over the spans of a path. Of several ranks each path begins with ``rank <n>``. A
captured step is a trace of its own, and so a root. A span that was renamed has its last name, and what is below it its
first one: its end alone tells that it was renamed.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING

from runspan._output_file import whole_file
from runspan.errors import TraceFormatError
from runspan.export._sources import find_sources
from runspan.export._spans import read_spans
from runspan.tracefile.graph import self_time_ns
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runspan.export._sources import Source
    from runspan.export._spans import JoinedSpan
    from runspan.tracefile.events import SpanStart

__all__ = ["export_folded"]

#: The path that stands above all spans of a trace.
_ROOT = -1


def export_folded(traces: Sequence[Path], output: Path) -> None:
    """Write the self times of traces' spans by path, sorted by path.

    Memory grows with the different paths and the spans that are open at a time, and by 16 bytes for each interval in
    which an open span has children.

    Args:
        traces: the first part of each trace file.
        output: the file, replaced when all is written.

    Raises:
        TraceFormatError: no trace can be opened, one breaks the format, or there is no span in them.
        ConfigError: the output cannot be written.
    """
    sources = find_sources(traces)
    stacks = _Stacks()
    of_several = len({source.rank for source in sources.traces}) > 1
    for source in sources.traces:
        _Folding(stacks, stacks.path(_ROOT, f"rank {source.rank}") if of_several else _ROOT).add(source)
    lines = stacks.lines()
    if not lines:
        raise TraceFormatError("there is no span to export", path=str(sources.traces[0].path))
    with whole_file(output) as file:
        file.writelines(line.encode("utf-8", "replace") for line in lines)


class _Stacks:
    """The paths that were met, and the self time of each."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, str], int] = {}
        self._parents: list[tuple[int, str]] = []
        self._self_ns: dict[int, int] = {}

    def path(self, parent: int, name: str) -> int:
        """Return the path of a name below another path."""
        key = (parent, name)
        if key not in self._ids:
            self._ids[key] = len(self._parents)
            self._parents.append(key)
        return self._ids[key]

    def renamed(self, path: int, name: str) -> int:
        """Return the path that has this name in place of its last one."""
        parent, last = self._parents[path]
        return path if name == last else self.path(parent, name)

    def add(self, path: int, self_ns: int) -> None:
        """Add self time to a path."""
        self._self_ns[path] = self._self_ns.get(path, 0) + self_ns

    def lines(self) -> list[str]:
        """Return the lines, sorted."""
        return sorted(f"{self._text(path)} {self_ns}\n" for path, self_ns in self._self_ns.items())

    def _text(self, path: int) -> str:
        names = []
        while path != _ROOT:
            path, name = self._parents[path]
            names.append(_escaped(name))
        return ";".join(reversed(names))


class _Cover:
    """The intervals in which an open span has children, in the order in which the children ended.

    Attributes:
        path: the span's path.
        open_children: the start of each child that is open, ns, by its id.
    """

    __slots__ = ("_edges", "open_children", "path")

    def __init__(self, path: int) -> None:
        self.path = path
        self.open_children: dict[str, int] = {}
        self._edges = array("q")

    def add(self, start_ns: int, end_ns: int) -> None:
        """Add a child's interval; where it touches the newest one, that becomes longer."""
        edges = self._edges
        if edges and edges[-2] <= start_ns <= edges[-1]:
            edges[-1] = max(edges[-1], end_ns)
        else:
            edges.extend((start_ns, end_ns))

    def self_time_ns(self, start_ns: int, duration_ns: int) -> int:
        """Return how long of the span none of its children ran; an open child lasts at least that long."""
        end_ns = start_ns + duration_ns
        open_children = ((child_start_ns, end_ns) for child_start_ns in self.open_children.values())
        ended = zip(self._edges[::2], self._edges[1::2], strict=True)
        return self_time_ns(start_ns, duration_ns, chain(ended, open_children))


class _Folding:
    """Adds a trace to the stacks.

    Args:
        stacks: what is added to.
        root: the path above the trace's own roots.
    """

    def __init__(self, stacks: _Stacks, root: int) -> None:
        self._stacks = stacks
        self._root = root
        self._covers: dict[str, _Cover] = {}

    def add(self, source: Source) -> None:
        """Read a trace."""
        with read(source.path) as reader:
            for span in read_spans(reader, self._begin):
                self._finish(span)

    def _begin(self, start: SpanStart) -> None:
        parent = self._covers.get(start.parent_id or "")
        if parent is not None:
            parent.open_children[start.id] = start.start_ns
        path = self._root if parent is None else parent.path
        self._covers[start.id] = _Cover(self._stacks.path(path, start.name))

    def _finish(self, span: JoinedSpan) -> None:
        start = span.start
        cover = self._covers.pop(start.id)
        path = self._stacks.renamed(cover.path, span.name)
        self._stacks.add(path, cover.self_time_ns(start.start_ns, span.duration_ns))
        if (parent := self._covers.get(start.parent_id or "")) is not None:
            parent.open_children.pop(start.id, None)
            parent.add(start.start_ns, span.end_ns)


def _escaped(name: str) -> str:
    r"""Return a name without what separates: ``;`` as ``\x3b``, line breaks as ``\n``, ``\`` doubled."""
    name = name.replace("\\", "\\\\").replace(";", "\\x3b")
    if name.isprintable():
        return name
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in name
    )
