"""What was exported and what was lost, counted without a lock on the threads that record."""

from __future__ import annotations

import itertools
from collections import deque

__all__ = ["METRICS", "TRACES", "Ledger", "Tally"]

#: The signals, by the names that counters and endpoints use.
TRACES, METRICS = "traces", "metrics"


class Tally:
    """A counter that any thread may move, also a signal handler that interrupted one that was moving it.

    ``next`` on an ``itertools.count`` is a single call into C, so no increment is lost and nothing is ever waited for.
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = itertools.count()

    def add(self, amount: int = 1) -> None:
        """Count ``amount`` more."""
        if amount == 1:
            next(self._count)
        else:
            deque(itertools.islice(self._count, amount), maxlen=0)

    @property
    def value(self) -> int:
        """How many were counted."""
        return int(repr(self._count)[6:-1])  # "count(5)": the one way to look without moving it


class Ledger:
    """Exported and dropped items, by signal and reason; readable at any time, from any thread."""

    def __init__(self) -> None:
        self._exported = {TRACES: Tally(), METRICS: Tally()}
        self._dropped: dict[tuple[str, str], Tally] = {}

    def export(self, signal: str, amount: int) -> None:
        """Count spans or points that a receiver accepted."""
        self._exported[signal].add(amount)

    def drop(self, signal: str, reason: str, amount: int = 1) -> None:
        """Count spans or points that will never be exported."""
        if amount > 0:
            tally = self._dropped.get((signal, reason))
            if tally is None:
                tally = self._dropped.setdefault((signal, reason), Tally())
            tally.add(amount)

    @property
    def exported(self) -> dict[str, int]:
        """Accepted items by signal."""
        return {signal: tally.value for signal, tally in self._exported.items()}

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """Lost items by (signal, reason)."""
        return {key: tally.value for key, tally in self._dropped.copy().items()}
