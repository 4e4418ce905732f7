"""TracingConfig: every setting of a run, validated when it is made."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from urllib.parse import urlsplit

from runspan._env import EnvReader, check_endpoint, means_none, parse_protocol, require, show_value
from runspan._otel_env import OtelSettings, SignalSettings
from runspan._root import default_root, ensure_root, expand_user
from runspan.capture import CaptureSchedule
from runspan.errors import ConfigError
from runspan.redaction import BUILTIN_PATTERNS

__all__ = ["ALERT_RULES", "TracingConfig", "default_root", "ensure_root"]

P = ParamSpec("P")
T = TypeVar("T")

#: The built-in alert rules, by the names that ``alert_rules`` takes.
ALERT_RULES = (
    "nonfinite_metric",
    "loss_spike",
    "stalled_step",
    "throughput_drop",
    "straggling_rank",
    "disk_nearly_full",
    "events_dropped",
)
_FLAGS = ("tracing_enabled", "export_otlp", "strict", "capture_output", "stop_on_error", "stop_on_critical")
_TEXTS = ("otlp_endpoint", "otlp_protocol", "otlp_certificate", "golden_trace_path", "trace_dir", "alert_webhook")
_MIN_SECONDS = {"shutdown_timeout_s": 0.0, "fsync_interval_s": 0.0, "metric_interval_s": 0.001, "heartbeat_s": 0.001}
#: A century: beyond it a deadline in nanoseconds fits into no clock's range.
_MAX_SECONDS = 3.2e9
_MIN_COUNTS = {"max_exported_spans": 1, "max_metric_keys": 0}
_MIN_PART_BYTES = 1024
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class _Derivation(Generic[P]):
    """A constructor that is also a method: on the class it starts from the defaults, on an instance from its values."""

    def __init__(self, derive: Callable[Concatenate[TracingConfig, P], TracingConfig]) -> None:
        self._derive = derive
        self.__doc__ = derive.__doc__

    def __get__(self, instance: TracingConfig | None, owner: type[TracingConfig]) -> Callable[P, TracingConfig]:
        if instance is not None:
            return MethodType(self._derive, instance)

        @functools.wraps(self._derive)
        def from_defaults(*args: P.args, **kwargs: P.kwargs) -> TracingConfig:
            # Made at the call: looking the constructor up reads no environment.
            return self._derive(owner(), *args, **kwargs)

        return from_defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """The settings of a run; immutable, and complete when made.

    ``otel`` and ``trace_dir`` default to what the process's environment and working directory say when the config is
    made. ``OTEL_SDK_DISABLED`` disables, whatever the fields say.

    Attributes:
        tracing_enabled: False: no OpenTelemetry span and no export; file, metrics and storage still work.
        export_otlp: ship spans and metrics to an OTLP endpoint.
        otlp_endpoint: base URL of the endpoint for both signals; None: ``OTEL_EXPORTER_OTLP_*``, else localhost.
        otlp_protocol: ``grpc`` or ``http/protobuf``; None: ``OTEL_EXPORTER_OTLP_*``, else ``grpc``.
        otlp_headers: sent with each export; None: ``OTEL_EXPORTER_OTLP_*``. Never part of the repr.
        otlp_certificate: path of the CA certificates, PEM; None: ``OTEL_EXPORTER_OTLP_*``.
        otlp_insecure: whether an endpoint without a scheme goes without TLS; None: ``OTEL_EXPORTER_OTLP_*``.
        otel: every other ``OTEL_*`` value.
        golden_trace_path: a trace to compare the finished run with.
        trace_dir: the folder that holds the run directories, absolute; None turns the file off.
        strict: what would be a counted warning during recording raises instead.
        shutdown_timeout_s: bound on what finish or process exit may wait for export, over all signals together.
        fsync_interval_s: how often the file is synced to disk; 0: never in between.
        max_file_bytes: size at which a trace file goes on in a new part.
        metric_interval_s: period of the metric export.
        heartbeat_s: period of the ``usage`` line, which is the heartbeat.
        capture: which steps are captured.
        max_exported_spans: exported spans a trace, over all ranks.
        max_metric_keys: exported metric keys a run.
        capture_output: copy stdout and stderr into the rank's log file.
        redact: names of secrets, see :class:`~runspan.redaction.Redactor`.
        stop_on_error: an alert of level error sets ``should_stop``.
        stop_on_critical: a critical alert sets ``should_stop``.
        alert_webhook: URL that alerts are posted to, as :class:`runspan._alert_webhook.AlertPayload`. Never part of
            the repr.
        alert_rules: the rules that are on: names of built-in ones, see :data:`ALERT_RULES`; and functions, among them
            built-in rules with other thresholds, see :mod:`runspan.alerts`.

    Raises:
        ConfigError: a value of another type, out of range, or an endpoint that is none.
    """

    tracing_enabled: bool = True
    export_otlp: bool = False
    otlp_endpoint: str | None = field(default=None, repr=False)  # it may hold a user name and password
    otlp_protocol: str | None = None
    otlp_headers: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    otlp_certificate: str | None = None
    otlp_insecure: bool | None = None
    otel: OtelSettings = field(default_factory=lambda: OtelSettings.from_env(os.environ))
    golden_trace_path: Path | None = None
    trace_dir: Path | None = field(default_factory=lambda: default_root() / "runs")
    strict: bool = False
    shutdown_timeout_s: float = 2.0
    fsync_interval_s: float = 0.0
    max_file_bytes: int = 256 * 1024 * 1024
    metric_interval_s: float = 10.0
    heartbeat_s: float = 10.0
    capture: CaptureSchedule = field(default_factory=CaptureSchedule)
    max_exported_spans: int = 1_500
    max_metric_keys: int = 2_000
    capture_output: bool = False
    redact: tuple[str, ...] = BUILTIN_PATTERNS
    stop_on_error: bool = False
    stop_on_critical: bool = False
    alert_webhook: str | None = field(default=None, repr=False)
    alert_rules: tuple[str | Callable[..., Any], ...] = ALERT_RULES

    def __post_init__(self) -> None:
        for name in _FLAGS:
            require(type(getattr(self, name)) is bool, name, getattr(self, name), "True or False")
        insecure = self.otlp_insecure
        require(insecure is None or type(insecure) is bool, "otlp_insecure", insecure, "True, False or None")
        for name, minimum in _MIN_SECONDS.items():
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            in_range = is_number and minimum <= value <= _MAX_SECONDS
            require(in_range, name, value, f"a number of seconds from {minimum:g} to {_MAX_SECONDS:g}")
            self._set(name, float(value))
        for name, minimum_count in {**_MIN_COUNTS, "max_file_bytes": _MIN_PART_BYTES}.items():
            value = getattr(self, name)
            in_range = type(value) is int and value >= minimum_count
            require(in_range, name, value, f"a whole number from {minimum_count} up")
        require(isinstance(self.otel, OtelSettings), "otel", self.otel, "OtelSettings")
        require(isinstance(self.capture, CaptureSchedule), "capture", self.capture, "a CaptureSchedule")
        checks: dict[str, Callable[[str, Any], object]] = {
            **_TEXT_CHECKS,
            "otlp_headers": _checked_headers,
            "golden_trace_path": _checked_path,
            "trace_dir": _checked_path,
            "redact": _checked_names,
            "alert_rules": _checked_rules,
        }
        for name, check in checks.items():
            if getattr(self, name) is not None:
                self._set(name, check(name, getattr(self, name)))
        if self.otlp_certificate is not None:
            self._set("otlp_certificate", str(_checked_path("otlp_certificate", self.otlp_certificate)))
        if self.otel.sdk_disabled:
            self._set("tracing_enabled", False)
            self._set("export_otlp", False)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def export_traces(self) -> bool:
        """Whether spans are shipped: export is on, and spans have an endpoint or no signal has (then: localhost)."""
        return self._exports(self.otel.traces, self.otel.metrics)

    @property
    def export_metrics(self) -> bool:
        """Whether metrics are shipped, by the same rule as spans."""
        return self._exports(self.otel.metrics, self.otel.traces)

    def _exports(self, signal: SignalSettings, other: SignalSettings) -> bool:
        if not (self.tracing_enabled and self.export_otlp and signal.exporter_enabled):
            return False
        return self.otlp_endpoint is not None or signal.endpoint is not None or other.endpoint is None

    @_Derivation
    def disabled(self) -> TracingConfig:
        """Return this config without spans and export: file, metrics and storage go on."""
        return replace(self, tracing_enabled=False, export_otlp=False)

    @_Derivation
    def with_otlp_export(self, endpoint: str | None = None, protocol: str | None = None) -> TracingConfig:
        """Return this config with export on.

        Args:
            endpoint: base URL; None: as the config has it.
            protocol: ``grpc`` or ``http/protobuf``; None: as the config has it.
        """
        return replace(
            self,
            export_otlp=True,
            otlp_endpoint=self.otlp_endpoint if endpoint is None else endpoint,
            otlp_protocol=self.otlp_protocol if protocol is None else protocol,
        )

    @_Derivation
    def with_golden_trace_path(self, path: str | os.PathLike[str]) -> TracingConfig:
        """Return this config with a trace to compare the finished run with."""
        return replace(self, golden_trace_path=_checked_path("golden_trace_path", path))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> TracingConfig:
        """Read every field from its variable ``RUNSPAN_<FIELD>``; what has none keeps its default.

        ``RUNSPAN_TRACE_DIR=none`` (or ``off``) turns the file off, ``RUNSPAN_ALERT_RULES=none`` the alert rules,
        ``RUNSPAN_REDACT`` adds to the built-in names, and ``OTEL_METRIC_EXPORT_INTERVAL`` stands in for
        ``RUNSPAN_METRIC_INTERVAL_S``. Export is on where an endpoint is set, unless ``RUNSPAN_EXPORT_OTLP`` says
        otherwise.

        Args:
            environ: the variables; None: the process's.

        Raises:
            ConfigError: a variable cannot be read.
        """
        environ = os.environ if environ is None else environ
        require(isinstance(environ, Mapping), "environ", environ, "a mapping of variables, such as os.environ")
        env = EnvReader(environ)
        otel = OtelSettings.from_env(environ)
        values: dict[str, Any] = {name: env.flag(_variable(name)) for name in (*_FLAGS, "otlp_insecure")}
        values |= {name: env.text(_variable(name)) for name in _TEXTS}
        values |= {name: env.number(_variable(name), minimum=minimum) for name, minimum in _MIN_SECONDS.items()}
        values |= {name: env.integer(_variable(name), minimum=minimum) for name, minimum in _MIN_COUNTS.items()}
        values["max_file_bytes"] = env.size(_variable("max_file_bytes"), minimum=_MIN_PART_BYTES)
        values["otlp_headers"] = env.pairs(_variable("otlp_headers"), secret=True)
        values["capture"] = _parsed(env, "capture", CaptureSchedule.parse)
        for name, check in _TEXT_CHECKS.items():
            if values[name] is not None:
                values[name] = check(_variable(name), values[name])
        if (rules := env.words(_variable("alert_rules"))) is not None:
            is_off = len(rules) == 1 and means_none(rules[0])
            values["alert_rules"] = () if is_off else _checked_rules(_variable("alert_rules"), rules)
        if (added := env.words(_variable("redact"))) is not None:
            values["redact"] = (*BUILTIN_PATTERNS, *added)
        if values["metric_interval_s"] is None:
            values["metric_interval_s"] = otel.metric_interval_s
        if values["export_otlp"] is None:
            endpoints_set = (values["otlp_endpoint"], otel.traces.endpoint, otel.metrics.endpoint)
            values["export_otlp"] = any(each is not None for each in endpoints_set)
        trace_dir = values.pop("trace_dir") or default_root(environ) / "runs"
        values = {name: value for name, value in values.items() if value is not None}
        return cls(otel=otel, trace_dir=None if means_none(str(trace_dir)) else trace_dir, **values)


def _variable(field_name: str) -> str:
    return f"RUNSPAN_{field_name.upper()}"


def _parsed(env: EnvReader, field_name: str, parse: Callable[[str], T]) -> T | None:
    text = env.text(_variable(field_name))
    try:
        return None if text is None else parse(text)
    except ConfigError as error:
        raise ConfigError(f"{_variable(field_name)}: {error}") from error


def _checked_base_url(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}={show_value(value)} cannot be used: it takes a URL")
    if urlsplit(check_endpoint(name, value)).path.endswith(("/v1/traces", "/v1/metrics")):
        raise ConfigError(f"{name} takes the base URL: leave out /v1/traces and /v1/metrics, which are appended to it")
    return value


def _checked_webhook(name: str, value: object) -> str:
    try:
        parts = urlsplit(value) if isinstance(value, str) and not re.search(r"\s", value) else None
        if parts is not None and parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return str(value)
    except ValueError:  # an impossible port, half an IPv6 address
        pass
    # The whole URL of a webhook is a credential, so the error shows none of it.
    raise ConfigError(f"{name}='***' cannot be used: it takes an http or https URL")


def _checked_rules(name: str, value: object) -> tuple[str | Callable[..., Any], ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name}={show_value(value)} cannot be used: it takes a list of names and functions")
    named = _checked_names(name, [rule for rule in value if not callable(rule)])
    unknown = sorted(set(named) - set(ALERT_RULES))
    require(not unknown, name, ",".join(unknown), f"some of {', '.join(ALERT_RULES)}; in code also functions")
    return tuple(value)


def _checked_names(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise ConfigError(f"{name}={show_value(value)} cannot be used: it takes a list of names")
    return tuple(value)


def _checked_path(name: str, value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ConfigError(f"{name}={show_value(value)} cannot be used: it takes a path")
    # Absolute, so that a later change of the working directory moves nothing.
    return Path(os.path.abspath(expand_user(os.fsdecode(value), name)))  # noqa: PTH100 - keeps symbolic links


def _checked_headers(name: str, value: object) -> dict[str, str]:
    items: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {None: None}
    for key, text in items.items():
        if not isinstance(key, str) or not isinstance(text, str) or not _HEADER_NAME.fullmatch(key) or "\n" in text:
            raise ConfigError(f"{name}='***' cannot be used: it takes header names and values, both one-line strings")
    return {key.lower(): text for key, text in items.items()}


#: What turns a text into a field's value, given the name that an error is to show.
_TEXT_CHECKS: dict[str, Callable[[str, str], object]] = {
    "otlp_endpoint": _checked_base_url,
    "otlp_protocol": parse_protocol,
    "alert_webhook": _checked_webhook,
}
