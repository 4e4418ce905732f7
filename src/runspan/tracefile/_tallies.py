"""What is counted while a trace streams by: metrics by key, durations of steps."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runspan.tracefile.events import Metric, Metrics, Step

__all__ = ["DurationTally", "Durations", "MetricStats", "MetricTally", "p95_of"]

#: Longer durations, which only a broken writer has, count as this long.
_MAX_NS = 2**63 - 1
#: The share of steps that are not longer than the 95th percentile.
_P95 = 0.95


class MetricStats(msgspec.Struct, frozen=True):
    """The values of one key.

    Attributes:
        key: the metric's key.
        points: how many values there are.
        last_step: the step of the newest one.
        last: the newest one.
        min: the smallest finite one, None without one.
        max: the largest finite one, None without one.
        non_finite: how many are NaN or infinite.
    """

    key: str
    points: int
    last_step: int
    last: float
    min: float | None
    max: float | None
    non_finite: int


class _Series:
    """A key's values so far."""

    __slots__ = ("last", "last_step", "max", "min", "non_finite", "points")

    def __init__(self) -> None:
        self.points = self.last_step = self.non_finite = 0
        self.last = math.nan
        self.min, self.max = math.inf, -math.inf

    def add(self, step: int, value: float) -> None:
        self.points += 1
        self.last_step, self.last = step, value
        if not math.isfinite(value):
            self.non_finite += 1
            return
        self.min = min(self.min, value)
        self.max = max(self.max, value)


class MetricTally:
    """Adds up ``metric`` and ``metrics`` lines, by key."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def add(self, event: Metric) -> None:
        """Add one value."""
        self._add(event.key, event.step, event.value)

    def add_several(self, event: Metrics) -> None:
        """Add the values of one call."""
        for key, value in event.values.items():
            step = event.step_of(key)
            if step is not None:
                self._add(key, step, value)

    def _add(self, key: str, step: int, value: float) -> None:
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series()
        series.add(step, value)

    def stats(self) -> list[MetricStats]:
        """Return what the keys come to, in the order in which they were first logged."""
        return [
            MetricStats(
                key,
                each.points,
                each.last_step,
                each.last,
                each.min if each.points > each.non_finite else None,
                each.max if each.points > each.non_finite else None,
                each.non_finite,
            )
            for key, each in self._series.items()
        ]


class Durations(msgspec.Struct, frozen=True):
    """Durations in numbers.

    Attributes:
        count: how many there are.
        median_ns: the middle one; of an even number the mean of the two.
        p95_ns: the smallest that 95 of 100 do not exceed (the nearest rank).
        max_ns: the longest.
    """

    count: int
    median_ns: float
    p95_ns: int
    max_ns: int


class DurationTally:
    """Collects durations, eight bytes each."""

    def __init__(self) -> None:
        self._durations = array("q")

    def add(self, event: Step) -> None:
        """Add a step's duration."""
        self._durations.append(min(max(event.duration_ns, 0), _MAX_NS))

    def durations(self) -> Durations | None:
        """Return what they come to; None when there is none."""
        ordered = sorted(self._durations)
        count = len(ordered)
        if not count:
            return None
        median_ns = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        return Durations(count, median_ns, p95_of(ordered), ordered[-1])


def p95_of(ordered: Sequence[int]) -> int:
    """Return the 95th percentile of sorted values, at least one: the smallest that 95 of 100 do not exceed."""
    return ordered[math.ceil(_P95 * len(ordered)) - 1]
