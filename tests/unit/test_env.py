from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan._env import EnvReader, check_endpoint, show_value
from runspan._otel_env import OtelSettings, SignalSettings
from runspan.errors import ConfigError


class _Unspeakable:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "'text'"),
        ("what?", "'what?'"),
        ("http://u:hunter2@host/path?token=hunter2", "'http://***@host/path'"),
        (b"http://u:hunter2@host", "b'http://***@host'"),
        (["http://u:hunter2@host", 1], "['http://***@host', 1]"),
        ("x" * 300, f"'{'x' * 200}…'"),
        ([0] * 100_000, f"[{'0, ' * 66}0…"),
        (_Unspeakable(), "<_Unspeakable object>"),
    ],
)
def test_a_value_is_shown_short_and_without_credentials(value: object, shown: str) -> None:
    """What an error shows of a value is bounded, holds no credentials of URLs, and never raises."""
    assert show_value(value) == shown


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_a_blank_variable_is_one_that_is_not_set(blank: str) -> None:
    """Every reader returns None for a variable that is blank, as for one that is missing."""
    env = EnvReader({"X": blank})
    for name in ("X", "MISSING"):
        readers = (env.text, env.flag, env.integer, env.number, env.size, env.words, env.pairs)
        assert [read(name) for read in readers] == [None] * len(readers)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", True), ("yes", True), ("off", False), ("0", False)]
)
def test_flag_takes_the_usual_spellings(text: str, value: bool) -> None:
    """A flag is read from any usual spelling, in any case."""
    assert EnvReader({"X": text}).flag("X") is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("256MiB", 2**28),
        ("64 KiB", 2**16),
        ("1GB", 10**9),
        ("1.5kB", 1500),
        ("2tib", 2**41),
    ],
)
def test_size_takes_bytes_with_and_without_a_unit(text: str, value: int) -> None:
    """A size is plain bytes, decimal or binary units."""
    assert EnvReader({"X": text}).size("X") == value


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("flag", "maybe"),
        ("integer", "1.5"),
        ("integer", "-1"),
        ("integer", "9" * 5000),
        ("number", "nan"),
        ("number", "inf"),
        ("number", "-0.1"),
        ("number", "ten"),
        ("size", "12XB"),
        ("size", "-1"),
        ("size", "1e9"),
        ("pairs", "a"),
        ("pairs", "=b"),
        ("pairs", "a=%ff"),
    ],
)
def test_an_unreadable_value_names_variable_value_and_what_it_takes(reader: str, text: str) -> None:
    """A ConfigError has the variable, the value (long ones cut) and what the variable takes."""
    with pytest.raises(ConfigError) as caught:
        getattr(EnvReader({"THE_VARIABLE": text}), reader)("THE_VARIABLE")
    message = str(caught.value)
    assert message.startswith(f"THE_VARIABLE='{text[:200]}")
    assert "THE_VARIABLE takes" in message
    assert len(message) < 400


def test_pairs_are_percent_decoded() -> None:
    """Both sides are percent-decoded, white space and empty items left out, and a value may hold an equals sign."""
    env = EnvReader({"X": " team = a%2Cb%3Dc , , k%20v=x=y%C3%A9"})
    assert env.pairs("X") == {"team": "a,b=c", "k v": "x=yé"}


def test_a_secret_list_is_not_shown_in_its_error() -> None:
    """The headers' value never gets into an error message."""
    with pytest.raises(ConfigError) as caught:
        OtelSettings.from_env({"OTEL_EXPORTER_OTLP_HEADERS": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "OTEL_EXPORTER_OTLP_HEADERS='***'" in str(caught.value)


@given(st.dictionaries(st.sampled_from(["OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_TRACES_SAMPLER", "TRACEPARENT"]), st.text()))
def test_any_environment_is_read_or_refused_by_a_config_error(environ: dict[str, str]) -> None:
    """No value leads to another error than ConfigError."""
    try:
        settings = OtelSettings.from_env(environ)
    except ConfigError as error:
        assert any(name in str(error) for name in environ)  # noqa: PT017 - either outcome is right
    else:
        assert settings.traceparent == (environ.get("TRACEPARENT", "").strip() or None)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://localhost:4318",
        "https://user:pw@collector.example/otlp",
        "collector:4317",
        "http://[::1]:4317",
        "[::1]:4317",
    ],
)
def test_endpoints_of_every_accepted_form(endpoint: str) -> None:
    """HTTP and HTTPS URLs and host:port are endpoints, IPv6 too."""
    assert check_endpoint("X", endpoint) == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "ftp://host:1",
        "http://",
        "http://:4318",
        "http://host:99999",
        "http://host:0",
        "http://ho st",
        "http://[::1",
        "/path",
    ],
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    """Another scheme, no host, an impossible port and white space are refused by name."""
    with pytest.raises(ConfigError, match="OTEL_X="):
        check_endpoint("OTEL_X", endpoint)


@pytest.mark.parametrize(
    "endpoint", ["ftp://me:hunter2@host", "http://me:hunter2@host:99999/x?key=hunter2", "me:hunter2@"]
)
def test_credentials_of_a_wrong_endpoint_are_hidden(endpoint: str) -> None:
    """The error about an endpoint shows neither its password nor its query."""
    with pytest.raises(ConfigError) as caught:
        check_endpoint("X", endpoint)
    assert "hunter2" not in str(caught.value)


def test_a_signals_own_variables_beat_the_general_ones() -> None:
    """Each signal reads its own variable first; only the general endpoint is a base."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://general:4318",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:9/custom",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "X-Team=a%20b",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "Authorization=Bearer%20t",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_METRICS_INSECURE": "true",
    }
    settings = OtelSettings.from_env(environ)
    assert settings.traces == SignalSettings(
        endpoint="http://traces:9/custom",
        protocol="http/protobuf",
        headers={"authorization": "Bearer t"},
        timeout_s=2.5,
        compression="gzip",
    )
    assert settings.metrics == SignalSettings(
        endpoint="http://general:4318",
        endpoint_is_base=True,
        protocol="grpc",
        headers={"x-team": "a b"},
        timeout_s=2.5,
        compression="gzip",
        insecure=True,
    )
    assert "Bearer t" not in repr(settings)


def test_a_specific_limit_beats_the_general_one() -> None:
    """Limits of spans, events and links fall back to the general attribute limits."""
    environ = {
        "OTEL_ATTRIBUTE_COUNT_LIMIT": "64",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "32",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "100",
        "OTEL_SPAN_LINK_COUNT_LIMIT": "0",
    }
    limits = OtelSettings.from_env(environ).limits
    assert (limits.attribute_count, limits.event_attribute_count, limits.link_attribute_count) == (32, 64, 64)
    assert (limits.attribute_value_length, limits.link_count, limits.event_count) == (100, 0, None)


def test_the_sampler_argument_is_read_for_ratio_samplers_only() -> None:
    """Another sampler's argument is not ours to judge."""
    ratio = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    assert OtelSettings.from_env(ratio).sampler_ratio == 0.25
    always = {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_SAMPLER_ARG": "endpoint=x"}
    assert OtelSettings.from_env(always).sampler_ratio == 1.0
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER_ARG='2'"):
        OtelSettings.from_env({**ratio, "OTEL_TRACES_SAMPLER_ARG": "2"})


def test_an_exporter_of_none_turns_its_signal_off() -> None:
    """OTEL_METRICS_EXPORTER=none is honoured."""
    settings = OtelSettings.from_env({"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "otlp"})
    assert (settings.traces.exporter_enabled, settings.metrics.exporter_enabled) == (True, False)
