"""Exponential histograms that take values in bulk: a fraction of the cost of one SDK ``record`` a value."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import Buckets, ExponentialHistogramDataPoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.trace import SpanContext

__all__ = ["BulkHistogram"]

#: OpenTelemetry's defaults for exponential histograms.
_MAX_SCALE, _MAX_BUCKETS = 20, 160
#: Exemplars of one collection; Prometheus keeps ten of a native histogram.
_MAX_EXEMPLARS = 10


class BulkHistogram:
    """A cumulative base-2 exponential histogram of finite values, one thread's.

    A positive value v lies in bucket ceil(log2(v) · 2^scale) - 1. The scale only ever falls, whenever the values span
    more than 160 buckets.
    """

    def __init__(self) -> None:
        self._scale = _MAX_SCALE
        self._positive: Counter[int] = Counter()
        self._negative: Counter[int] = Counter()
        self._zeros = 0
        self._count = 0
        self._sum = 0.0
        self._min = math.inf
        self._max = -math.inf
        self._exemplars: deque[Exemplar] = deque(maxlen=_MAX_EXEMPLARS)

    def add(self, values: Sequence[float]) -> None:
        """Add finite values, any number at once."""
        if not values:
            return
        self._count += len(values)
        self._sum += math.fsum(values)
        lowest, highest = min(values), max(values)
        self._min, self._max = min(self._min, lowest), max(self._max, highest)
        positive = [value for value in values if value > 0]
        if positive:
            self._positive = self._fill(self._positive, positive)
        if len(positive) < len(values):
            negative = [-value for value in values if value < 0]
            self._zeros += len(values) - len(positive) - len(negative)
            if negative:
                self._negative = self._fill(self._negative, negative)

    def add_exemplar(self, value: float, context: SpanContext, time_unix_nano: int) -> None:
        """Remember which span a value that was added belongs to; the newest few are sent."""
        self._exemplars.append(Exemplar({}, value, time_unix_nano, context.span_id, context.trace_id))

    def point(
        self, attributes: Mapping[str, str], start_time_unix_nano: int, time_unix_nano: int
    ) -> ExponentialHistogramDataPoint:
        """Return the data point of a collection, and forget its exemplars."""
        exemplars = list(self._exemplars)
        self._exemplars.clear()
        return ExponentialHistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=start_time_unix_nano,
            time_unix_nano=time_unix_nano,
            count=self._count,
            sum=self._sum,
            scale=self._scale,
            zero_count=self._zeros,
            positive=_buckets(self._positive),
            negative=_buckets(self._negative),
            flags=0,
            min=self._min,
            max=self._max,
            exemplars=exemplars,
        )

    def _fill(self, buckets: Counter[int], magnitudes: list[float]) -> Counter[int]:
        """Count positive magnitudes into buckets, and return these; lowers the scale where they would be too many."""
        ends = [self._index(min(magnitudes)), self._index(max(magnitudes)), *buckets]
        low, high = min(ends), max(ends)
        shift = 0
        while (high >> shift) - (low >> shift) >= _MAX_BUCKETS:
            shift += 1
        if shift:
            self._scale -= shift
            self._positive, self._negative = _coarser(self._positive, shift), _coarser(self._negative, shift)
            buckets = _coarser(buckets, shift)
        factor, log2, ceil = 2.0**self._scale, math.log2, math.ceil
        buckets.update([ceil(log2(value) * factor) - 1 for value in magnitudes])
        return buckets

    def _index(self, magnitude: float) -> int:
        return math.ceil(math.log2(magnitude) * 2.0**self._scale) - 1


def _coarser(buckets: Counter[int], shift: int) -> Counter[int]:
    merged: Counter[int] = Counter()
    for index, count in buckets.items():
        merged[index >> shift] += count
    return merged


def _buckets(counts: Counter[int]) -> Buckets:
    if not counts:
        return Buckets(0, [])
    low = min(counts)
    return Buckets(low, [counts[index] for index in range(low, max(counts) + 1)])
