"""A real OTLP receiver over gRPC or HTTP, with the faults that real ones have.

In a test it is a context manager; ``python -m support.otlp_receiver --protocol grpc`` is the same as a process of its
own: it prints ``{"port": …}``, and what it received as one JSON object when its standard input ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import socket
import ssl
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import DataPointFlags

from runspan._endpoints import OtlpEndpoint

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = [
    "BlackHole",
    "Faults",
    "OtlpReceiver",
    "ReceivedPoint",
    "ReceivedSpan",
    "endpoint_of",
    "points_in",
    "refused_port",
    "spans_in",
    "until",
]

_DEFAULT_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_PATHS: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}
_TOO_LARGE = 413


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived; ids are lower-case hex."""

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str]]
    start_time_unix_nano: int
    end_time_unix_nano: int
    status: int
    scope: tuple[str, str, str]
    dropped_attributes: int


@dataclass(frozen=True)
class ReceivedPoint:
    """A metric's data point as it arrived; ``value`` is a histogram's sum, and None where the point ends its series."""

    metric: str
    kind: str
    unit: str
    value: float | int | None
    attributes: dict[str, Any]
    resource: dict[str, Any]
    start_time_unix_nano: int
    time_unix_nano: int
    count: int = 0
    buckets: int = 0
    exemplar_trace_ids: tuple[str, ...] = ()
    temporality: int = 0


@dataclass
class Faults:
    """How a receiver misbehaves.

    Attributes:
        delay_s: slept before each answer.
        answers: status codes (gRPC names, HTTP numbers) of the next requests, used up in order; then all is well.
        headers: sent with each of these, over gRPC only Retry-After, as a RetryInfo.
        rejected: items that each accepted request reports as not taken.
    """

    delay_s: float = 0.0
    answers: deque[str] = field(default_factory=deque)
    headers: dict[str, str] = field(default_factory=dict)
    rejected: int = 0


class OtlpReceiver:
    """Receives spans and metrics on a loopback port, and keeps them.

    Args:
        protocol: ``grpc`` or ``http/protobuf``.
        faults: how it misbehaves; may be changed while it runs.
        port: 0 for a free one.
        max_message_bytes: larger requests are refused, as a collector does.
        tls: PEM files of certificate and key; None: no TLS.
    """

    def __init__(
        self,
        protocol: str = "grpc",
        *,
        faults: Faults | None = None,
        port: int = 0,
        max_message_bytes: int = _DEFAULT_MAX_MESSAGE_BYTES,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.protocol = protocol
        self.faults = Faults() if faults is None else faults
        self.max_message_bytes = max_message_bytes
        self.tls = tls
        #: Size of each request that arrived, refused ones too (over gRPC the library itself refuses what is too large).
        self.request_sizes: list[int] = []
        #: Metadata or headers of the last request.
        self.last_headers: dict[str, str] = {}
        self._lock = threading.Lock()
        self._traces: list[ExportTraceServiceRequest] = []
        self._metrics: list[ExportMetricsServiceRequest] = []
        self._server = _GrpcServer(self, port) if protocol == "grpc" else _HttpServer(self, port)
        self.port = self._server.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening, and drop open connections."""
        self._server.stop()

    def endpoint(self, signal: str = "traces", **changes: Any) -> OtlpEndpoint:
        """Return how to reach this receiver; over TLS with its own certificate as the authority."""
        if self.tls is not None:
            path = "" if self.protocol == "grpc" else f"/v1/{signal}"
            url = f"https://localhost:{self.port}{path}"
            changes = {"url": url, "insecure": False, "certificate": str(self.tls[0]), **changes}
        return endpoint_of(self.protocol, self.port, signal, **changes)

    @property
    def spans(self) -> list[ReceivedSpan]:
        """Every span accepted, pending ones too, in order of arrival."""
        with self._lock:
            requests = list(self._traces)
        return [span for request in requests for span in spans_in(request)]

    @property
    def points(self) -> list[ReceivedPoint]:
        """Every data point accepted, in order of arrival."""
        with self._lock:
            requests = list(self._metrics)
        return [point for request in requests for point in points_in(request)]

    def points_of(self, metric: str, **attributes: Any) -> list[ReceivedPoint]:
        """Return a metric's points with these attributes, underscores for dots."""
        wanted = {name.replace("_", "."): value for name, value in attributes.items()}
        return [point for point in self.points if point.metric == metric and wanted.items() <= point.attributes.items()]

    def accept(self, request: Any, size: int, headers: dict[str, str]) -> str | None:
        """Take a request, or return the fault that it is answered with."""
        self.request_sizes.append(size)
        self.last_headers = headers
        if self.faults.delay_s:
            time.sleep(self.faults.delay_s)
        with self._lock:
            if self.faults.answers:
                return self.faults.answers.popleft()
            if isinstance(request, ExportTraceServiceRequest):
                self._traces.append(request)
            else:
                self._metrics.append(request)
        return None

    def response(self, request: Any) -> Any:
        """Return the answer to an accepted request."""
        if isinstance(request, ExportTraceServiceRequest):
            answer: Any = ExportTraceServiceResponse()
            if self.faults.rejected:
                answer.partial_success.rejected_spans = self.faults.rejected
        else:
            answer = ExportMetricsServiceResponse()
            if self.faults.rejected:
                answer.partial_success.rejected_data_points = self.faults.rejected
        return answer


class _GrpcServer:
    def __init__(self, receiver: OtlpReceiver, port: int) -> None:
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(
            self._pool,
            options=[("grpc.max_receive_message_length", receiver.max_message_bytes), ("grpc.so_reuseport", 0)],
        )

        class Traces(TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's method
                return _answer_grpc(receiver, request, context)

        class Metrics(MetricsServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's method
                return _answer_grpc(receiver, request, context)

        add_TraceServiceServicer_to_server(Traces(), self._server)  # type: ignore[no-untyped-call] # generated code
        add_MetricsServiceServicer_to_server(Metrics(), self._server)  # type: ignore[no-untyped-call] # generated code
        address = f"127.0.0.1:{port}"
        if receiver.tls is None:
            self.port: int = self._server.add_insecure_port(address)
        else:
            certificate, key = (path.read_bytes() for path in receiver.tls)
            self.port = self._server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown(wait=True)


def _answer_grpc(receiver: OtlpReceiver, request: Any, context: Any) -> Any:
    headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
    fault = receiver.accept(request, request.ByteSize(), headers)
    if fault is not None:
        if "Retry-After" in receiver.faults.headers:
            status = Status(code=grpc.StatusCode[fault].value[0])
            info = RetryInfo()
            info.retry_delay.FromSeconds(int(receiver.faults.headers["Retry-After"]))
            status.details.add().Pack(info)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode[fault], "fault of the test receiver")
    return receiver.response(request)


class _HttpServer:
    def __init__(self, receiver: OtlpReceiver, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if len(body) > receiver.max_message_bytes:
                    receiver.request_sizes.append(len(body))
                    self._reply(_TOO_LARGE, b"")
                    return
                request = _PATHS[self.path.partition("?")[0]].FromString(body)
                headers = {key.lower(): value for key, value in self.headers.items()}
                fault = receiver.accept(request, len(body), headers)
                if fault is None:
                    self._reply(200, receiver.response(request).SerializeToString())
                else:
                    self._reply(int(fault), b"fault of the test receiver", receiver.faults.headers)

            def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                try:
                    self.send_response(status)
                    for name, value in (headers or {}).items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True  # the client did not wait

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if receiver.tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*receiver.tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BlackHole:
    """A port that accepts connections and never answers."""

    def __init__(self) -> None:
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                self._connections.append(self._listener.accept()[0])
            except OSError:
                return


def refused_port() -> int:
    """Return a loopback port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def endpoint_of(protocol: str, port: int, signal: str = "traces", **changes: Any) -> OtlpEndpoint:
    """Return an endpoint on a loopback port, as configuration would make it."""
    url = f"http://127.0.0.1:{port}" + ("" if protocol == "grpc" else f"/v1/{signal}")
    endpoint = OtlpEndpoint(
        url=url,
        protocol=protocol,
        headers={},
        certificate=None,
        client_key=None,
        client_certificate=None,
        insecure=True,
        timeout_s=10.0,
        compression="none",
    )
    return dataclasses.replace(endpoint, **changes)


def until(condition: Any, timeout_s: float = 10.0) -> bool:
    """Wait for a condition and return whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def spans_in(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    """Return the spans of a request."""
    return [
        ReceivedSpan(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_span_id=span.parent_span_id.hex(),
            attributes=_attributes(span.attributes),
            resource=_attributes(resource.resource.attributes),
            events=[(event.name, _attributes(event.attributes)) for event in span.events],
            links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            start_time_unix_nano=span.start_time_unix_nano,
            end_time_unix_nano=span.end_time_unix_nano,
            status=span.status.code,
            scope=(scope.scope.name, scope.scope.version, scope.schema_url),
            dropped_attributes=span.dropped_attributes_count,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def points_in(request: ExportMetricsServiceRequest) -> list[ReceivedPoint]:
    """Return the data points of a request."""
    received = []
    for resource in request.resource_metrics:
        attributes = _attributes(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = str(metric.WhichOneof("data"))
                data = getattr(metric, kind)
                received += [_point(metric, kind, data, point, attributes) for point in data.data_points]
    return received


def _point(metric: Any, kind: str, data: Any, point: Any, resource: dict[str, Any]) -> ReceivedPoint:
    is_histogram = kind == "exponential_histogram"
    value = point.sum if is_histogram else getattr(point, point.WhichOneof("value") or "as_double")
    has_value = not point.flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    return ReceivedPoint(
        metric=metric.name,
        kind=kind,
        unit=metric.unit,
        value=value if has_value else None,
        attributes=_attributes(point.attributes),
        resource=resource,
        start_time_unix_nano=point.start_time_unix_nano,
        time_unix_nano=point.time_unix_nano,
        count=point.count if is_histogram else 0,
        buckets=sum(1 for count in point.positive.bucket_counts if count) if is_histogram else 0,
        exemplar_trace_ids=tuple(exemplar.trace_id.hex() for exemplar in point.exemplars),
        temporality=0 if kind == "gauge" else data.aggregation_temporality,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return getattr(value, kind)


def main() -> None:
    """Run as a process of its own until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol", default="grpc", choices=["grpc", "http/protobuf"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-s", type=float, default=0.0)
    given = parser.parse_args()
    with OtlpReceiver(given.protocol, port=given.port, faults=Faults(delay_s=given.delay_s)) as receiver:
        sys.stdout.write(json.dumps({"port": receiver.port}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        spans = [dataclasses.asdict(span) for span in receiver.spans]
        points = [dataclasses.asdict(point) for point in receiver.points]
        sys.stdout.write(json.dumps({"spans": spans, "points": points}) + "\n")


if __name__ == "__main__":
    main()
