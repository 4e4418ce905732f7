from __future__ import annotations

import logging
import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, TraceFlags

from runspan._version import __version__
from runspan.ids import format_trace_id
from runspan.records import RunStatus
from runspan.semconv import INSTRUMENTS, SCHEMA_URL, InstrumentKind
from runspan.telemetry._histograms import BulkHistogram
from runspan.telemetry._parcels import MetricParcel
from runspan.telemetry.collector import MetricsCollector
from runspan.telemetry.instruments import RunMetrics
from runspan.testing import FakeClock
from runspan.usage import GpuUsage, ProcessUsage, SystemUsage, UsageSampler
from support.exporting import ended_step
from support.otlp_receiver import ReceivedPoint, points_in

if TYPE_CHECKING:
    from collections.abc import Mapping

_CUMULATIVE = 2


def _collector(metrics: RunMetrics, *, max_metric_keys: int = 2000, local_rank: int = 0) -> MetricsCollector:
    resource = Resource({"runspan.rank": 1}, SCHEMA_URL)
    return MetricsCollector(
        resource, metrics, max_metric_keys=max_metric_keys, local_rank=local_rank, clock=FakeClock()
    )


def _of(request: ExportMetricsServiceRequest, metric: str) -> list[ReceivedPoint]:
    return [point for point in points_in(request) if point.metric == metric]


def _values(request: ExportMetricsServiceRequest) -> Mapping[str, list[float | int | None]]:
    """Return the values of each user key, in order; None ends a series."""
    found: dict[str, list[float | int | None]] = {}
    for point in _of(request, "runspan.metric.value"):
        found.setdefault(point.attributes["runspan.metric.key"], []).append(point.value)
    return found


class _FakeUsage(UsageSampler):
    """A machine with a GPU."""

    def process_usage(self) -> ProcessUsage:
        return ProcessUsage(1000, 2.0, 1.0, 5, 9)

    def system_usage(self) -> SystemUsage:
        return SystemUsage(0.5, 100, 400)

    def gpu_usage(self) -> GpuUsage:
        return GpuUsage("GPU-1", "H200", 0.75, 30, 80, 60, 350.5)


def test_latest_values_are_one_gauge_with_the_exact_key() -> None:
    """All user metrics are points of one gauge, told apart by the key exactly as it was logged."""
    keys = ["loss/train", "val/AR@100", "timing(s)/gen", "a//b", "perte_é", "../x", "x" * 300, "A", "a"]
    metrics = RunMetrics(latest={key: float(index) for index, key in enumerate(keys)})
    request = _collector(metrics).collect()
    assert _values(request) == {key: [float(index)] for index, key in enumerate(keys)}


def test_a_nonfinite_value_ends_the_series_and_is_counted() -> None:
    """Case 15: after 0.5, NaN, NaN there is no healthy 0.5 any more, and the counter says 2."""
    metrics = RunMetrics(latest={"loss": 0.5})
    collector = _collector(metrics)
    assert _values(collector.collect()) == {"loss": [0.5]}
    metrics.latest, metrics.nonfinite = {"loss": math.nan}, {"loss": 2, "ok": 0}
    request = collector.collect()
    assert _values(request) == {"loss": [None]}
    (counted,) = _of(request, "runspan.metric.nonfinite")
    assert (counted.value, counted.attributes) == (2, {"runspan.metric.key": "loss"})
    metrics.latest = {"loss": 0.25}
    assert _values(collector.collect()) == {"loss": [0.25]}


def test_a_key_that_was_never_finite_has_no_value() -> None:
    """The ending point is there even when the gauge has no other point."""
    assert _values(_collector(RunMetrics(latest={"loss": math.inf})).collect()) == {"loss": [None]}


def test_the_final_collection_ends_live_series_only() -> None:
    """At finish the last value is sent and then ended; status, counters and histograms stay."""
    metrics = RunMetrics(
        latest={"loss": 0.1, "bad": math.nan},
        heartbeat_time_unix_nano=5_000_000_000,
        start_time_unix_nano=2_000_000_000,
        status=RunStatus.SUCCESS,
        usage=_FakeUsage(),
    )
    metrics.ended_steps.append(ended_step(1))
    request = _collector(metrics).collect(final=True)
    assert _values(request) == {"loss": [0.1, None], "bad": [None]}
    ended = {point.metric for point in points_in(request) if point.value is None}
    assert ended == {name for name, item in INSTRUMENTS.items() if item.ends_with_run}
    value, end = _of(request, "runspan.run.heartbeat_time")
    assert (value.value, end.value) == (5.0, None)
    assert end.time_unix_nano - value.time_unix_nano == 1_000_000
    assert [point.value for point in _of(request, "runspan.run.start_time")] == [2.0]


def test_one_status_is_one() -> None:
    """The status gauge has a point for each status, and exactly the present one is 1."""
    for status in RunStatus:
        request = _collector(RunMetrics(status=status)).collect()
        points = {point.attributes["runspan.run.status"]: point.value for point in _of(request, "runspan.run.status")}
        assert points == {other.value: int(other is status) for other in RunStatus}


def test_counters_without_a_key_start_at_zero() -> None:
    """A counter's first export is 0, so that its first increase is an increase; all are cumulative."""
    request = _collector(RunMetrics()).collect()
    for name in ("runspan.steps", "runspan.samples", "runspan.tokens"):
        (point,) = _of(request, name)
        assert (point.value, point.kind, point.temporality) == (0, "sum", _CUMULATIVE)


def test_every_instrument_is_exported_as_listed() -> None:
    """With everything measured, the request holds each listed instrument, with its kind, unit and attributes."""
    metrics = RunMetrics(
        latest={"a": 1.0},
        nonfinite={"a": 1},
        counts={("c", "B"): 2},
        steps=3,
        last_step=0,
        last_step_time_unix_nano=1,
        heartbeat_time_unix_nano=1,
        start_time_unix_nano=1,
        checkpoint_last_time_unix_nano=1,
        alerts={("error", "stalled_step"): 1},
        gate_metrics={("bench", "latency"): 1.5},
        gate_passed={"bench": True},
        golden_score=0.875,
        dropped=lambda: {("traces", "budget"): 4},
        usage=_FakeUsage(),
    )
    metrics.observations.append(("o", "ms", 1.5))
    metrics.ended_steps.append(ended_step(1, forward=1))
    metrics.checkpoint_durations.append(1)
    request = _collector(metrics).collect()
    scope = request.resource_metrics[0].scope_metrics[0]
    assert (scope.scope.name, scope.scope.version, scope.schema_url) == ("runspan", __version__, SCHEMA_URL)
    kinds = {
        InstrumentKind.COUNTER: "sum",
        InstrumentKind.UP_DOWN_COUNTER: "sum",
        InstrumentKind.GAUGE: "gauge",
        InstrumentKind.HISTOGRAM: "exponential_histogram",
    }
    got = {point.metric: (point.kind, point.unit, set(point.attributes)) for point in points_in(request)}
    assert got == {name: (kinds[item.kind], item.unit, set(item.attributes)) for name, item in INSTRUMENTS.items()}


def test_only_the_first_rank_of_a_node_reports_the_machine() -> None:
    """Process and device are every rank's, the machine is local rank 0's."""
    names = {
        local_rank: {
            point.metric
            for point in points_in(_collector(RunMetrics(usage=_FakeUsage()), local_rank=local_rank).collect())
        }
        for local_rank in (0, 1)
    }
    assert {"process.memory.usage", "hw.gpu.utilization"} <= names[0] & names[1]
    assert {name for name in names[0] - names[1] if name.startswith("system.")} == names[0] - names[1] != set()


def test_usage_of_this_machine_is_exported() -> None:
    """The real sampler's memory and CPU time arrive, and nothing is made up for a device that is not there."""
    request = _collector(RunMetrics(usage=UsageSampler())).collect()
    (memory,) = _of(request, "process.memory.usage")
    assert memory.value is not None
    assert memory.value > 1_000_000
    modes = {point.attributes["cpu.mode"] for point in _of(request, "process.cpu.time")}
    assert modes == {"user", "system"}
    assert not _of(request, "hw.gpu.utilization")


def test_the_first_unit_of_a_key_wins() -> None:
    """A key has one unit: later ones neither split the counter nor the histogram."""
    metrics = RunMetrics(counts={("n", "B"): 2, ("n", "kB"): 3})
    metrics.observations.extend([("o", "ms", 1), ("o", "s", 2)])
    request = _collector(metrics).collect()
    (count,) = _of(request, "runspan.metric.count")
    assert (count.value, count.attributes["runspan.metric.unit"]) == (5, "B")
    (observed,) = _of(request, "runspan.metric.observation")
    assert (observed.count, observed.value, observed.attributes["runspan.metric.unit"]) == (2, 3.0, "ms")


def test_keys_beyond_the_bound_are_left_out_once(caplog: pytest.LogCaptureFixture) -> None:
    """Case 46: of 10,000 keys max_metric_keys are exported, with one warning, and the rest is counted."""
    metrics = RunMetrics(latest={f"key{number}": 1.0 for number in range(10_000)})
    collector = _collector(metrics, max_metric_keys=2000)
    with caplog.at_level(logging.WARNING, "runspan"):
        for _ in range(3):
            request = collector.collect()
    assert list(_values(request)) == [f"key{number}" for number in range(2000)]
    assert collector.left_out == {"max_metric_keys": 8000}
    assert len(caplog.records) == 1
    assert "otel.metric.overflow" not in str(request)


def test_series_do_not_grow_with_steps() -> None:
    """Case 46: 100,000 steps leave the number of series as it was after the first."""
    metrics = RunMetrics(latest={"loss": 1.0})
    collector = _collector(metrics)
    sizes = []
    for step in (1, 100_000):
        metrics.steps, metrics.last_step = step, step
        metrics.ended_steps.append(ended_step(1000 + step, forward=900))
        sizes.append(len(points_in(collector.collect())))
    assert sizes[0] == sizes[1]


def test_durations_fall_into_different_buckets() -> None:
    """Case 50: 0.004 s to 600 s are told apart, in seconds."""
    metrics = RunMetrics()
    metrics.ended_steps.extend(ended_step(int(seconds * 1e9)) for seconds in (0.004, 0.08, 0.3, 2, 45, 600))
    (point,) = _of(_collector(metrics).collect(), "runspan.step.duration")
    assert point.buckets >= 5
    assert (point.unit, point.count) == ("s", 6)
    assert point.value == pytest.approx(647.384)


def test_an_exemplar_names_a_captured_steps_trace() -> None:
    """Case 53: a captured step's duration carries its trace; uncaptured ones carry none."""
    captured = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    metrics = RunMetrics()
    metrics.ended_steps.append(ended_step(10, data=1))
    metrics.captured_steps.append((ended_step(20, forward=5), captured))
    collector = _collector(metrics)
    request = collector.collect()
    (step,) = _of(request, "runspan.step.duration")
    assert step.exemplar_trace_ids == (format_trace_id(0xABC),)
    phases = {
        point.attributes["runspan.phase"]: point.exemplar_trace_ids for point in _of(request, "runspan.phase.duration")
    }
    assert phases == {"forward": (format_trace_id(0xABC),), "data": ()}
    assert _of(collector.collect(), "runspan.step.duration")[0].exemplar_trace_ids == ()


def test_points_before_their_start_are_left_out_and_counted() -> None:
    """After the wall clock stepped back, cumulative points would end before they began: they go, gauges stay."""
    clock = FakeClock()
    metrics = RunMetrics(latest={"loss": 1.0}, steps=4)
    collector = MetricsCollector(Resource({}), metrics, clock=clock)
    clock.step_wall(-3600)
    request = collector.collect()
    assert not _of(request, "runspan.steps")
    assert _values(request) == {"loss": [1.0]}
    assert collector.left_out == {"time_before_start": 3}
    clock.step_wall(3601)
    (steps,) = _of(collector.collect(), "runspan.steps")
    assert steps.value == 4
    assert steps.start_time_unix_nano < steps.time_unix_nano


def test_huge_numbers_cost_no_other_point() -> None:
    """Case 10: a counter beyond int64 becomes a float, one beyond any float is left out, the rest is exported."""
    metrics = RunMetrics(latest={"a": 2**64 - 1, "b": 1.0}, counts={("c", ""): 2**70, ("d", ""): 10**400}, tokens=2**64)
    request = _collector(metrics).collect()
    assert _values(request) == {"a": [float(2**64 - 1)], "b": [1.0]}
    assert [point.value for point in _of(request, "runspan.metric.count")] == [float(2**70)]
    assert [point.value for point in _of(request, "runspan.tokens")] == [float(2**64)]


def test_a_failing_refresh_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """When the state cannot be brought up to date, the last known one is exported."""

    def refresh() -> None:
        raise RuntimeError("gone")

    collector = _collector(RunMetrics(latest={"a": 1.0}, refresh=refresh))
    with caplog.at_level(logging.WARNING, "runspan"):
        assert _values(collector.collect()) == _values(collector.collect()) == {"a": [1.0]}
    assert len(caplog.records) == 1


@given(st.dictionaries(st.text(), st.floats() | st.integers(), max_size=5), st.text(), st.text())
def test_no_name_or_value_breaks_a_collection(latest: dict[str, float], phase: str, unit: str) -> None:
    """Whatever keys, phases, units and values there are, collecting raises nothing."""
    metrics = RunMetrics(latest=latest, counts={(key, unit): 1 for key in latest})
    metrics.ended_steps.append(ended_step(1, **{phase: 1}))
    metrics.observations.extend((key, unit, value) for key, value in latest.items())
    request = _collector(metrics).collect(final=True)
    assert ExportMetricsServiceRequest.FromString(request.SerializeToString()) == request


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), min_size=1))
def test_a_histogram_counts_every_value(values: list[float]) -> None:
    """Count, sum, extremes and buckets agree with the values, at most 160 buckets a side."""
    histogram = BulkHistogram()
    middle = len(values) // 2
    histogram.add(values[:middle])
    histogram.add(values[middle:])
    point = histogram.point({}, 0, 1)
    assert (point.count, point.min, point.max) == (len(values), min(values), max(values))
    assert point.sum == pytest.approx(math.fsum(values), rel=1e-9, abs=abs(max(values, key=abs)) * 1e-12)
    assert point.zero_count == values.count(0)
    assert sum(point.positive.bucket_counts) == sum(value > 0 for value in values)
    assert sum(point.negative.bucket_counts) == sum(value < 0 for value in values)
    assert max(len(point.positive.bucket_counts), len(point.negative.bucket_counts)) <= 160


def test_histogram_buckets_hold_what_opentelemetry_says() -> None:
    """A value lies above its bucket's lower bound and not above the upper one."""
    source = random.Random(7)  # noqa: S311 - the same values in each run
    values = sorted(source.lognormvariate(0, 3) for _ in range(500))
    histogram = BulkHistogram()
    histogram.add(values)
    point = histogram.point({}, 0, 1)
    base = 2**2.0**-point.scale
    seen = 0
    for position, count in enumerate(point.positive.bucket_counts):
        index = point.positive.offset + position
        low, high = base**index, base ** (index + 1)
        assert all(low * (1 - 1e-9) < value <= high * (1 + 1e-9) for value in values[seen : seen + count])
        seen += count
    assert seen == 500
    exact = BulkHistogram()
    exact.add([8.0])
    assert exact.point({}, 0, 1).positive.offset == 3 * 2**20 - 1


def test_a_collection_can_be_divided() -> None:
    """Halves of a request have the same resource and scope, and all of its points once."""
    metrics = RunMetrics(latest={f"k{number}": float(number) for number in range(7)}, steps=2)
    metrics.ended_steps.append(ended_step(5))
    whole = _collector(metrics).collect(final=True)
    parcels, parts = [MetricParcel(whole)], []
    while parcels:
        parcel = parcels.pop(0)
        halves = [half for half in parcel.halves() if isinstance(half, MetricParcel)]
        parcels[:0] = halves
        if not halves:
            parts.append(parcel)
    assert [part.count for part in parts] == [1] * MetricParcel(whole).count
    divided = [point for part in parts for point in points_in(part.request())]
    assert divided == points_in(whole)
