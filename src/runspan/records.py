"""The frozen records that storage, dashboards and callers exchange."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec

__all__ = [
    "AlertLevel",
    "Filter",
    "FilterOp",
    "MetricPoint",
    "MetricSnapshot",
    "MetricSummary",
    "ResourceSnapshot",
    "RunInfo",
    "RunStatus",
    "Trend",
]

#: Relative slope beyond which a series counts as rising or falling.
_TREND_THRESHOLD = 0.05
#: Values beyond this could overflow when they are multiplied and summed.
_HUGE = 1e150
#: A mean whose absolute value is below this is "about 0": no relative slope exists.
_ZERO_MEAN = 1e-12


class RunStatus(StrEnum):
    """Where a run, or one attempt of one of its ranks, stands."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self in _SEVERITY

    @classmethod
    def worst(cls, statuses: list[RunStatus]) -> RunStatus:
        """Return the worst of several final statuses: failed before cancelled before success.

        Raises:
            ValueError: the list is empty or holds a status that is not final.
        """
        if not statuses or not all(status.is_final for status in statuses):
            raise ValueError(f"worst() takes one or more final statuses, got {statuses}")
        return max(statuses, key=_SEVERITY.__getitem__)


_SEVERITY = {RunStatus.SUCCESS: 0, RunStatus.CANCELLED: 1, RunStatus.FAILED: 2}


class Trend(StrEnum):
    """Which way a metric has been moving."""

    RISING = "rising"
    FALLING = "falling"
    STABLE = "stable"

    @classmethod
    def of(cls, values: list[float]) -> Trend:
        """Classify the least-squares slope over the index, divided by the absolute mean.

        Non-finite values are left out. Fewer than two values, or a mean of about 0, are stable.
        """
        finite = [value for value in values if math.isfinite(value)]
        if max(map(abs, finite), default=0.0) > _HUGE:
            finite = [value / _HUGE for value in finite]  # the same relative slope, without overflow
        count = len(finite)
        if count < 2:  # noqa: PLR2004 - a line needs two points
            return cls.STABLE
        mean = math.fsum(finite) / count
        if abs(mean) < _ZERO_MEAN:
            return cls.STABLE
        centre = (count - 1) / 2
        covariance = math.fsum((index - centre) * (value - mean) for index, value in enumerate(finite))
        variance = count * (count * count - 1) / 12
        relative = covariance / variance / abs(mean)
        if relative > _TREND_THRESHOLD:
            return cls.RISING
        return cls.FALLING if relative < -_TREND_THRESHOLD else cls.STABLE


class AlertLevel(StrEnum):
    """How bad an alert is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class FilterOp(StrEnum):
    """How a :class:`Filter` compares."""

    EQ = "eq"
    NE = "ne"
    GT = "gt"
    LT = "lt"
    GE = "ge"
    LE = "le"
    CONTAINS = "contains"
    STARTS_WITH = "starts_with"


class Filter(msgspec.Struct, frozen=True):
    """One condition of ``search_runs``; several are ANDed.

    Attributes:
        field: ``status``, ``name``, ``group``, ``experiment_id``, ``start_time``, ``end_time`` (unix ns),
            ``params.<key>``, ``tags.<key>``, or ``summary.<metric key>.<last|min|max|count>`` (the statistic may be
            left out: ``last``; the longest matching metric key wins).
        op: the comparison.
        value: what to compare with. A missing field or another type does not match, whatever the operator; NaN matches
            no comparison.
    """

    field: str
    op: FilterOp
    value: Any


class MetricPoint(msgspec.Struct, frozen=True, gc=False):
    """One recorded value of one metric.

    Attributes:
        key: the metric's name, exactly as it was logged.
        step: a non-negative step.
        value: the value; NaN and infinities are kept.
        time_unix_nano: wall clock when it was logged, ns since the epoch.
        rank: the rank that logged it.
        attempt: the rank's attempt that logged it.
    """

    key: str
    step: int
    value: float
    time_unix_nano: int
    rank: int = 0
    attempt: int = 0


class MetricSummary(msgspec.Struct, frozen=True, gc=False):
    """What is left of a metric when only four numbers are kept.

    ``min`` and ``max`` leave non-finite values out and are None when there was no finite one; ``last`` and ``count``
    include every point.
    """

    last: float
    min: float | None
    max: float | None
    count: int


class MetricSnapshot(msgspec.Struct, frozen=True):
    """The newest points of one metric, for a display.

    Attributes:
        key: the metric's name.
        values: ``(time_ms, value)`` pairs, oldest first; ``time_ms`` is unix time in milliseconds.
        trend: which way the values move.
    """

    key: str
    values: list[tuple[int, float]]
    trend: Trend

    @classmethod
    def from_points(cls, key: str, points: list[tuple[int, float]]) -> MetricSnapshot:
        """Build a snapshot from ``(time_unix_nano, value)`` pairs, oldest first."""
        values = [(time_unix_nano // 1_000_000, value) for time_unix_nano, value in points]
        return cls(key, values, Trend.of([value for _, value in values]))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_empty(self) -> bool:
        """Whether there are no points."""
        return not self.values

    @property
    def latest(self) -> float | None:
        """The newest value, non-finite ones included; None when empty."""
        return self.values[-1][1] if self.values else None

    @property
    def min(self) -> float | None:
        """The smallest finite value, None without one."""
        return min(self._finite, default=None)

    @property
    def max(self) -> float | None:
        """The largest finite value, None without one."""
        return max(self._finite, default=None)

    @property
    def mean(self) -> float | None:
        """The mean of the finite values, None without one."""
        finite = self._finite
        if not finite:
            return None
        try:
            return math.fsum(finite) / len(finite)
        except OverflowError:
            return math.fsum(value / len(finite) for value in finite)

    @property
    def nonfinite_count(self) -> int:
        """How many values the statistics leave out."""
        return len(self.values) - len(self._finite)

    @property
    def _finite(self) -> list[float]:
        return [value for _, value in self.values if math.isfinite(value)]


class ResourceSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """What this process's machine and device are busy with; None means unmeasured, never 0.

    Attributes:
        gpu_util: this rank's device, 0..1.
        cpu_util: the host's (or cgroup's) processors, 0..1.
        memory_used: bytes in use.
        memory_total: bytes there are: the cgroup's limit if one is set, else the host's memory.
        gpu_memory_used: bytes in use on this rank's device.
        gpu_memory_total: bytes of memory on this rank's device.
    """

    gpu_util: float | None = None
    cpu_util: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    gpu_memory_used: int | None = None
    gpu_memory_total: int | None = None

    def memory_util(self) -> float:
        """Return used / total memory, 0 when the total is 0 or unmeasured."""
        return (self.memory_used or 0) / self.memory_total if self.memory_total else 0.0

    def gpu_memory_util(self) -> float | None:
        """Return used / total device memory, None when unmeasured."""
        if self.gpu_memory_used is None or not self.gpu_memory_total:
            return None
        return self.gpu_memory_used / self.gpu_memory_total


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What storage knows of a run.

    Attributes:
        run_id: the run's id.
        experiment_id: the experiment it belongs to.
        name: a display name.
        group: a name that several runs share.
        status: over all ranks, see ``run.md``.
        reason: why it ended as it did, when something is to be said.
        start_time: unix ns of the first start.
        end_time: unix ns of the end; None while it is not final.
        world_size: how many ranks it has.
        attempts: how many attempts its most restarted rank made.
        span_id: the ``run`` span's id, lower-case hex.
        trace_id: the run's trace id, lower-case hex.
        params: the parameters.
        tags: the tags.
        summary: per metric key (rank 0's where several ranks log it).
        counts: steps, samples, tokens and user counters, summed over ranks and attempts.
    """

    run_id: str
    experiment_id: str
    name: str | None = None
    group: str | None = None
    status: RunStatus = RunStatus.PENDING
    reason: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    world_size: int = 1
    attempts: int = 0
    span_id: str | None = None
    trace_id: str | None = None
    params: dict[str, Any] = {}
    tags: dict[str, str] = {}
    summary: dict[str, MetricSummary] = {}
    counts: dict[str, float] = {}
