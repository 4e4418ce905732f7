"""What the exported instruments read from a run's state."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

from runspan.records import RunStatus
from runspan.semconv import Attr, MetricName
from runspan.telemetry.limits import cut_text
from runspan.usage import ProcessUsage, SystemUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from runspan.telemetry.instruments import RunMetrics
    from runspan.usage import GpuUsage

__all__ = ["KeyRegistry", "Readings", "as_float"]

logger = logging.getLogger("runspan")

_NS_A_SECOND = 1_000_000_000
_INT64_MAX = 2**63 - 1
#: What the semantic conventions ask of a sensor beside its device's id.
_GPU_SENSOR = {Attr.HW_TYPE: "gpu"}


class KeyRegistry:
    """The user's names that become label values: the first so many, in their exported form.

    Args:
        setting: what bounds them, for the warning.
        limit: how many there may be.
    """

    def __init__(self, setting: str, limit: int) -> None:
        self._setting = setting
        self._limit = limit
        self._labels: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._units: dict[str, str] = {}

    @property
    def left_out_count(self) -> int:
        """How many names were refused."""
        return len(self._left_out)

    def admits(self, name: str) -> bool:
        """Take the name if there is room; a refusal is counted once a name and logged once."""
        if name in self._labels:
            return True
        if len(self._labels) < self._limit:
            self._labels[name] = cut_text(name)
            return True
        if not self._left_out:
            logger.warning(
                "more than %s=%d names: the first are exported, all are in the file", self._setting, self._limit
            )
        self._left_out.add(name)
        return False

    def label(self, name: str) -> str:
        """Return the label value of an admitted name."""
        return self._labels[name]

    def with_unit(self, name: str, unit: str) -> dict[str, str]:
        """Return the attributes key and unit of an admitted name; its first unit wins."""
        return {Attr.METRIC_KEY: self._labels[name], Attr.METRIC_UNIT: self._units.setdefault(name, cut_text(unit))}


class Readings:
    """Reads the points of every instrument that is no histogram.

    Args:
        metrics: the run's state.
        keys: admits metric keys.
        local_rank: the rank on its node; number 0 reports the machine.
    """

    def __init__(self, metrics: RunMetrics, keys: KeyRegistry, local_rank: int) -> None:
        self._metrics = metrics
        self._keys = keys
        self._local_rank = local_rank
        self._process = ProcessUsage()
        self._system = SystemUsage()
        self._gpu: GpuUsage | None = None

    def by_metric(self) -> dict[str, Callable[[], Iterable[Observation]]]:
        """Return, by metric name, what reads its points."""
        metrics = self._metrics
        readings: dict[str, Callable[[], Iterable[Observation]]] = {
            MetricName.VALUE: self._values,
            MetricName.NONFINITE: self._nonfinite,
            MetricName.COUNT: self._counts,
            MetricName.STEPS: lambda: [Observation(_number(metrics.steps))],
            MetricName.SAMPLES: lambda: [Observation(_number(metrics.samples))],
            MetricName.TOKENS: lambda: [Observation(_number(metrics.tokens))],
            MetricName.STEP_LAST: lambda: _optional(metrics.last_step),
            MetricName.STEP_LAST_TIME: lambda: _time(metrics.last_step_time_unix_nano),
            MetricName.HEARTBEAT_TIME: lambda: _time(metrics.heartbeat_time_unix_nano),
            MetricName.START_TIME: lambda: _time(metrics.start_time_unix_nano),
            MetricName.CHECKPOINT_LAST_TIME: lambda: _time(metrics.checkpoint_last_time_unix_nano),
            MetricName.RUN_STATUS: self._status,
            MetricName.EVENTS_DROPPED: self._dropped,
            MetricName.ALERTS: self._alerts,
            MetricName.GATE_METRIC: self._gate_metrics,
            MetricName.GATE_PASSED: self._gate_passed,
            MetricName.GOLDEN_SCORE: lambda: _optional(metrics.golden_score),
        }
        return readings | self._usage_readings()

    def sample(self) -> None:
        """Measure process, device and, for local rank 0, the machine: once a collection."""
        usage = self._metrics.usage
        if usage is not None:
            self._process = usage.process_usage()
            self._gpu = usage.gpu_usage()
            if self._local_rank == 0:
                self._system = usage.system_usage()

    def _usage_readings(self) -> dict[str, Callable[[], Iterable[Observation]]]:
        return {
            MetricName.PROCESS_CPU_TIME: lambda: (
                *_optional(self._process.cpu_user_s, {Attr.CPU_MODE: "user"}),
                *_optional(self._process.cpu_system_s, {Attr.CPU_MODE: "system"}),
            ),
            MetricName.PROCESS_MEMORY_USAGE: lambda: _optional(self._process.memory_rss),
            MetricName.PROCESS_THREAD_COUNT: lambda: _optional(self._process.threads),
            MetricName.PROCESS_FILE_DESCRIPTORS: lambda: _optional(self._process.open_files),
            MetricName.SYSTEM_CPU_UTILIZATION: lambda: _optional(self._system.cpu_util),
            MetricName.SYSTEM_MEMORY_USAGE: lambda: _optional(self._system.memory_used, {Attr.MEMORY_STATE: "used"}),
            MetricName.SYSTEM_MEMORY_LIMIT: lambda: _optional(self._system.memory_total),
            MetricName.GPU_UTILIZATION: lambda: self._of_gpu(lambda gpu: gpu.util),
            MetricName.GPU_MEMORY_USAGE: lambda: self._of_gpu(lambda gpu: gpu.memory_used),
            MetricName.GPU_MEMORY_LIMIT: lambda: self._of_gpu(lambda gpu: gpu.memory_total),
            MetricName.GPU_TEMPERATURE: lambda: self._of_gpu(lambda gpu: gpu.temperature_c, _GPU_SENSOR),
            MetricName.GPU_POWER: lambda: self._of_gpu(lambda gpu: gpu.power_w, _GPU_SENSOR),
        }

    def _of_gpu(
        self, measured: Callable[[GpuUsage], float | None], attributes: Mapping[str, str] | None = None
    ) -> Iterable[Observation]:
        gpu = self._gpu
        return () if gpu is None else _optional(measured(gpu), {Attr.HW_ID: gpu.uuid, **(attributes or {})})

    def _values(self) -> Iterable[Observation]:
        for key, value in dict(self._metrics.latest).items():
            if self._keys.admits(key) and math.isfinite(number := as_float(value)):
                yield Observation(number, {Attr.METRIC_KEY: self._keys.label(key)})

    def _nonfinite(self) -> Iterable[Observation]:
        for key, count in dict(self._metrics.nonfinite).items():
            if count and self._keys.admits(key):
                yield Observation(_number(count), {Attr.METRIC_KEY: self._keys.label(key)})

    def _counts(self) -> Iterable[Observation]:
        totals: dict[str, int | float] = {}
        units: dict[str, str] = {}
        for (key, unit), amount in dict(self._metrics.counts).items():
            if self._keys.admits(key):
                totals[key] = totals.get(key, 0) + amount
                units.setdefault(key, unit)
        for key, total in totals.items():
            if math.isfinite(as_float(total)):
                yield Observation(_number(total), self._keys.with_unit(key, units[key]))

    def _status(self) -> Iterable[Observation]:
        for status in RunStatus:
            yield Observation(int(self._metrics.status is status), {Attr.RUN_STATUS: status.value})

    def _dropped(self) -> Iterable[Observation]:
        for (signal, reason), count in dict(self._metrics.dropped()).items():
            yield Observation(count, {Attr.SIGNAL: signal, Attr.REASON: reason})

    def _alerts(self) -> Iterable[Observation]:
        for (level, rule), count in dict(self._metrics.alerts).items():
            yield Observation(count, {Attr.LEVEL: str(level), Attr.RULE: cut_text(rule)})

    def _gate_metrics(self) -> Iterable[Observation]:
        for (benchmark, key), value in dict(self._metrics.gate_metrics).items():
            if math.isfinite(number := as_float(value)):
                labels = {Attr.GATE_BENCHMARK: cut_text(benchmark), Attr.METRIC_KEY: cut_text(key)}
                yield Observation(number, labels)

    def _gate_passed(self) -> Iterable[Observation]:
        for benchmark, passed in dict(self._metrics.gate_passed).items():
            yield Observation(int(passed), {Attr.GATE_BENCHMARK: cut_text(benchmark)})


def as_float(value: float) -> float:
    """Return a number as a float, infinite where a huge integer has none."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _number(value: float) -> int | float:
    """Return what a point can hold: integers beyond int64 become floats."""
    return value if isinstance(value, float) or abs(value) <= _INT64_MAX else as_float(value)


def _optional(value: float | None, attributes: Mapping[str, str] | None = None) -> tuple[Observation, ...]:
    return () if value is None else (Observation(_number(value), attributes),)


def _time(time_unix_nano: int | None) -> tuple[Observation, ...]:
    """Return a wall time in seconds, as Prometheus' ``time()`` counts."""
    return () if time_unix_nano is None else (Observation(time_unix_nano / _NS_A_SECOND),)
