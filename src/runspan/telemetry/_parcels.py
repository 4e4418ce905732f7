"""What the export workers carry: encoded lazily, and divisible when a receiver finds it too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from runspan.semconv import Attr
from runspan.telemetry.limits import trim_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.trace import ReadableSpan

    from runspan._otel_env import SpanLimitSettings

__all__ = ["MetricParcel", "Parcel", "SpanParcel", "is_pending"]


class Parcel(Protocol):
    """Some items of one signal that travel in one request."""

    @property
    def count(self) -> int:
        """How many items count as exported or lost."""

    def request(self) -> ExportTraceServiceRequest | ExportMetricsServiceRequest:
        """Return the encoded request.

        Raises:
            Exception: an item cannot be encoded; halves tell which.
        """

    def halves(self) -> Sequence[Parcel]:
        """Return two smaller parcels, or none for a single item."""


def is_pending(span: ReadableSpan) -> bool:
    """Whether a span only shows that another is open; it is neither bounded nor counted."""
    return span.name.endswith("(started)") and bool((span.attributes or {}).get(Attr.PENDING))


class SpanParcel:
    """Spans of any resource and scope, trimmed and encoded with the first look at the request."""

    def __init__(self, spans: Sequence[ReadableSpan], limits: SpanLimitSettings) -> None:
        self._spans = spans
        self._limits = limits
        self._request: ExportTraceServiceRequest | None = None
        self.count = sum(not is_pending(span) for span in spans)

    def request(self) -> ExportTraceServiceRequest:
        """Return the encoded export copies."""
        if self._request is None:
            self._request = encode_spans([trim_span(span, self._limits) for span in self._spans])
        return self._request

    def halves(self) -> Sequence[Parcel]:
        """Divide the spans."""
        middle = len(self._spans) // 2
        if not middle:
            return ()
        return SpanParcel(self._spans[:middle], self._limits), SpanParcel(self._spans[middle:], self._limits)


class MetricParcel:
    """The points of one collection, or a part of them."""

    def __init__(self, request: ExportMetricsServiceRequest) -> None:
        self._request = request
        self.count = sum(1 for _ in _points(request))

    def request(self) -> ExportMetricsServiceRequest:
        """Return the request."""
        return self._request

    def halves(self) -> Sequence[Parcel]:
        """Divide the points, a large metric's own ones too."""
        points = list(_points(self._request))
        middle = len(points) // 2
        if not middle:
            return ()
        return MetricParcel(self._with(points[:middle])), MetricParcel(self._with(points[middle:]))

    def _with(self, points: list[tuple[Any, Any]]) -> ExportMetricsServiceRequest:
        """Return a request of the same resource and scope that holds these (metric, point) pairs."""
        request = ExportMetricsServiceRequest()
        whole_resource = self._request.resource_metrics[0]
        whole_scope = whole_resource.scope_metrics[0]
        resource = request.resource_metrics.add(resource=whole_resource.resource, schema_url=whole_resource.schema_url)
        scope = resource.scope_metrics.add(scope=whole_scope.scope, schema_url=whole_scope.schema_url)
        previous = None
        for metric, point in points:
            kind = metric.WhichOneof("data")
            if previous is not metric:
                part = scope.metrics.add(name=metric.name, unit=metric.unit, description=metric.description)
                data = getattr(part, kind)
                whole = getattr(metric, kind)
                for field in ("aggregation_temporality", "is_monotonic"):
                    if field in whole.DESCRIPTOR.fields_by_name:
                        setattr(data, field, getattr(whole, field))
                previous = metric
            data.data_points.add().CopyFrom(point)
        return request


def _points(request: ExportMetricsServiceRequest) -> Iterator[tuple[Any, Any]]:
    """Yield each (metric, point); a collection has one resource and one scope."""
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
                    yield metric, point
