"""Questions to a run's own traces, over its ranks and attempts: how long each step took, what each metric came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile._tallies import MetricStats, MetricTally
from runspan.tracefile.events import Metric, Metrics, Step

if TYPE_CHECKING:
    from runspan.tracefile.reader import TraceReader

__all__ = ["MetricRow", "StepDurations", "StepRow", "find_metrics"]


class StepRow(msgspec.Struct, frozen=True):
    """One step over all ranks.

    Attributes:
        step: its number, from 0.
        count: how many times it was recorded: once a rank, more often where micro-batches share a number.
        min_ns: the shortest.
        mean_ns: the mean.
        max_ns: the longest.
        slowest_rank: whose that was.
    """

    step: int
    count: int
    min_ns: int
    mean_ns: float
    max_ns: int
    slowest_rank: int


class MetricRow(MetricStats, frozen=True, kw_only=True):
    """One key of one trace."""

    rank: int
    attempt: int


class _StepSums:
    """One step so far."""

    __slots__ = ("count", "max_ns", "min_ns", "slowest_rank", "total_ns")

    def __init__(self, duration_ns: int, rank: int) -> None:
        self.count = 1
        self.min_ns = self.max_ns = self.total_ns = duration_ns
        self.slowest_rank = rank

    def add(self, duration_ns: int, rank: int) -> None:
        self.count += 1
        self.total_ns += duration_ns
        if duration_ns > self.max_ns:
            self.max_ns, self.slowest_rank = duration_ns, rank
        elif duration_ns < self.min_ns:
            self.min_ns = duration_ns


class StepDurations:
    """Adds up the steps of a run's traces, which are handed over newest attempt first.

    A later attempt supersedes an earlier one of its rank from its first step on, as it does for metrics in storage.
    """

    def __init__(self) -> None:
        self._steps: dict[int, _StepSums] = {}
        #: By rank, the first step of the attempts read so far.
        self._superseded_from: dict[int, int] = {}

    def add(self, reader: TraceReader) -> None:
        """Read a trace and add its steps."""
        rank = reader.meta.process.rank
        bound = self._superseded_from.get(rank)
        first: int | None = None
        for event in reader:
            if type(event) is not Step:
                continue
            if first is None:
                first = event.step
            if bound is None or event.step < bound:
                known = self._steps.get(event.step)
                if known is None:
                    self._steps[event.step] = _StepSums(event.duration_ns, rank)
                else:
                    known.add(event.duration_ns, rank)
        if first is not None:
            self._superseded_from[rank] = first if bound is None else min(first, bound)

    def rows(self) -> list[StepRow]:
        """Return the steps, longest first."""
        rows = [
            StepRow(step, each.count, each.min_ns, each.total_ns / each.count, each.max_ns, each.slowest_rank)
            for step, each in self._steps.items()
        ]
        return sorted(rows, key=lambda row: (-row.max_ns, row.step))


def find_metrics(reader: TraceReader) -> list[MetricRow]:
    """Read a trace and return its metrics, in the order in which they were first logged."""
    tally = MetricTally()
    for event in reader:
        if isinstance(event, Metric):
            tally.add(event)
        elif isinstance(event, Metrics):
            tally.add_several(event)
    process = reader.meta.process
    return [
        MetricRow(rank=process.rank, attempt=process.attempt, **msgspec.structs.asdict(stats))
        for stats in tally.stats()
    ]
