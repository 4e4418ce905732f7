"""OpenTelemetry's own variables, read once: what ``OTEL_*`` and the propagated trace context say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runspan._env import PROTOCOL_NAMES, PROTOCOLS, EnvReader, check_endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SAMPLERS", "OtelSettings", "SignalSettings", "SpanLimitSettings"]

#: The standard's samplers that the SDK has.
SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
_DEFAULT_SAMPLER = "parentbased_always_on"
_COMPRESSIONS = {"none": "none", "gzip": "gzip"}
_DEFAULT_TIMEOUT_S = 10.0
_OTEL_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSettings:
    """What ``OTEL_*`` says of one signal's export; a variable of the signal beats the general one.

    Attributes:
        exporter_enabled: False when ``OTEL_<SIGNAL>_EXPORTER`` is ``none``.
        endpoint: where to, None when no variable says so.
        endpoint_is_base: whether the endpoint is the general one, to which HTTP appends ``/v1/<signal>``.
        protocol: ``grpc`` or ``http/protobuf``, None when no variable says so.
        headers: sent with each request; names in lower case. Never part of the repr.
        certificate: path of the CA certificates, PEM.
        client_key: path of the client's key, PEM.
        client_certificate: path of the client's certificate, PEM.
        insecure: whether gRPC without a scheme in the endpoint goes without TLS.
        timeout_s: bound on one request. The variables are in milliseconds, as the standard has it, although the Python
            SDK reads them as seconds.
        compression: ``none`` or ``gzip``.
    """

    exporter_enabled: bool = True
    endpoint: str | None = field(default=None, repr=False)  # it may hold a user name and password
    endpoint_is_base: bool = False
    protocol: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None
    insecure: bool = False
    timeout_s: float = _DEFAULT_TIMEOUT_S
    compression: str = "none"

    @classmethod
    def from_env(cls, environ: Mapping[str, str], signal: str) -> SignalSettings:
        """Read the settings of ``traces`` or ``metrics``.

        Raises:
            ConfigError: a variable cannot be read.
        """
        env = EnvReader(environ)

        def name_of(setting: str) -> str:
            """Return the signal's own variable if it is set, else the general one."""
            own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{setting}"
            return own if env.text(own) is not None else f"OTEL_EXPORTER_OTLP_{setting}"

        endpoint_name = name_of("ENDPOINT")
        endpoint = env.text(endpoint_name)
        headers = env.pairs(name_of("HEADERS"), secret=True) or {}
        timeout_ms = env.number(name_of("TIMEOUT"), minimum=1)
        return cls(
            exporter_enabled="none" not in (env.words(f"OTEL_{signal.upper()}_EXPORTER") or ()),
            endpoint=None if endpoint is None else check_endpoint(endpoint_name, endpoint),
            endpoint_is_base=endpoint is not None and endpoint_name == "OTEL_EXPORTER_OTLP_ENDPOINT",
            protocol=env.choice(name_of("PROTOCOL"), PROTOCOLS, takes=PROTOCOL_NAMES),
            headers={key.lower(): value for key, value in headers.items()},
            certificate=env.text(name_of("CERTIFICATE")),
            client_key=env.text(name_of("CLIENT_KEY")),
            client_certificate=env.text(name_of("CLIENT_CERTIFICATE")),
            insecure=bool(env.choice(name_of("INSECURE"), _OTEL_FLAGS)),
            timeout_s=_DEFAULT_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000,
            compression=env.choice(name_of("COMPRESSION"), _COMPRESSIONS) or "none",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLimitSettings:
    """The ``OTEL_*`` limits of exported spans; None where no variable sets one.

    Attributes:
        attribute_count: attributes a span.
        attribute_value_length: characters a string attribute.
        event_count: events a span.
        link_count: links a span.
        event_attribute_count: attributes an event.
        link_attribute_count: attributes a link.
    """

    attribute_count: int | None = None
    attribute_value_length: int | None = None
    event_count: int | None = None
    link_count: int | None = None
    event_attribute_count: int | None = None
    link_attribute_count: int | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> SpanLimitSettings:
        """Read the limits; one for spans, events or links beats the general one.

        Raises:
            ConfigError: a variable cannot be read.
        """
        env = EnvReader(environ)

        def first(names: Sequence[str]) -> int | None:
            found = (env.integer(f"OTEL_{name}_LIMIT") for name in names)
            return next((value for value in found if value is not None), None)

        return cls(
            attribute_count=first(("SPAN_ATTRIBUTE_COUNT", "ATTRIBUTE_COUNT")),
            attribute_value_length=first(("SPAN_ATTRIBUTE_VALUE_LENGTH", "ATTRIBUTE_VALUE_LENGTH")),
            event_count=first(("SPAN_EVENT_COUNT",)),
            link_count=first(("SPAN_LINK_COUNT",)),
            event_attribute_count=first(("EVENT_ATTRIBUTE_COUNT", "ATTRIBUTE_COUNT")),
            link_attribute_count=first(("LINK_ATTRIBUTE_COUNT", "ATTRIBUTE_COUNT")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSettings:
    """Every ``OTEL_*`` variable that runspan honours, and the propagated trace context.

    Attributes:
        sdk_disabled: ``OTEL_SDK_DISABLED``.
        service_name: ``OTEL_SERVICE_NAME``.
        resource_attributes: ``OTEL_RESOURCE_ATTRIBUTES``.
        traces: the export of spans.
        metrics: the export of metrics.
        limits: bounds on exported spans.
        sampler: one of :data:`SAMPLERS`.
        sampler_ratio: ``OTEL_TRACES_SAMPLER_ARG`` of a ratio sampler, 0..1.
        max_queue_size: ``OTEL_BSP_MAX_QUEUE_SIZE``, spans.
        metric_interval_s: ``OTEL_METRIC_EXPORT_INTERVAL``, which is in milliseconds.
        traceparent: ``TRACEPARENT`` as it stands; a malformed one is no error here.
        tracestate: ``TRACESTATE`` as it stands.
    """

    sdk_disabled: bool = False
    service_name: str | None = None
    resource_attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    traces: SignalSettings = field(default_factory=SignalSettings)
    metrics: SignalSettings = field(default_factory=SignalSettings)
    limits: SpanLimitSettings = field(default_factory=SpanLimitSettings)
    sampler: str = _DEFAULT_SAMPLER
    sampler_ratio: float = 1.0
    max_queue_size: int | None = None
    metric_interval_s: float | None = None
    traceparent: str | None = None
    tracestate: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> OtelSettings:
        """Read all of them once.

        Raises:
            ConfigError: a variable cannot be read.
        """
        env = EnvReader(environ)
        sampler = env.choice("OTEL_TRACES_SAMPLER", {name: name for name in SAMPLERS}) or _DEFAULT_SAMPLER
        ratio = env.number("OTEL_TRACES_SAMPLER_ARG", maximum=1.0) if sampler.endswith("traceidratio") else None
        interval_ms = env.number("OTEL_METRIC_EXPORT_INTERVAL", minimum=1)
        return cls(
            sdk_disabled=bool(env.choice("OTEL_SDK_DISABLED", _OTEL_FLAGS)),
            service_name=env.text("OTEL_SERVICE_NAME"),
            resource_attributes=env.pairs("OTEL_RESOURCE_ATTRIBUTES") or {},
            traces=SignalSettings.from_env(environ, "traces"),
            metrics=SignalSettings.from_env(environ, "metrics"),
            limits=SpanLimitSettings.from_env(environ),
            sampler=sampler,
            sampler_ratio=1.0 if ratio is None else ratio,
            max_queue_size=env.integer("OTEL_BSP_MAX_QUEUE_SIZE", minimum=1),
            metric_interval_s=None if interval_ms is None else interval_ms / 1000,
            traceparent=env.text("TRACEPARENT"),
            tracestate=env.text("TRACESTATE"),
        )
