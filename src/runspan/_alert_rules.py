"""The built-in alert rules. Every threshold is a field of its rule, and its default says why it is what it is.

A rule keeps nothing between two looks: it says which conditions hold now, and who asks it fires each once. Where a
value may stay at a limit, the condition ends at another limit than it begins at, so that it does not come and go.
"""

from __future__ import annotations

import math
import re
from statistics import median
from typing import TYPE_CHECKING, ClassVar

import msgspec

from runspan._alert_view import Alert
from runspan._plain import float_name
from runspan.errors import ConfigError
from runspan.records import AlertLevel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from runspan._alert_view import AlertView

__all__ = [
    "DiskNearlyFull",
    "EventsDropped",
    "LossSpike",
    "NonfiniteMetric",
    "StalledStep",
    "StragglingRank",
    "ThroughputDrop",
]

_GIB = 1 << 30
#: A key that speaks of a loss, but for a loss scale, which is meant to jump.
_LOSS = re.compile(r"loss(?!.?scale)", re.IGNORECASE)
#: Losses of telemetry that are wanted: the bounds of the exported copy.
_INTENDED_LOSSES = frozenset({"budget", "max_metric_keys"})
#: How many values of a loss are taken together, and with how many earlier ones they are compared at most.
_WINDOW = 5
_USUAL_POINTS = 256
_MOST = 0.95


class _Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A built-in rule; its thresholds are numbers above 0."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"{type(self).__name__}({field}={value!r}) cannot be used: it takes a number above 0")


class NonfiniteMetric(_Rule, frozen=True, kw_only=True):
    """A metric became NaN or infinite; of level error for a loss, else a warning.

    A loss that is NaN does not come back, while a gradient norm may overflow now and then under mixed precision.

    Attributes:
        clear_points: the condition ends after so many finite values in a row: a value that overflows every few steps
            is one condition, not one a step.
    """

    name = "nonfinite_metric"
    clear_points: int = 100

    def __call__(self, view: AlertView) -> Iterator[Alert]:
        """Return the metrics with a non-finite value among the new ones, or among the last ones since it fired."""
        bad = [key for key, metric in view.metrics.items() if metric.new_nonfinite]
        held = [key for key in view.active if not _all_finite(view.recent(key, self.clear_points))]
        for key in dict.fromkeys([*bad, *held]):
            level = AlertLevel.ERROR if _LOSS.search(key) else AlertLevel.WARNING
            value = next((each for each in reversed(view.recent(key, 1_024)) if not math.isfinite(each)), math.nan)
            yield Alert(f"{key} is {float_name(value)}", "A value that is not finite was logged.", level, subject=key)


class LossSpike(_Rule, frozen=True, kw_only=True):
    """A loss rose far above what it has been: a metric whose key has ``loss`` in it, but for a loss scale.

    Compared is the median of five values in a row, so that one bad batch fires nothing, with the median of the values
    before. After about half as many values at the new height as are compared with, that is the loss's usual.

    Attributes:
        ratio: fires above so many times the usual loss, as the shipped Prometheus rule does.
        clear_ratio: ends below so many times.
        noise_ratio: and above so many times what 95 % of the values before stay below: a loss that is nearly 0 triples
            by noise.
        points: so many values must be known before: the first ones of a training fall too fast to be compared with.
    """

    name = "loss_spike"
    ratio: float = 3.0
    clear_ratio: float = 2.0
    noise_ratio: float = 1.5
    points: int = 40

    def __call__(self, view: AlertView) -> Iterator[Alert]:
        """Return the losses that have risen."""
        for key in dict.fromkeys([*(key for key in view.metrics if _LOSS.search(key)), *view.active]):
            values = [value for value in view.recent(key, 1_024) if math.isfinite(value)]
            new = view.metrics[key].new if key in view.metrics else 1
            fresh = min(new, len(values) // 2) or 1
            # The window of a value reaches back over four more: what is compared with them ends before.
            usual = values[: -fresh - _WINDOW + 1][-_USUAL_POINTS:]
            if len(usual) < self.points or (middle := median(usual)) <= 0:
                continue
            is_active = key in view.active
            limit = middle * (self.clear_ratio if is_active else self.ratio)
            if not is_active:
                limit = max(limit, self.noise_ratio * sorted(usual)[int(_MOST * len(usual))])
            height = _highest_median(values[-_WINDOW if is_active else -fresh - _WINDOW + 1 :], limit)
            if height > limit:
                text = f"{key} is {height:.4g}, {height / middle:.1f} times the {middle:.4g} that it was before."
                yield Alert(f"{key} spiked", text, subject=key)


class StalledStep(_Rule, frozen=True, kw_only=True):
    """No step has ended for long; a warning, since an evaluation that takes long must not stop a training.

    It ends with the next step. A program that logs metrics without ever making a step is not stepping by design.

    Attributes:
        stalled_s: seconds without a step: longer than most evaluations or checkpoints between steps take.
        gaps: and so many times the longest time between two steps so far, where those take longer.
        first_step_s: seconds until the first step: compiling, loading and joining the group take long too.
    """

    name = "stalled_step"
    stalled_s: float = 600.0
    gaps: float = 2.0
    first_step_s: float = 1_800.0

    def __call__(self, view: AlertView) -> Alert | None:
        """Return the stall."""
        if view.step_age_s is None:
            if view.points or view.running_s <= self.first_step_s:
                return None
            text = f"The run has been going for {view.running_s:.0f} s and has logged nothing."
            return Alert("no first step", text, subject="first step")
        if view.step_age_s <= max(self.stalled_s, self.gaps * view.longest_step_gap_s):
            return None
        return Alert("steps stalled", f"No step has ended for {view.step_age_s:.0f} s, {view.steps} ended before.")


class ThroughputDrop(_Rule, frozen=True, kw_only=True):
    """Steps became slow: two periods in a row, each of at least a minute and ten steps, against those before.

    Two, since an evaluation or a checkpoint between steps falls into one.

    Attributes:
        ratio: fires below this share of the median rate of up to an hour before, as the shipped Prometheus rule does.
        clear_ratio: ends above this share.
        periods: so many must be known before: caches and compilers make the first minutes unusual.
    """

    name = "throughput_drop"
    ratio: float = 0.5
    clear_ratio: float = 0.7
    periods: int = 5

    def __call__(self, view: AlertView) -> Alert | None:
        """Return the drop."""
        before, newest = view.step_rates_hz[:-2], view.step_rates_hz[-2:]
        if len(before) < self.periods:
            return None
        usual = median(before)
        # While it holds, the newest period alone says whether it is over.
        rate = newest[-1] if view.active else max(newest)
        if rate >= usual * (self.clear_ratio if view.active else self.ratio):
            return None
        return Alert("training slowed down", f"{newest[-1]:.3g} steps a second, where {usual:.3g} were usual.")


class StragglingRank(_Rule, frozen=True, kw_only=True):
    """One rank's own work of a step takes clearly longer than that of the others, which wait for it. Rank 0 looks.

    Attributes:
        ratio: fires at so many times the others' median, as the shipped Prometheus rule does; ends where the rank is
            no longer the slow one of ``runspan show``, which is at 1.2 times.
        looks: in so many looks at the other ranks' files in a row, 30 s apart: 1 or 2.
    """

    name = "straggling_rank"
    ratio: float = 1.25
    looks: int = 2

    def __call__(self, view: AlertView) -> Iterator[Alert]:
        """Return the slow rank."""
        found = {str(slow.rank): slow for slow in view.slow_ranks if slow is not None}
        for subject, slow in found.items():
            again = [each for each in view.slow_ranks[-self.looks :] if each is not None and each.rank == slow.rank]
            is_slow = len(again) >= self.looks and all(each.factor >= self.ratio for each in again)
            if is_slow or subject in view.active:
                text = (
                    f"Its own work of a step takes {slow.own_median_ns / 1e6:.3g} ms, that of the others"
                    f" {slow.others_median_ns / 1e6:.3g} ms ({slow.factor:.1f} times)"
                    f"{'' if slow.phase is None else f', most of it in {slow.phase}'}."
                )
                yield Alert(f"rank {slow.rank} is slow", text, subject=subject)


class DiskNearlyFull(_Rule, frozen=True, kw_only=True):
    """Little room is left where the run directory is: a warning, then a critical alert.

    Attributes:
        share: fires below this free share of the file system ...
        free_bytes: ... and below so many bytes: 5 % of a large disk is room for days.
        critical_share: the same for the critical alert ...
        critical_bytes: ... while a last checkpoint may still fit.
        clear_factor: either ends at so many times its limit: checkpoints come and go at the limit.
    """

    name = "disk_nearly_full"
    share: float = 0.05
    free_bytes: int = 10 * _GIB
    critical_share: float = 0.01
    critical_bytes: int = _GIB
    clear_factor: float = 1.25

    def __call__(self, view: AlertView) -> Iterator[Alert]:
        """Return what is nearly full."""
        free, total = view.disk_free, view.disk_total
        if free is None or not total:
            return
        limits = {
            AlertLevel.WARNING: min(self.share * total, self.free_bytes),
            AlertLevel.CRITICAL: min(self.critical_share * total, self.critical_bytes),
        }
        for level, limit in limits.items():
            if free < limit * (self.clear_factor if level in view.active else 1):
                text = f"{free / _GIB:.2f} GiB of {total / _GIB:.1f} GiB are free where the run directory is."
                title = "the disk is nearly full" if level is AlertLevel.WARNING else "the disk is about to be full"
                yield Alert(title, text, level, subject=level)


class EventsDropped(_Rule, frozen=True, kw_only=True):
    """Recording or export lost something, other than by the configured bounds of the exported copy.

    It ends when nothing was lost for a minute.

    Attributes:
        count: so many of a signal and reason within a minute: any loss is one that nobody has asked for.
    """

    name = "events_dropped"
    count: int = 1

    def __call__(self, view: AlertView) -> Iterator[Alert]:
        """Return what was lost, by signal and reason."""
        for (signal, reason), lost in view.lost_lately.items():
            if reason in _INTENDED_LOSSES or lost < self.count:
                continue
            total = view.lost.get((signal, reason), lost)
            text = f"{lost} within the last minute, {total} since the start."
            yield Alert(f"{signal} lost: {reason}", text, subject=f"{signal}/{reason}")


def _all_finite(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) for value in values)


def _highest_median(values: Sequence[float], limit: float) -> float:
    """Return the highest median of five values in a row, 0 where no value is above a limit."""
    if len(values) < _WINDOW or max(values) <= limit:
        return 0.0
    return max(median(values[index : index + _WINDOW]) for index in range(len(values) - _WINDOW + 1))
