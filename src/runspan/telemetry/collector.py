"""Collects a run's metrics into OTLP requests, on the export's thread."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import DataPointFlags
from opentelemetry.sdk.metrics import ObservableCounter, ObservableGauge, ObservableUpDownCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    InMemoryMetricReader,
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from runspan._clock import SystemClock
from runspan._version import __version__
from runspan.semconv import INSTRUMENTS, SCHEMA_URL, SCOPE_NAME, Attr, InstrumentKind, MetricName, SpanName
from runspan.telemetry._histograms import BulkHistogram
from runspan.telemetry._readings import KeyRegistry, Readings, as_float
from runspan.telemetry.providers import build_meter_provider

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.sdk.resources import Resource

    from runspan._clock import Clock
    from runspan.telemetry.instruments import RunMetrics
    from runspan.tracefile.events import Step

__all__ = ["MetricsCollector"]

logger = logging.getLogger("runspan")

T = TypeVar("T")

_OBSERVABLE = (ObservableCounter, ObservableGauge, ObservableUpDownCounter)
#: Points of one instrument beyond ``max_metric_keys`` before the SDK merges them; none of ours has so many.
_SDK_HEADROOM = 1000
_NS_A_SECOND = 1_000_000_000
#: The resolution of Prometheus: an end must lie later than the value that it ends.
_NS_A_MILLISECOND = 1_000_000
_NO_RECORDED_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


class MetricsCollector:
    """Turns a run's state into OTLP requests; every call from one thread, the export's.

    The SDK aggregates what its callbacks read from the state; durations and observations come in bulk. On the encoded
    request is set what the SDK cannot say: the flag that ends a series.

    Args:
        resource: the process's Resource.
        metrics: the run's state.
        max_metric_keys: user keys, and phases, that are exported; the first ones of a run.
        local_rank: the rank on its node; number 0 reports the machine.
        clock: gives the points' times.
    """

    def __init__(
        self,
        resource: Resource,
        metrics: RunMetrics,
        *,
        max_metric_keys: int = 2000,
        local_rank: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._resource = resource
        self._metrics = metrics
        self._clock: Clock = SystemClock() if clock is None else clock
        self._start_unix_nano = self._clock.time_ns()
        self._keys = KeyRegistry("max_metric_keys", max_metric_keys)
        self._phases = KeyRegistry("max_metric_keys", max_metric_keys)
        self._readings = Readings(metrics, self._keys, local_rank)
        self._histograms: dict[tuple[str, tuple[tuple[str, str], ...]], BulkHistogram] = {}
        self._points_before_start = 0
        self._refresh_failed = False
        self._reader = InMemoryMetricReader(
            cardinality_limits=dict.fromkeys(_OBSERVABLE, max_metric_keys + _SDK_HEADROOM)
        )
        # The provider lives as long as its instruments, which the collector reads through the reader.
        self._provider = build_meter_provider(resource, self._reader)
        self._create_instruments()

    @property
    def left_out(self) -> Mapping[str, int]:
        """What never got into a request, by reason: ``max_metric_keys`` counts names, ``time_before_start`` points."""
        left_out = {
            "max_metric_keys": self._keys.left_out_count + self._phases.left_out_count,
            "time_before_start": self._points_before_start,
        }
        return {reason: count for reason, count in left_out.items() if count}

    def fold(self) -> None:
        """Take buffered durations and observations into their histograms, so that the buffers stay small."""
        self._fold_steps()
        metrics = self._metrics
        observed: dict[str, list[float]] = {}
        units: dict[str, str] = {}
        for key, unit, value in _taken(metrics.observations):
            if self._keys.admits(key) and math.isfinite(number := as_float(value)):
                units.setdefault(key, unit)
                observed.setdefault(key, []).append(number)
        for key, values in observed.items():
            self._histogram(MetricName.OBSERVATION, self._keys.with_unit(key, units[key])).add(values)
        checkpoints = [duration_ns / _NS_A_SECOND for duration_ns in _taken(metrics.checkpoint_durations)]
        if checkpoints:
            self._histogram(MetricName.CHECKPOINT_DURATION, {}).add(checkpoints)

    def _fold_steps(self) -> None:
        metrics, now = self._metrics, self._clock.time_ns()
        seconds: dict[str | None, list[float]] = {}
        for step in _taken(metrics.ended_steps):
            for phase, duration_s in self._durations_s(step):
                seconds.setdefault(phase, []).append(duration_s)
        for step, context in _taken(metrics.captured_steps):
            for phase, duration_s in self._durations_s(step):
                seconds.setdefault(phase, []).append(duration_s)
                if context.is_valid:
                    self._duration(phase).add_exemplar(duration_s, context, now)
        for phase, values in seconds.items():
            self._duration(phase).add(values)

    def _durations_s(self, step: Step) -> Iterator[tuple[str | None, float]]:
        """Yield how long a step took, under None, and how long each of its phases did, the wait for data too."""
        yield None, step.duration_ns / _NS_A_SECOND
        phases = step.phases or {}
        if step.data_ns is not None:
            phases = {**phases, SpanName.DATA: step.data_ns}
        for phase, duration_ns in phases.items():
            if self._phases.admits(phase):
                yield phase, duration_ns / _NS_A_SECOND

    def collect(self, *, final: bool = False) -> ExportMetricsServiceRequest:
        """Return the metrics as they are now.

        Args:
            final: the run has ended: live series (user values, heartbeat, resources) are followed by one point, a
                millisecond later, that ends them; status and counters stay.
        """
        self._refresh()
        self._readings.sample()
        self.fold()
        data = self._reader.get_metrics_data()
        collected = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        scope = InstrumentationScope(SCOPE_NAME, __version__, SCHEMA_URL)
        scope_metrics = ScopeMetrics(scope, [*collected, *self._histogram_metrics()], SCHEMA_URL)
        request = encode_metrics(MetricsData([ResourceMetrics(self._resource, [scope_metrics], SCHEMA_URL)]))
        self._complete(request.resource_metrics[0].scope_metrics[0], final=final)
        return request

    def _refresh(self) -> None:
        try:
            self._metrics.refresh()
        except Exception as error:  # noqa: BLE001 - the last known values are better than none
            if not self._refresh_failed:
                self._refresh_failed = True
                logger.warning("metrics are exported as last known: %r", error)

    def _duration(self, phase: str | None) -> BulkHistogram:
        if phase is None:
            return self._histogram(MetricName.STEP_DURATION, {})
        return self._histogram(MetricName.PHASE_DURATION, {Attr.PHASE: self._phases.label(phase)})

    def _histogram(self, name: str, attributes: dict[str, str]) -> BulkHistogram:
        return self._histograms.setdefault((name, tuple(attributes.items())), BulkHistogram())

    def _histogram_metrics(self) -> Iterable[Metric]:
        now = self._clock.time_ns()
        points: dict[str, list[Any]] = {}
        for (name, attributes), histogram in self._histograms.items():
            points.setdefault(name, []).append(histogram.point(dict(attributes), self._start_unix_nano, now))
        for name, data_points in points.items():
            instrument = INSTRUMENTS[name]
            data = ExponentialHistogram(data_points, AggregationTemporality.CUMULATIVE)
            yield Metric(name, instrument.description, instrument.unit, data)

    def _create_instruments(self) -> None:
        meter = self._provider.get_meter(SCOPE_NAME, __version__, SCHEMA_URL)
        create = {
            InstrumentKind.COUNTER: meter.create_observable_counter,
            InstrumentKind.GAUGE: meter.create_observable_gauge,
            InstrumentKind.UP_DOWN_COUNTER: meter.create_observable_up_down_counter,
        }
        for name, read in self._readings.by_metric().items():
            instrument = INSTRUMENTS[name]
            create[instrument.kind](name, [_callback(read)], instrument.unit, instrument.description)

    def _complete(self, scope: Any, *, final: bool) -> None:
        """Set on the encoded points what the SDK does not: our clock's times, and the ends of series."""
        now = self._clock.time_ns()
        by_name = {metric.name: metric for metric in scope.metrics}
        for name, metric in by_name.items():
            instrument = INSTRUMENTS[name]
            points = getattr(metric, metric.WhichOneof("data")).data_points
            for point in points:
                point.time_unix_nano = now
                if name == MetricName.PROCESS_CPU_TIME:
                    point.start_time_unix_nano = 0  # unknown: the process is older than the run
                elif instrument.kind is not InstrumentKind.GAUGE:
                    point.start_time_unix_nano = self._start_unix_nano
            if instrument.kind is not InstrumentKind.GAUGE and now < self._start_unix_nano:
                self._points_before_start += len(points)
                del points[:]
            if final and instrument.ends_with_run:
                for point in list(points):
                    _end(points.add(), point, now + _NS_A_MILLISECOND)
        self._end_nonfinite(scope, by_name.get(MetricName.VALUE), now)

    def _end_nonfinite(self, scope: Any, metric: Any, now: int) -> None:
        """Give each key whose newest value is not finite a point without a value.

        It is sent in each collection until the value is finite again, so that a lost request costs nothing.
        """
        for key, value in dict(self._metrics.latest).items():
            if not math.isfinite(as_float(value)) and self._keys.admits(key):
                if metric is None:
                    instrument = INSTRUMENTS[MetricName.VALUE]
                    metric = scope.metrics.add(name=instrument.name, description=instrument.description)
                point = metric.gauge.data_points.add(time_unix_nano=now, flags=_NO_RECORDED_VALUE)
                point.attributes.add(key=Attr.METRIC_KEY).value.string_value = self._keys.label(key)


def _callback(read: Callable[[], Iterable[Observation]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: read()


def _end(end: Any, point: Any, time_unix_nano: int) -> None:
    """Make ``end`` the point that ends the series of ``point``."""
    end.attributes.extend(point.attributes)
    end.start_time_unix_nano = point.start_time_unix_nano
    end.time_unix_nano = time_unix_nano
    end.flags = _NO_RECORDED_VALUE


def _taken(buffer: deque[T]) -> Iterator[T]:
    """Take out what is in the buffer now; more may be appended meanwhile and stays."""
    for _ in range(len(buffer)):
        yield buffer.popleft()
