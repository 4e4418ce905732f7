"""One OTLP request at a time, over gRPC or HTTP, each bounded by a timeout of the caller's.

The exporters of the SDK are not used: their gRPC ``export`` takes no timeout a call. Nothing here starts a thread, so
that a request can still be sent while the interpreter exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import grpc
import requests
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from urllib3.util import Timeout

from runspan._version import __version__
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from runspan._endpoints import OtlpEndpoint

__all__ = ["Answer", "Sender", "Verdict", "open_sender"]

Request = ExportTraceServiceRequest | ExportMetricsServiceRequest

_USER_AGENT = f"runspan/{__version__}"
_DEFAULT_GRPC_PORT = 4317
#: A refusal for want of resources means "too large" only for a request that is not small anyway.
_SMALL_REQUEST_BYTES = 64 * 1024
_CHANNEL_OPTIONS = (
    ("grpc.primary_user_agent", _USER_AGENT),
    ("grpc.max_send_message_length", -1),  # split by us, and judged by the receiver
    ("grpc.enable_retries", 0),  # retried by us, so that deadlines hold and losses are counted
    ("grpc.use_local_subchannel_pool", 1),  # the reconnect back-off of one run is not another's
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),  # also bounds one attempt to connect
    ("grpc.max_reconnect_backoff_ms", 2000),
)
_RETRYABLE_CODES = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
_HTTP_OK, _HTTP_REDIRECT, _HTTP_TOO_LARGE = 200, 300, 413


class Verdict(Enum):
    """What became of a request."""

    ACCEPTED = auto()
    RETRY = auto()
    TOO_LARGE = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """A receiver's answer, or why there was none.

    Attributes:
        verdict: what to do next.
        rejected: spans or points of an accepted request that the receiver did not take.
        retry_after_s: how long it asks to wait before a retry, None without a wish.
        detail: for a person; free of our credentials, unless the receiver repeats them.
        code: gRPC's name of the status, or HTTP's number; empty for OTLP's own acceptance, and without an answer.
    """

    verdict: Verdict
    rejected: int = 0
    retry_after_s: float | None = None
    detail: str = ""
    code: str = ""


class Sender(Protocol):
    """Sends the requests of one signal to one endpoint; used by one thread, but ``abort`` by any."""

    def send(self, request: Request, timeout_s: float) -> Answer:
        """Send one request and wait at most about ``timeout_s`` seconds; never raises."""

    def abort(self) -> None:
        """Cut a call in flight where the transport can, and refuse later ones."""

    def abandon_in_child(self) -> None:
        """Let the transport of a forked child's parent alone: nothing is closed, nothing waits for a lost thread."""


def open_sender(endpoint: OtlpEndpoint, signal: str) -> Sender:
    """Return a sender for ``traces`` or ``metrics``; it connects with its first request.

    Raises:
        ConfigError: a certificate or key cannot be read, or a header cannot be sent.
    """
    return _GrpcSender(endpoint, signal) if endpoint.protocol == "grpc" else _HttpSender(endpoint, signal)


class _GrpcSender:
    def __init__(self, endpoint: OtlpEndpoint, signal: str) -> None:
        target = _grpc_target(endpoint.url)
        compression = grpc.Compression.Gzip if endpoint.compression == "gzip" else grpc.Compression.NoCompression
        try:
            if endpoint.insecure:
                self._channel = grpc.insecure_channel(target, _CHANNEL_OPTIONS, compression)
            else:
                self._channel = grpc.secure_channel(target, _credentials(endpoint), _CHANNEL_OPTIONS, compression)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the OTLP certificate or key cannot be used: {error}") from error
        stub = (TraceServiceStub if signal == "traces" else MetricsServiceStub)(self._channel)
        self._export: Any = stub.Export
        self._metadata = tuple((name.lower(), value) for name, value in endpoint.headers.items())
        self._pinned = False

    def send(self, request: Request, timeout_s: float) -> Answer:
        try:
            # The blocking form needs no thread of gRPC's; closing the channel cuts it.
            response = self._export(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            return _grpc_answer(error, request.ByteSize())
        except Exception as error:  # noqa: BLE001 - a closed channel, metadata gRPC cannot encode: no reason to die
            return Answer(Verdict.REFUSED, detail=type(error).__name__)
        return _accepted(response)

    def abort(self) -> None:
        if not self._pinned:
            self._channel.close()

    def abandon_in_child(self) -> None:
        # The core may have been forked in the middle of a call: even freeing the channel can wait for a lock whose
        # owner does not exist here. One reference more, and it is never freed.
        if not self._pinned:
            self._pinned = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._channel))


def _grpc_target(url: str) -> str:
    if "://" not in url:
        return url
    parts = urlsplit(url)
    target = parts.netloc.rpartition("@")[2]
    return target if parts.port is not None else f"{target.rstrip(':')}:{_DEFAULT_GRPC_PORT}"


def _credentials(endpoint: OtlpEndpoint) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_read(endpoint.certificate),
        private_key=_read(endpoint.client_key),
        certificate_chain=_read(endpoint.client_certificate),
    )


def _read(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the OTLP certificate or key {path} cannot be read: {error.strerror}") from error


def _grpc_answer(error: Any, request_bytes: int) -> Answer:
    code = error.code()
    detail = f"{code.name}: {error.details()}"
    retry_after_s = _retry_info(error)
    if code in _RETRYABLE_CODES or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after_s is not None):
        return Answer(Verdict.RETRY, retry_after_s=retry_after_s, detail=detail, code=code.name)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and (
        request_bytes > _SMALL_REQUEST_BYTES or "larger than" in detail.lower()
    ):
        return Answer(Verdict.TOO_LARGE, detail=detail, code=code.name)
    return Answer(Verdict.REFUSED, detail=detail, code=code.name)


def _retry_info(error: Any) -> float | None:
    """Return the delay of a ``google.rpc.RetryInfo`` in the trailing metadata, in seconds."""
    for name, value in error.trailing_metadata() or ():
        if name != "grpc-status-details-bin":
            continue
        with contextlib.suppress(DecodeError):
            for any_detail in Status.FromString(value).details:
                info = RetryInfo()
                if any_detail.Unpack(info):
                    return float(max(0.0, info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
    return None


def _accepted(response: ExportTraceServiceResponse | ExportMetricsServiceResponse) -> Answer:
    if not response.HasField("partial_success"):
        return Answer(Verdict.ACCEPTED)
    partial = response.partial_success
    rejected = getattr(partial, "rejected_spans", 0) or getattr(partial, "rejected_data_points", 0)
    return Answer(Verdict.ACCEPTED, rejected=max(0, rejected), detail=partial.error_message)


class _HttpSender:
    def __init__(self, endpoint: OtlpEndpoint, signal: str) -> None:
        self._url = endpoint.url
        self._response = ExportTraceServiceResponse if signal == "traces" else ExportMetricsServiceResponse
        self._gzip = endpoint.compression == "gzip"
        self._aborted = False
        self._session = requests.Session()
        self._session.headers.update({"Content-Type": "application/x-protobuf", "User-Agent": _USER_AGENT})
        self._session.headers.update(endpoint.headers)
        if "authorization" in endpoint.headers:
            self._session.auth = _keep_header
        # Handed over with each request: REQUESTS_CA_BUNDLE would beat a session's certificate.
        self._verify = True if endpoint.certificate is None else endpoint.certificate
        if endpoint.client_certificate is not None:
            key = endpoint.client_key
            self._session.cert = endpoint.client_certificate if key is None else (endpoint.client_certificate, key)
        if self._gzip:
            self._session.headers["Content-Encoding"] = "gzip"

    def send(self, request: Request, timeout_s: float) -> Answer:
        if self._aborted:
            return Answer(Verdict.REFUSED, detail="closed")
        body = request.SerializeToString()
        try:
            answer = self._session.post(
                self._url,
                data=gzip.compress(body, compresslevel=1) if self._gzip else body,
                timeout=Timeout(total=timeout_s),  # type: ignore[arg-type] # requests hands urllib3's own on as it is
                verify=self._verify,
                allow_redirects=False,
            )
        except (requests.ConnectionError, requests.Timeout) as error:
            return Answer(Verdict.RETRY, detail=_reason(error))
        except Exception as error:  # noqa: BLE001 - a URL or header requests cannot send; its text may hold credentials
            return Answer(Verdict.REFUSED, detail=type(error).__name__)
        return self._judge(answer)

    def _judge(self, answer: requests.Response) -> Answer:
        status = answer.status_code
        detail, code = f"HTTP {status} {answer.reason}", str(status)
        if _HTTP_OK <= status < _HTTP_REDIRECT:
            try:
                return _accepted(self._response.FromString(answer.content))
            except DecodeError:  # a proxy's "OK" page: the status decides
                return Answer(Verdict.ACCEPTED, detail=f"{detail}, with content that is not OTLP's", code=code)
        if status == _HTTP_TOO_LARGE:
            return Answer(Verdict.TOO_LARGE, detail=detail, code=code)
        if status in _RETRYABLE_STATUSES:
            retry_after_s = _retry_after(answer.headers.get("Retry-After"))
            return Answer(Verdict.RETRY, retry_after_s=retry_after_s, detail=detail, code=code)
        return Answer(Verdict.REFUSED, detail=detail, code=code)

    def abort(self) -> None:
        # A call in flight goes on until its own timeout, on a daemon thread that nothing waits for.
        self._aborted = True
        self._session.close()

    def abandon_in_child(self) -> None:
        self._aborted = True


def _keep_header(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Authenticate with what the headers say: without this, requests would put ``.netrc`` credentials in its place."""
    return request


def _retry_after(header: str | None) -> float | None:
    """Read a ``Retry-After`` header, seconds or an HTTP date, as seconds from now; None when it is neither."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = (moment - datetime.now(UTC)).total_seconds() if moment.tzinfo else math.nan
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _reason(error: BaseException) -> str:
    """Return the innermost system error's text; the outer ones repeat the URL, which may hold credentials."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return f"{type(error).__name__}: {inner.strerror}"
        inner = inner.__cause__ or inner.__context__
    return type(error).__name__
