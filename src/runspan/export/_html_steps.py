"""The durations of steps as a page shows them: curves, a grid of ranks and steps, and one row a rank."""

from __future__ import annotations

from array import array
from statistics import median
from typing import TYPE_CHECKING, Any

from runspan.export._html_curves import CurveStore, StepGrid
from runspan.export._html_spans import page_name
from runspan.tracefile.steptimes import COLLECTIVE_PHASES, StepTimes

if TYPE_CHECKING:
    from runspan.tracefile.events import Step

__all__ = ["PageSteps"]

_MAX_POINTS = 60_000
_MAX_CURVES = 4_096
_MAX_COLUMNS = 160
_MAX_PHASES = 8
_SLOWEST_SHARE = 0.95
_KEYS = ("own work", "whole step")


class PageSteps:
    """The durations of steps, by rank."""

    def __init__(self) -> None:
        self._curves = CurveStore(_MAX_POINTS, _MAX_CURVES)
        self._grid = StepGrid(_MAX_COLUMNS)
        self._ranks: dict[int, _RankSteps] = {}

    def add(self, rank: int, attempt: int, event: Step) -> None:
        """Take a step; statistics are of a rank's newest attempt, whose trace comes last."""
        own_ns = max(0, event.duration_ns - sum((event.phases or {}).get(name, 0) for name in COLLECTIVE_PHASES))
        for key, duration_ns in zip(_KEYS, (own_ns, event.duration_ns), strict=True):
            self._curves.add(key, rank, attempt, event.step, duration_ns)
        self._grid.add(rank, event.step, own_ns)
        of_rank = self._ranks.get(rank)
        if of_rank is None or of_rank.attempt < attempt:
            of_rank = self._ranks[rank] = _RankSteps(attempt)
        of_rank.add(event, own_ns)

    @property
    def times(self) -> dict[int, StepTimes]:
        """The medians, by rank."""
        return {rank: of_rank.times() for rank, of_rank in sorted(self._ranks.items())}

    def document(self) -> dict[str, Any]:
        """Return curves, grid and one row a rank."""
        rows = [{"rank": rank, **of_rank.row()} for rank, of_rank in sorted(self._ranks.items())]
        return {"curves": self._curves.finish(), "grid": self._grid.finish(), "ranks": rows}


class _RankSteps:
    """The durations of one attempt's steps, ns; as floats, which hold even what a broken writer says."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self._whole = array("d")
        self._own = array("d")
        self._phases: dict[str, array[float]] = {}

    def add(self, event: Step, own_ns: int) -> None:
        self._whole.append(event.duration_ns)
        self._own.append(own_ns)
        for name, duration_ns in (event.phases or {}).items():
            self._phases.setdefault(name, array("d")).append(duration_ns)
        if event.data_ns is not None:
            self._phases.setdefault("data", array("d")).append(event.data_ns)

    def times(self) -> StepTimes:
        phases = {name: median(durations) for name, durations in self._phases.items()}
        return StepTimes(len(self._whole), median(self._whole), median(self._own), phases)

    def row(self) -> dict[str, Any]:
        times = self.times()
        ordered = sorted(self._whole)
        return {
            "count": times.count,
            "median_ns": times.median_ns,
            "p95_ns": ordered[min(len(ordered) - 1, int(len(ordered) * _SLOWEST_SHARE))],
            "max_ns": ordered[-1],
            "own_median_ns": times.own_median_ns,
            "phases": [
                {"name": page_name(name), "median_ns": each} for name, each in sorted(times.phase_medians_ns.items())
            ][:_MAX_PHASES],
        }
