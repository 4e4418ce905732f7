"""The durations of steps as a page shows them: curves, a grid of ranks and steps, and one row a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runspan.export._html_curves import CurveStore, StepGrid
from runspan.export._html_spans import page_name
from runspan.tracefile._tallies import p95_of
from runspan.tracefile.steptimes import StepTally, own_work_ns

if TYPE_CHECKING:
    from runspan.tracefile.events import Step
    from runspan.tracefile.steptimes import StepTimes

__all__ = ["PageSteps"]

_MAX_POINTS = 60_000
_MAX_CURVES = 4_096
_MAX_COLUMNS = 160
_MAX_PHASES = 8
_KEYS = ("own work", "whole step")


class PageSteps:
    """The durations of steps, by rank."""

    def __init__(self) -> None:
        self._curves = CurveStore(_MAX_POINTS, _MAX_CURVES)
        self._grid = StepGrid(_MAX_COLUMNS)
        #: By rank its newest attempt, and the steps of that.
        self._attempts: dict[int, int] = {}
        self._ranks: dict[int, StepTally] = {}

    def add(self, rank: int, attempt: int, event: Step) -> None:
        """Take a step; statistics are of a rank's newest attempt, whose trace comes last."""
        own_ns = own_work_ns(event)
        for key, duration_ns in zip(_KEYS, (own_ns, event.duration_ns), strict=True):
            self._curves.add(key, rank, attempt, event.step, duration_ns)
        self._grid.add(rank, event.step, own_ns)
        if rank not in self._attempts or self._attempts[rank] < attempt:
            self._attempts[rank], self._ranks[rank] = attempt, StepTally()
        self._ranks[rank].add(event)

    @property
    def times(self) -> dict[int, StepTimes]:
        """The medians, by rank."""
        return {rank: of_rank.times() for rank, of_rank in sorted(self._ranks.items())}

    def document(self) -> dict[str, Any]:
        """Return curves, grid and one row a rank."""
        rows = [{"rank": rank, **_row(of_rank)} for rank, of_rank in sorted(self._ranks.items())]
        return {"curves": self._curves.finish(), "grid": self._grid.finish(), "ranks": rows}


def _row(of_rank: StepTally) -> dict[str, Any]:
    times = of_rank.times()
    ordered = sorted(of_rank.durations_ns)
    return {
        "count": times.count,
        "median_ns": times.median_ns,
        "p95_ns": p95_of(ordered),
        "max_ns": ordered[-1],
        "own_median_ns": times.own_median_ns,
        "phases": [
            {"name": page_name(name), "median_ns": each} for name, each in sorted(times.phase_medians_ns.items())
        ][:_MAX_PHASES],
    }
