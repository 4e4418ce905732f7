"""The spans of a trace in a few numbers each, so that a trace of a million lines can be checked in little memory."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runspan.tracefile._findings import Findings, Severity
    from runspan.tracefile.events import Op, SpanEnd, SpanStart

__all__ = ["SpanTable"]

#: Times beyond 64 bits, which only a broken writer has, count as the largest ones.
_MAX_NS = 2**63 - 1
_OPEN = -(2**63)
_NO_PARENT, _UNKNOWN_PARENT = -1, -2
#: Names that messages can tell; a program that puts numbers into its names must not fill the memory.
_MAX_NAMES = 1_000
_UNSEEN, _ON_PATH, _DONE = 0, 1, 2


class SpanTable:
    """Every span's interval, parent, and the interval that its operations fill.

    Attributes:
        root_ids: the first spans without a parent, two at most.
        root_count: how many spans have none.
    """

    def __init__(self) -> None:
        self.root_ids: list[str] = []
        self.root_count = 0
        self._positions: dict[str, int] = {}
        self._starts, self._ends, self._parents = array("q"), array("q"), array("q")
        self._op_starts, self._op_ends = array("q"), array("q")
        #: The numbers of the known names, and by span the number of its name, one beyond them for another name.
        self._names: dict[str, int] = {}
        self._names_by_number: list[str] = []
        self._name_numbers = array("H")
        #: By the id of a parent that has not begun yet: its children's positions.
        self._awaited: dict[str, list[int]] = {}
        #: How many more times an id was begun, and not ended, than once.
        self._reopened: dict[str, int] = {}
        #: By the id of a span that has not begun yet: the interval of its operations.
        self._early_ops: dict[str, tuple[int, int]] = {}

    def __contains__(self, span_id: str) -> bool:
        return span_id in self._positions

    def start(self, event: SpanStart) -> bool:
        """Add a span; return whether its id is new."""
        if event.id in self._positions:
            self._reopened[event.id] = self._reopened.get(event.id, 0) + 1
            return False
        position = len(self._starts)
        self._positions[event.id] = position
        self._starts.append(_clamped(event.start_ns))
        self._ends.append(_OPEN)
        self._op_starts.append(_MAX_NS)
        self._op_ends.append(_OPEN)
        if event.name not in self._names and len(self._names) < _MAX_NAMES:
            self._names[event.name] = len(self._names)
            self._names_by_number.append(event.name)
        self._name_numbers.append(self._names.get(event.name, _MAX_NAMES))
        parent = _NO_PARENT
        if event.parent_id is None:
            self.root_count += 1
            if self.root_count <= 2:  # noqa: PLR2004 - one more than there may be
                self.root_ids.append(event.id)
        else:
            parent = self._positions.get(event.parent_id, _UNKNOWN_PARENT)
            if parent == _UNKNOWN_PARENT:
                self._awaited.setdefault(event.parent_id, []).append(position)
        self._parents.append(parent)
        return True

    def end(self, event: SpanEnd) -> int | None:
        """End a span; return when, ns since the trace's start, or None when it is the end of no open span."""
        position = self._positions.get(event.id)
        if position is None:
            return None
        ended = _clamped(self._starts[position] + event.duration_ns)
        if times := self._reopened.get(event.id):
            self._reopened[event.id] = times - 1
        elif self._ends[position] != _OPEN:
            return None
        else:
            self._ends[position] = ended
        return ended

    def add_op(self, op: Op) -> None:
        """Widen the interval that a span's operations fill."""
        start_ns, end_ns = _clamped(op.timestamp_ns), _clamped(op.timestamp_ns + op.duration_ns)
        position = self._positions.get(op.span_id)
        if position is None:
            earliest, latest = self._early_ops.get(op.span_id, (start_ns, end_ns))
            self._early_ops[op.span_id] = (min(earliest, start_ns), max(latest, end_ns))
        else:
            self._widen(position, start_ns, end_ns)

    def _widen(self, position: int, start_ns: int, end_ns: int) -> None:
        self._op_starts[position] = min(start_ns, self._op_starts[position])
        self._op_ends[position] = max(end_ns, self._op_ends[position])

    def describe(self, span_id: str) -> str:
        """Return a span in words: its name and its id, as far as they are known and differ."""
        number = self._name_numbers[self._positions[span_id]] if span_id in self._positions else _MAX_NAMES
        name = self._names_by_number[number] if number < _MAX_NAMES else span_id
        return f"span {span_id!r}" if name == span_id else f"span {name!r} ({span_id})"

    def is_parent(self, parent_id: str, span_id: str) -> bool:
        """Whether a known span is another one's parent."""
        return self._parents[self._positions[span_id]] == self._positions[parent_id]

    def duration_of(self, span_id: str) -> int | None:
        """Return how long a known span took, ns; None while it is open."""
        position = self._positions[span_id]
        return None if self._ends[position] == _OPEN else self._ends[position] - self._starts[position]

    def settle(self) -> None:
        """Connect what came before the span that it names; to be called at the end of the trace."""
        for parent_id, children in self._awaited.items():
            parent = self._positions.get(parent_id, _UNKNOWN_PARENT)
            for child in children:
                self._parents[child] = parent
        for span_id, (start_ns, end_ns) in self._early_ops.items():
            if span_id in self._positions:
                self._widen(self._positions[span_id], start_ns, end_ns)

    def check(self, findings: Findings, *, open_severity: Severity | None, outside_severity: Severity) -> None:
        """Find what is wrong with the spans, after :meth:`settle`.

        Args:
            findings: takes it.
            open_severity: how bad an open span is; None: open spans are as they should be.
            outside_severity: how bad a span is that began before or ended after its parent.
        """
        ids = list(self._positions)
        if open_severity is not None:
            self._check_open(ids, findings, open_severity)
        for parent_id, children in self._awaited.items():
            if parent_id not in self._positions:
                for child in children:
                    findings.add(
                        "unknown_parent", f"{self.describe(ids[child])} names the parent {parent_id!r}", [ids[child]]
                    )
        for position, parent in enumerate(self._parents):
            if self._ends[position] != _OPEN:
                if parent >= 0 and self._ends[parent] != _OPEN:
                    self._check_within(ids, position, parent, findings, outside_severity)
                self._check_ops(ids[position], position, findings)
        self._check_cycles(ids, findings)

    def _check_open(self, ids: list[str], findings: Findings, severity: Severity) -> None:
        for position, ended in enumerate(self._ends):
            if ended == _OPEN or self._reopened.get(ids[position]):
                findings.add("open_span", f"{self.describe(ids[position])} has no end", [ids[position]], severity)

    def _check_within(self, ids: list[str], position: int, parent: int, findings: Findings, severity: Severity) -> None:
        early_ns = self._starts[parent] - self._starts[position]
        late_ns = self._ends[position] - self._ends[parent]
        if early_ns > 0 or late_ns > 0:
            how = f"begins {early_ns} ns before" if early_ns > 0 else f"ends {late_ns} ns after"
            message = f"{self.describe(ids[position])} {how} its parent, {self.describe(ids[parent])}"
            findings.add("child_outside_parent", message, [ids[position]], severity)

    def _check_ops(self, span_id: str, position: int, findings: Findings) -> None:
        if self._op_ends[position] == _OPEN:
            return
        early_ns = self._starts[position] - self._op_starts[position]
        late_ns = self._op_ends[position] - self._ends[position]
        if early_ns > 0 or late_ns > 0:
            how = f"begins {early_ns} ns before" if early_ns > 0 else f"ends {late_ns} ns after"
            findings.add("operation_outside_span", f"an operation of {self.describe(span_id)} {how} it", [span_id])

    def _check_cycles(self, ids: list[str], findings: Findings) -> None:
        states = bytearray(len(ids))
        for origin in range(len(ids)):
            path = []
            position = origin
            while position >= 0 and states[position] == _UNSEEN:
                states[position] = _ON_PATH
                path.append(position)
                position = self._parents[position]
            if position >= 0 and states[position] == _ON_PATH:
                cycle = [ids[each] for each in path[path.index(position) :]]
                findings.add("span_cycle", f"{self.describe(cycle[0])} is its own ancestor", cycle)
            for each in path:
                states[each] = _DONE


def _clamped(time_ns: int) -> int:
    return min(max(time_ns, -_MAX_NS), _MAX_NS)
