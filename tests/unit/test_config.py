from __future__ import annotations

import math
import os
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from runspan._endpoints import endpoints
from runspan._otel_env import OtelSettings
from runspan.capture import CaptureSchedule
from runspan.config import ALERT_RULES, TracingConfig, default_root, ensure_root
from runspan.errors import ConfigError
from runspan.redaction import BUILTIN_PATTERNS


def _from_env(**environ: str) -> TracingConfig:
    return TracingConfig.from_env(environ)


def test_defaults_are_the_documented_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config made without arguments has the defaults of the table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNSPAN_DIR", raising=False)
    config = TracingConfig()
    assert (config.tracing_enabled, config.export_otlp, config.strict) == (True, False, False)
    assert (config.shutdown_timeout_s, config.fsync_interval_s, config.max_file_bytes) == (2.0, 0.0, 268_435_456)
    assert (config.metric_interval_s, config.heartbeat_s) == (10.0, 10.0)
    assert (config.max_exported_spans, config.max_metric_keys) == (1500, 2000)
    assert (config.stop_on_error, config.stop_on_critical, config.alert_webhook) == (False, False, None)
    assert config.alert_rules == ALERT_RULES
    assert config.capture == CaptureSchedule(wait=10, warmup=1, active=1, repeat=1, slow_factor=3.0, ranks=16)
    assert config.redact == BUILTIN_PATTERNS
    assert config.trace_dir == tmp_path / ".runspan" / "runs"
    assert (config.golden_trace_path, config.capture_output) == (None, False)


def test_every_field_has_a_variable(tmp_path: Path) -> None:
    """RUNSPAN_<FIELD> sets each field but otel, which is the OTEL_* variables."""
    environ = {
        "RUNSPAN_TRACING_ENABLED": "no",
        "RUNSPAN_EXPORT_OTLP": "true",
        "RUNSPAN_OTLP_ENDPOINT": "http://collector:4318",
        "RUNSPAN_OTLP_PROTOCOL": "http",
        "RUNSPAN_OTLP_HEADERS": "Api-Key=a%2Cb",
        "RUNSPAN_OTLP_CERTIFICATE": str(tmp_path / "ca.pem"),
        "RUNSPAN_OTLP_INSECURE": "true",
        "RUNSPAN_GOLDEN_TRACE_PATH": str(tmp_path / "golden.jsonl"),
        "RUNSPAN_TRACE_DIR": str(tmp_path / "traces"),
        "RUNSPAN_STRICT": "1",
        "RUNSPAN_SHUTDOWN_TIMEOUT_S": "0",
        "RUNSPAN_FSYNC_INTERVAL_S": "1.5",
        "RUNSPAN_MAX_FILE_BYTES": "1MiB",
        "RUNSPAN_METRIC_INTERVAL_S": "3",
        "RUNSPAN_HEARTBEAT_S": "4",
        "RUNSPAN_CAPTURE": "wait=3,ranks=2",
        "RUNSPAN_MAX_EXPORTED_SPANS": "10",
        "RUNSPAN_MAX_METRIC_KEYS": "20",
        "RUNSPAN_CAPTURE_OUTPUT": "on",
        "RUNSPAN_REDACT": "patient_id, mrn",
        "RUNSPAN_STOP_ON_ERROR": "true",
        "RUNSPAN_STOP_ON_CRITICAL": "true",
        "RUNSPAN_ALERT_WEBHOOK": "https://hooks.example/x",
        "RUNSPAN_ALERT_RULES": "loss_spike,stalled_step",
    }
    assert set(environ) == {f"RUNSPAN_{each.name.upper()}" for each in fields(TracingConfig) if each.name != "otel"}
    config = TracingConfig.from_env(environ)
    assert config == TracingConfig(
        tracing_enabled=False,
        export_otlp=True,
        otlp_endpoint="http://collector:4318",
        otlp_protocol="http/protobuf",
        otlp_headers={"api-key": "a,b"},
        otlp_certificate=str(tmp_path / "ca.pem"),
        otlp_insecure=True,
        otel=OtelSettings(),
        golden_trace_path=tmp_path / "golden.jsonl",
        trace_dir=tmp_path / "traces",
        strict=True,
        shutdown_timeout_s=0.0,
        fsync_interval_s=1.5,
        max_file_bytes=1 << 20,
        metric_interval_s=3.0,
        heartbeat_s=4.0,
        capture=CaptureSchedule(wait=3, ranks=2),
        max_exported_spans=10,
        max_metric_keys=20,
        capture_output=True,
        redact=(*BUILTIN_PATTERNS, "patient_id", "mrn"),
        stop_on_error=True,
        stop_on_critical=True,
        alert_webhook="https://hooks.example/x",
        alert_rules=("loss_spike", "stalled_step"),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRACING_ENABLED", "perhaps"),
        ("OTLP_ENDPOINT", "gopher://x"),
        ("OTLP_ENDPOINT", "http://x:4318/v1/traces"),
        ("OTLP_PROTOCOL", "http/json"),
        ("OTLP_HEADERS", "no-equals-sign"),
        ("SHUTDOWN_TIMEOUT_S", "-1"),
        ("SHUTDOWN_TIMEOUT_S", "inf"),
        ("METRIC_INTERVAL_S", "0"),
        ("HEARTBEAT_S", "nan"),
        ("MAX_FILE_BYTES", "5"),
        ("MAX_EXPORTED_SPANS", "0"),
        ("MAX_METRIC_KEYS", "1.5"),
        ("CAPTURE", "often"),
        ("ALERT_WEBHOOK", "hooks.example"),
        ("ALERT_RULES", "loss_spik"),
    ],
)
def test_an_unreadable_variable_is_named(name: str, value: str) -> None:
    """The ConfigError names the variable and says what it takes."""
    with pytest.raises(ConfigError, match=rf"RUNSPAN_{name}\b.* take"):
        TracingConfig.from_env({f"RUNSPAN_{name}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tracing_enabled", 1),
        ("strict", None),
        ("export_otlp", "yes"),
        ("otlp_endpoint", "localhost port"),
        ("otlp_endpoint", 4317),
        ("otlp_protocol", "udp"),
        ("otlp_protocol", 5),
        ("otlp_headers", {"a": 1}),
        ("otlp_headers", {"a b": "x"}),
        ("otlp_headers", {"a": "x\ny"}),
        ("otlp_headers", "a=b"),
        ("otlp_insecure", "no"),
        ("otel", {}),
        ("golden_trace_path", 3),
        ("trace_dir", ""),
        ("shutdown_timeout_s", math.inf),
        ("shutdown_timeout_s", True),
        ("metric_interval_s", 0),
        ("max_file_bytes", 1e6),
        ("max_file_bytes", 10),
        ("max_metric_keys", -1),
        ("capture", "wait=1"),
        ("redact", "password"),
        ("redact", [""]),
        ("alert_webhook", "ftp://x"),
        ("alert_rules", ["unknown"]),
    ],
)
def test_a_wrong_argument_is_refused_when_the_config_is_made(name: str, value: Any) -> None:
    """Construction checks type and range of every field and names the one that is wrong."""
    with pytest.raises(ConfigError, match=name):
        TracingConfig(**{name: value})


@pytest.mark.parametrize("environ", ["text", 3, ["RUNSPAN_STRICT"]])
def test_an_environment_that_is_no_mapping_is_refused(environ: Any) -> None:
    """from_env says what it takes."""
    with pytest.raises(ConfigError, match=r"environ=.* takes a mapping"):
        TracingConfig.from_env(environ)


class _Unspeakable:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize("value", [_Unspeakable(), "x" * 100_000, ["http://u:hunter2@host"]])
@pytest.mark.parametrize("name", ["strict", "shutdown_timeout_s", "otlp_protocol", "otel"])
def test_an_error_shows_a_bounded_value_without_credentials(name: str, value: Any) -> None:
    """Whatever is passed, the ConfigError is short, names the field and holds no password."""
    with pytest.raises(ConfigError, match=name) as caught:
        TracingConfig(**{name: value})
    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_export_is_on_for_the_signal_whose_endpoint_is_set() -> None:
    """from_env turns a signal on by its own or the general endpoint."""
    traces_only = _from_env(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://t:4317")
    assert (traces_only.export_otlp, traces_only.export_traces, traces_only.export_metrics) == (True, True, False)
    both = _from_env(OTEL_EXPORTER_OTLP_ENDPOINT="http://g:4317")
    assert (both.export_traces, both.export_metrics) == (True, True)
    neither = _from_env()
    assert (neither.export_otlp, neither.export_traces, neither.export_metrics) == (False, False, False)
    off = _from_env(OTEL_EXPORTER_OTLP_ENDPOINT="http://g:4317", RUNSPAN_EXPORT_OTLP="false")
    assert (off.export_traces, off.export_metrics) == (False, False)
    no_metrics = _from_env(OTEL_EXPORTER_OTLP_ENDPOINT="http://g:4317", OTEL_METRICS_EXPORTER="none")
    assert (no_metrics.export_traces, no_metrics.export_metrics) == (True, False)


def test_export_asked_for_without_an_endpoint_goes_to_localhost() -> None:
    """Both signals go to the protocol's default port."""
    config = TracingConfig(otel=OtelSettings()).with_otlp_export()
    assert {signal: each.url for signal, each in endpoints(config).items()} == {
        "traces": "http://localhost:4317",
        "metrics": "http://localhost:4317",
    }
    http = endpoints(config.with_otlp_export(protocol="http/protobuf"))
    assert http["metrics"].url == "http://localhost:4318/v1/metrics"


def test_explicit_arguments_beat_the_environment() -> None:
    """Endpoint, protocol, headers and insecure given by hand win over OTEL_EXPORTER_OTLP_*, per-signal ones too."""
    otel = OtelSettings.from_env(
        {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://env:1/custom",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_HEADERS": "a=env",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3000",
        }
    )
    config = TracingConfig(
        export_otlp=True,
        otel=otel,
        otlp_endpoint="http://hand:2/base/",
        otlp_protocol="http",
        otlp_headers={"A": "hand"},
    )
    traces = endpoints(config)["traces"]
    assert (traces.url, traces.protocol, dict(traces.headers)) == (
        "http://hand:2/base/v1/traces",
        "http/protobuf",
        {"a": "hand"},
    )
    assert (traces.timeout_s, traces.insecure) == (3.0, True)


def test_http_appends_the_signals_path_to_the_general_endpoint_only() -> None:
    """A signal's own endpoint is used as it is."""
    config = _from_env(
        OTEL_EXPORTER_OTLP_ENDPOINT="https://g:4318/otlp",
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="https://m:4318",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    found = endpoints(config)
    assert (found["traces"].url, found["metrics"].url) == ("https://g:4318/otlp/v1/traces", "https://m:4318")
    assert not found["traces"].insecure


@pytest.mark.parametrize(
    ("endpoint", "insecure", "expected"),
    [("http://h:1", False, True), ("https://h:1", True, False), ("h:1", True, True), ("h:1", False, False)],
)
def test_the_scheme_decides_over_tls_before_the_setting(endpoint: str, insecure: bool, expected: bool) -> None:
    """An http URL goes without TLS, an https one with it, and only an endpoint without a scheme asks the setting."""
    config = TracingConfig(export_otlp=True, otel=OtelSettings(), otlp_endpoint=endpoint, otlp_insecure=insecure)
    assert endpoints(config)["traces"].insecure is expected


def test_what_an_export_cannot_use_is_refused(tmp_path: Path) -> None:
    """HTTP without a scheme, a missing certificate and half a client identity are ConfigErrors."""
    base = TracingConfig(export_otlp=True, otel=OtelSettings(), otlp_endpoint="host:4318")
    with pytest.raises(ConfigError, match="http://") as caught:
        endpoints(replace(base, otlp_endpoint="u:hunter2@host:4318", otlp_protocol="http/protobuf"))
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        endpoints(replace(base, otlp_certificate=str(tmp_path / "missing.pem")))
    key = tmp_path / "key.pem"
    key.touch()
    otel = OtelSettings.from_env({"OTEL_EXPORTER_OTLP_CLIENT_KEY": str(key)})
    with pytest.raises(ConfigError, match="client certificate"):
        endpoints(replace(base, otel=otel))


def test_secrets_are_not_in_the_repr() -> None:
    """Headers, the webhook and credentials in an endpoint never show, in the config nor in its endpoints."""
    config = TracingConfig(
        export_otlp=True,
        otel=OtelSettings.from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://u:hunter2@env"}),
        otlp_endpoint="https://u:hunter2@hand",
        otlp_headers={"authorization": "hunter2"},
        alert_webhook="https://hooks.example/hunter2",
    )
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr(endpoints(config))


@pytest.mark.parametrize("wrong", [{"otlp_headers": {"a": "hunter2\n"}}, {"alert_webhook": "hunter2"}])
def test_secrets_are_not_in_errors(wrong: dict[str, Any]) -> None:
    """A wrong header or webhook is refused without being shown."""
    with pytest.raises(ConfigError) as caught:
        TracingConfig(**wrong)
    assert "hunter2" not in str(caught.value)


def test_constructors_start_from_the_defaults_or_from_an_instance() -> None:
    """On the class they make a config, on an instance they keep what it has."""
    assert TracingConfig.with_otlp_export().export_otlp
    strict = TracingConfig(strict=True)
    assert strict.with_otlp_export("http://x:1").strict
    assert strict.with_otlp_export("http://x:1").otlp_endpoint == "http://x:1"
    assert strict.with_golden_trace_path("g.jsonl").golden_trace_path == Path.cwd() / "g.jsonl"
    assert TracingConfig.with_golden_trace_path("/g").with_otlp_export().golden_trace_path == Path("/g")
    disabled = strict.with_otlp_export().disabled()
    assert (disabled.tracing_enabled, disabled.export_otlp, disabled.export_traces, disabled.strict) == (
        False,
        False,
        False,
        True,
    )


def test_looking_a_constructor_up_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the call makes a config, so that help() and the like work in any environment."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "broken")
    constructor = TracingConfig.with_otlp_export
    assert constructor.__doc__
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER"):
        constructor()


def test_otel_sdk_disabled_equals_disabled() -> None:
    """OTEL_SDK_DISABLED stops spans and export, whatever else asks for them."""
    config = _from_env(OTEL_SDK_DISABLED="true", RUNSPAN_EXPORT_OTLP="true", RUNSPAN_TRACING_ENABLED="true")
    assert (config.tracing_enabled, config.export_otlp) == (False, False)
    assert not config.with_otlp_export().export_metrics


def test_the_standards_metric_interval_stands_in() -> None:
    """OTEL_METRIC_EXPORT_INTERVAL, in milliseconds, holds where RUNSPAN_METRIC_INTERVAL_S is not set."""
    assert _from_env(OTEL_METRIC_EXPORT_INTERVAL="500").metric_interval_s == 0.5
    both = _from_env(OTEL_METRIC_EXPORT_INTERVAL="500", RUNSPAN_METRIC_INTERVAL_S="7")
    assert both.metric_interval_s == 7.0


def test_a_config_is_frozen_hashable_and_pickles() -> None:
    """It can be handed to a spawned worker and cannot be changed."""
    config = TracingConfig(otlp_headers={"a": "b"}, otel=OtelSettings(resource_attributes={"team": "x"}))
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - our own bytes
    assert hash(config) == hash(replace(config))
    with pytest.raises(AttributeError):
        config.strict = True  # type: ignore[misc]


@pytest.mark.parametrize("word", ["none", "off", "NONE"])
def test_the_file_can_be_turned_off_by_a_variable(word: str) -> None:
    """RUNSPAN_TRACE_DIR=none means no file."""
    assert _from_env(RUNSPAN_TRACE_DIR=word).trace_dir is None


def test_relative_folders_do_not_move_with_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trace_dir is absolute from the start."""
    monkeypatch.chdir(tmp_path)
    assert TracingConfig(trace_dir=Path("here")).trace_dir == tmp_path / "here"
    assert _from_env(RUNSPAN_DIR="there").trace_dir == tmp_path / "there" / "runs"


def test_the_root_is_the_variables_the_nearest_ancestors_the_git_roots_or_the_working_directorys(
    tmp_path: Path,
) -> None:
    """The root is looked for in the documented order."""
    deep = tmp_path / "project" / "src" / "deep"
    deep.mkdir(parents=True)
    assert default_root({}, deep) == deep / ".runspan"
    (tmp_path / "project" / ".git").write_text("gitdir: elsewhere\n")  # a worktree's is a file
    assert default_root({}, deep) == tmp_path / "project" / ".runspan"
    (tmp_path / ".runspan").mkdir()
    assert default_root({}, deep) == tmp_path / ".runspan"
    (deep.parent / ".runspan").mkdir()
    assert default_root({}, deep) == deep.parent / ".runspan"
    assert default_root({"RUNSPAN_DIR": "data"}, deep) == deep / "data"
    assert not (deep / "data").exists()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """RUNSPAN_DIR naming a file is a ConfigError, as is a root that a file stands in the way of."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="RUNSPAN_DIR"):
        default_root({"RUNSPAN_DIR": str(tmp_path / "file")}, tmp_path)
    with pytest.raises(ConfigError, match="file"):
        ensure_root(tmp_path / "file")
    with pytest.raises(ConfigError, match="below"):
        ensure_root(tmp_path / "file" / "below")


def test_a_missing_working_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory that was removed is a ConfigError, not a FileNotFoundError."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="working directory"):
        default_root({})


def test_the_root_keeps_itself_out_of_version_control(tmp_path: Path) -> None:
    """A new root gets a .gitignore of ``*``; one that is there stays, and a working tree's top gets none."""
    root = ensure_root(tmp_path / "a" / ".runspan")
    assert (root / ".gitignore").read_text() == "*\n"
    (root / ".gitignore").write_text("mine\n")
    assert (ensure_root(root) / ".gitignore").read_text() == "mine\n"
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    assert os.listdir(ensure_root(tmp_path / "tree")) == [".git"]  # noqa: PTH208 - names are what is compared
