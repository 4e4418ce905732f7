"""Spans placed on lanes, so that on each of them one slice lies within another or beside it, never across it.

Timeline viewers draw a thread as slices that nest. Spans of several threads, or of tasks that outlive their parents, do
not; they go to lanes of their own.
"""

from __future__ import annotations

from bisect import insort

__all__ = ["FlatLanes", "NestedLanes"]

_BEFORE_ALL = -(2**63)


class FlatLanes:
    """Lanes whose slices lie one after the other.

    Args:
        first: the number of the first lane; the others follow it.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._ends: list[int] = []

    def place(self, start_ns: int, end_ns: int) -> int:
        """Return the lane that a slice goes to."""
        for lane, last_end_ns in enumerate(self._ends):
            if last_end_ns <= start_ns:
                self._ends[lane] = end_ns
                return self._first + lane
        self._ends.append(end_ns)
        return self._first + len(self._ends) - 1


class _Lane:
    """One lane of nested slices; ``frontier_ns`` is the latest end of those that were closed."""

    __slots__ = ("frontier_ns", "opened")

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.frontier_ns = _BEFORE_ALL


class NestedLanes:
    """Lanes whose slices nest as the spans do.

    A span begins on its parent's lane, where the parent is the innermost one that is open; else on a lane that is idle.
    One that ends after its parent, or that has times that its place does not allow, is moved when it ends to the flat
    lanes, which are numbered from :data:`FLAT` on. The numbers below stand for nested lanes.
    """

    #: Above the number of any nested lane.
    FLAT = 1_000_000

    def __init__(self) -> None:
        self._lanes: list[_Lane] = []
        self._idle: list[int] = []
        #: By id of each open span its lane (None: it has outlived its parent) and its start.
        self._open: dict[str, tuple[int | None, int]] = {}
        self._flat = FlatLanes(self.FLAT)

    def begin(self, span_id: str, parent_id: str | None, start_ns: int) -> None:
        """Take the start of a span."""
        lane = self._choose(parent_id, start_ns)
        self._lanes[lane].opened.append(span_id)
        self._open[span_id] = lane, start_ns

    def finish(self, span_id: str, end_ns: int) -> tuple[int, int]:
        """Return the lane of a span that ends, and how many open spans it lies within there."""
        number, start_ns = self._open.pop(span_id)
        if number is None:
            return self._flat.place(start_ns, end_ns), 0
        lane = self._lanes[number]
        depth = len(lane.opened) - 1 if lane.opened[-1] == span_id else lane.opened.index(span_id)
        for outliving in lane.opened[depth + 1 :]:
            if outliving in self._open:  # not so for an id that was used twice
                self._open[outliving] = None, self._open[outliving][1]
        del lane.opened[depth:]
        if not lane.opened:
            insort(self._idle, number)
        if end_ns < lane.frontier_ns:
            return self._flat.place(start_ns, end_ns), 0
        lane.frontier_ns = end_ns
        return number, depth

    def _choose(self, parent_id: str | None, start_ns: int) -> int:
        number, parent_start_ns = self._open.get(parent_id or "", (None, 0))
        if number is not None:
            lane = self._lanes[number]
            if lane.opened[-1] == parent_id and max(lane.frontier_ns, parent_start_ns) <= start_ns:
                return number
        for position, idle in enumerate(self._idle):
            if self._lanes[idle].frontier_ns <= start_ns:
                del self._idle[position]
                return idle
        self._lanes.append(_Lane())
        return len(self._lanes) - 1
