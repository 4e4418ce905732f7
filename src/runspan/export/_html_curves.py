"""Curves in bounded memory: what a page can draw of any number of points."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any

from runspan._plain import float_name
from runspan.export._html_spans import page_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CurveStore", "StepGrid", "thinned"]

#: A bucket keeps its least, its greatest and its first non-finite point.
_KEPT_OF_A_BUCKET = 3
#: The first and the last point stay, whatever their buckets keep.
_ENDS = 2
_MIN_POINTS = 16

CurveKey = tuple[str, int, int]


def thinned(xs: Sequence[float], values: Sequence[float], limit: int) -> list[int]:
    """Return the positions of at most ``limit`` points that draw the same curve, sorted by x.

    The range of x is cut into equal buckets. Of each stay its least, its greatest and its first non-finite point; the
    first and the last point of the curve stay as well.

    Args:
        xs: finite numbers, one a point.
        values: as many numbers of any kind.
        limit: at least 8.
    """
    order = sorted(range(len(xs)), key=xs.__getitem__)
    if len(order) <= limit:
        return order
    first, last = order[0], order[-1]
    bucket_count = max(1, (limit - _ENDS) // _KEPT_OF_A_BUCKET)
    width = (xs[last] - xs[first]) / bucket_count or 1.0
    kept = {first, last}
    bucket: list[int] = []
    current = 0
    for position in order:
        index = min(int((xs[position] - xs[first]) / width), bucket_count - 1)
        if index != current:
            kept.update(_told_by(bucket, values))
            bucket, current = [], index
        bucket.append(position)
    kept.update(_told_by(bucket, values))
    return [position for position in order if position in kept]


def _told_by(bucket: list[int], values: Sequence[float]) -> set[int]:
    finite = [position for position in bucket if math.isfinite(values[position])]
    told = {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)} if finite else set()
    if len(finite) < len(bucket):
        told.add(next(position for position in bucket if not math.isfinite(values[position])))
    return told


class _Curve:
    """The points of one series of one attempt, in the order in which they came."""

    def __init__(self) -> None:
        self.xs = array("d")
        self.values = array("d")
        self.count = 0
        self.last = math.nan

    def thin(self, limit: int) -> None:
        kept = thinned(self.xs, self.values, limit)
        self.xs = array("d", [self.xs[position] for position in kept])
        self.values = array("d", [self.values[position] for position in kept])

    def cut_from(self, x: float) -> None:
        """Drop the points that a later attempt has made again."""
        kept = [position for position, own in enumerate(self.xs) if own < x]
        self.xs = array("d", [self.xs[position] for position in kept])
        self.values = array("d", [self.values[position] for position in kept])


class CurveStore:
    """Many curves that share a number of points.

    Args:
        max_points: how many points all curves have together, about: a curve always keeps a few.
        max_curves: how many curves there are; the points of later ones are not kept.
    """

    def __init__(self, max_points: int, max_curves: int) -> None:
        self._max_points = max_points
        self._max_curves = max_curves
        self._curves: dict[CurveKey, _Curve] = {}
        self._stored = 0
        #: How many points belong to curves that are not kept.
        self.points_left_out = 0

    def add(self, key: str, rank: int, attempt: int, x: float, value: float) -> None:
        """Add a point; ``x`` is finite, ``value`` any number."""
        curve = self._curves.get((key, rank, attempt))
        if curve is None:
            if len(self._curves) >= self._max_curves:
                self.points_left_out += 1
                return
            curve = self._curves[key, rank, attempt] = _Curve()
        curve.xs.append(x)
        try:
            curve.last = float(value)
        except OverflowError:  # an integer beyond every float
            curve.last = math.copysign(math.inf, value)
        curve.values.append(curve.last)
        curve.count += 1
        self._stored += 1
        if self._stored > 2 * self._max_points:
            self._thin()

    def finish(self) -> list[dict[str, Any]]:
        """Return the curves by key, rank and attempt: of steps that a later attempt made again, the later values."""
        if self._stored > self._max_points:
            self._thin()
        starts: dict[tuple[str, int], float] = {}
        for key in sorted(self._curves, reverse=True):
            curve = self._curves[key]
            again_from = starts.get(key[:2])
            if again_from is not None:
                curve.cut_from(again_from)
            if curve.xs:
                starts[key[:2]] = min(curve.xs)
        return [_document(*key, self._curves[key]) for key in sorted(self._curves)]

    def _thin(self) -> None:
        share = max(_MIN_POINTS, self._max_points // len(self._curves))
        for curve in self._curves.values():
            curve.thin(share)
        self._stored = sum(len(curve.xs) for curve in self._curves.values())


def _document(key: str, rank: int, attempt: int, curve: _Curve) -> dict[str, Any]:
    order = thinned(curve.xs, curve.values, len(curve.xs))
    return {
        "key": page_name(key),
        "rank": rank,
        "attempt": attempt,
        "count": curve.count,
        "last": _number(curve.last),
        "x": [_number(curve.xs[position]) for position in order],
        "y": [_number(curve.values[position]) for position in order],
    }


def _number(value: float) -> int | float | str:
    """Return the shortest JSON of a number: whole ones as integers, non-finite ones by name."""
    if not math.isfinite(value):
        return float_name(value)
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value


class StepGrid:
    """Mean durations of steps: a row a rank, and columns of as many steps as it takes for all to fit.

    Args:
        max_columns: how many columns a row has at most.
    """

    def __init__(self, max_columns: int) -> None:
        self._max_columns = max_columns
        self._width = 1
        self._low: int | None = None
        self._high = 0
        #: By rank and column: the sum of the durations, ns, and how many they are.
        self._rows: dict[int, dict[int, tuple[int, int]]] = {}

    def add(self, rank: int, step: int, duration_ns: int) -> None:
        """Add a step."""
        column = step // self._width
        self._low = column if self._low is None else min(self._low, column)
        self._high = max(self._high, column)
        while self._high - self._low >= self._max_columns:
            self._double()
        row = self._rows.setdefault(rank, {})
        column = step // self._width
        total_ns, count = row.get(column, (0, 0))
        row[column] = (total_ns + duration_ns, count + 1)

    def _double(self) -> None:
        self._width *= 2
        self._low, self._high = (self._low or 0) // 2, self._high // 2
        for rank, row in self._rows.items():
            merged: dict[int, tuple[int, int]] = {}
            for column, (total_ns, count) in row.items():
                before_ns, before = merged.get(column // 2, (0, 0))
                merged[column // 2] = (before_ns + total_ns, before + count)
            self._rows[rank] = merged

    def finish(self) -> dict[str, Any]:
        """Return the first step, the steps a column, and a row of mean durations a rank: None where no step is."""
        low = self._low or 0
        columns = range(low, self._high + 1)
        rows = [
            {
                "rank": rank,
                "mean_ns": [None if column not in row else row[column][0] // row[column][1] for column in columns],
            }
            for rank, row in sorted(self._rows.items())
        ]
        return {"first_step": low * self._width, "column_steps": self._width, "rows": rows}
