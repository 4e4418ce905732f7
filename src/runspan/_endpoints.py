"""Where each signal is exported: what a configuration and ``OTEL_*`` come to."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from runspan._env import hide_credentials, require, show_value
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan._otel_env import SignalSettings
    from runspan.config import TracingConfig

__all__ = ["OtlpEndpoint", "endpoints", "guess_protocol"]

_DEFAULT_ENDPOINTS = {"grpc": "http://localhost:4317", "http/protobuf": "http://localhost:4318"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpEndpoint:
    """Where and how one signal is exported.

    Attributes:
        url: for ``http/protobuf`` the full URL with the signal's path; for ``grpc`` ``http(s)://host:port`` or
            ``host:port``.
        protocol: ``grpc`` or ``http/protobuf``.
        headers: sent with each request, names in lower case. Never part of the repr.
        certificate: path of the CA certificates, PEM; None: the system's.
        client_key: path of the client's key, PEM.
        client_certificate: path of the client's certificate, PEM.
        insecure: whether the connection goes without TLS.
        timeout_s: bound on one request.
        compression: ``none`` or ``gzip``.
    """

    url: str = field(repr=False)  # it may hold a user name and password
    protocol: str
    headers: Mapping[str, str] = field(repr=False, hash=False)
    certificate: str | None
    client_key: str | None
    client_certificate: str | None
    insecure: bool
    timeout_s: float
    compression: str


def endpoints(config: TracingConfig) -> dict[str, OtlpEndpoint]:
    """Return the endpoint of each signal that is exported, by ``traces`` and ``metrics``.

    Raises:
        ConfigError: HTTP without a scheme, a certificate or key file that cannot be read, or a client key without its
            certificate.
    """
    found = {}
    if config.export_traces:
        found["traces"] = _endpoint(config, "traces", config.otel.traces)
    if config.export_metrics:
        found["metrics"] = _endpoint(config, "metrics", config.otel.metrics)
    return found


def _endpoint(config: TracingConfig, signal: str, settings: SignalSettings) -> OtlpEndpoint:
    protocol = config.otlp_protocol or settings.protocol or "grpc"
    is_base = config.otlp_endpoint is not None or settings.endpoint is None or settings.endpoint_is_base
    url = config.otlp_endpoint or settings.endpoint or _DEFAULT_ENDPOINTS[protocol]
    scheme = urlsplit(url).scheme if "://" in url else ""
    if protocol == "http/protobuf":
        shown = hide_credentials(url)
        require(bool(scheme), "OTLP endpoint", shown, "http:// or https:// in front when the protocol is http/protobuf")
        if is_base:
            parts = urlsplit(url)
            url = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/v1/{signal}"))
    insecure = settings.insecure if config.otlp_insecure is None else config.otlp_insecure
    certificate = config.otlp_certificate or settings.certificate
    for purpose, path in (
        ("certificate", certificate),
        ("client key", settings.client_key),
        ("client certificate", settings.client_certificate),
    ):
        readable = path is None or os.access(path, os.R_OK)
        require(readable, f"OTLP {purpose}", path, "the path of a PEM file that can be read")
    if (settings.client_key is None) != (settings.client_certificate is None):
        raise ConfigError("an OTLP client key and client certificate go together: set both or neither")
    return OtlpEndpoint(
        url=url,
        protocol=protocol,
        headers=settings.headers if config.otlp_headers is None else config.otlp_headers,
        certificate=certificate,
        client_key=settings.client_key,
        client_certificate=settings.client_certificate,
        insecure=scheme == "http" or (not scheme and insecure),
        timeout_s=settings.timeout_s,
        compression=settings.compression,
    )


def guess_protocol(url: str) -> str:
    """Return ``http/protobuf`` for a URL with OTLP/HTTP's port 4318 or with a path, else ``grpc``.

    Raises:
        ConfigError: the URL's port is no number.
    """
    parts = urlsplit(url if "://" in url else f"//{url}")
    try:
        is_http = parts.port == 4318 or parts.path.strip("/") != ""  # noqa: PLR2004 - the port that OTLP/HTTP is assigned
    except ValueError:
        raise ConfigError(
            f"OTLP endpoint {show_value(url)} cannot be used: its port is no number from 1 to 65535"
        ) from None
    return "http/protobuf" if is_http else "grpc"
