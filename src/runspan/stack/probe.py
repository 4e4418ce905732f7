"""A span and a metric that are sent through the collector to be read back."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from runspan._version import __version__
from runspan.semconv import SCHEMA_URL, SCOPE_NAME, Attr

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Probe"]

_SERVICE = "runspan-stack-check"
_SPAN_NAME = "stack check"  # none of the names that the collector makes metrics of
_METRIC_NAME = "runspan.stack.probe_time"
_PROMETHEUS_NAME = "runspan_stack_probe_time_seconds"
_NS_PER_S = 1_000_000_000
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe. Its trace is new; its gauge is one series a host, however often this host checks.

    Attributes:
        trace_id: of its span's trace.
        span_id: its span's.
        host: this host's name, which stands for the instance.
        time_unix_nano: when it was made, to the millisecond: Prometheus keeps no more. In s, the gauge's value.
    """

    trace_id: bytes
    span_id: bytes
    host: str
    time_unix_nano: int

    @classmethod
    def new(cls, random_bytes: Callable[[int], bytes] = os.urandom, time_ns: Callable[[], int] = time.time_ns) -> Probe:
        """Return a probe that no other equals.

        Args:
            random_bytes: returns that many random bytes.
            time_ns: the wall clock, ns since the Unix epoch.
        """
        now_ns = time_ns() // 1_000_000 * 1_000_000
        return cls(random_bytes(_TRACE_ID_BYTES), random_bytes(_SPAN_ID_BYTES), platform.node() or "unknown", now_ns)

    @property
    def time_s(self) -> float:
        """When it was made, and the gauge's value: Unix time, s."""
        return self.time_unix_nano / _NS_PER_S

    @property
    def selector(self) -> str:
        """The gauge's series in Prometheus."""
        return f'{_PROMETHEUS_NAME}{{job="{_SERVICE}",instance={json.dumps(self.host, ensure_ascii=False)}}}'

    def span_request(self) -> ExportTraceServiceRequest:
        """Return the request that carries the span."""
        span = Span(
            trace_id=self.trace_id,
            span_id=self.span_id,
            name=_SPAN_NAME,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=self.time_unix_nano,
            end_time_unix_nano=self.time_unix_nano + 1_000_000,
        )
        spans = ScopeSpans(scope=_scope(), spans=[span], schema_url=SCHEMA_URL)
        resource = ResourceSpans(resource=self._resource(), scope_spans=[spans], schema_url=SCHEMA_URL)
        return ExportTraceServiceRequest(resource_spans=[resource])

    def metric_request(self) -> ExportMetricsServiceRequest:
        """Return the request that carries the gauge."""
        point = NumberDataPoint(time_unix_nano=self.time_unix_nano, as_double=self.time_s)
        metric = Metric(
            name=_METRIC_NAME,
            description="Unix time of this host's last `runspan stack check`.",
            unit="s",
            gauge=Gauge(data_points=[point]),
        )
        metrics = ScopeMetrics(scope=_scope(), metrics=[metric], schema_url=SCHEMA_URL)
        resource = ResourceMetrics(resource=self._resource(), scope_metrics=[metrics], schema_url=SCHEMA_URL)
        return ExportMetricsServiceRequest(resource_metrics=[resource])

    def _resource(self) -> Resource:
        attributes = {Attr.SERVICE_NAME: _SERVICE, Attr.SERVICE_INSTANCE_ID: self.host, Attr.HOST_NAME: self.host}
        return Resource(
            attributes=[KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes.items()]
        )


def _scope() -> InstrumentationScope:
    return InstrumentationScope(name=SCOPE_NAME, version=__version__)
