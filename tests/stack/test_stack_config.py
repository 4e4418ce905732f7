"""The shipped files are accepted by the programs that read them, and say what the stack promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runspan.semconv import SpanName
from support.stack import CONFIG_FOLDER, program_or_skip

_REPOSITORY = CONFIG_FOLDER.parent
_COMPOSE = _REPOSITORY / "docker-compose.yml"
_PINS = Path(__file__).with_name("programs")
#: What every service but the one-shot ones publishes, on loopback alone.
_PUBLISHED = {"collector": {4317, 4318, 4319}, "jaeger": {16686}, "prometheus": {9090}, "grafana": {3000}}


def _tool(name: str) -> str:
    """Return the path of a program of the `dev` extra, which stands beside the interpreter."""
    return str(Path(sys.executable).with_name(name))


def _run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """Return docker-compose.yml as Compose itself reads it."""
    command = (_tool("docker-compose"), "--file", _COMPOSE, "config", "--format", "json")
    done = _run(*command, GF_SECURITY_ADMIN_PASSWORD="for-this-test")  # noqa: S106 - of no service
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    return services


def test_the_compose_file_follows_the_specification() -> None:
    """The published schema of Compose accepts the file."""
    done = _run(_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", _COMPOSE)
    assert done.returncode == 0, done.stdout


def test_compose_asks_for_the_admin_password() -> None:
    """Without a password for Grafana's admin nothing starts, and the message says what to do."""
    environ = {name: value for name, value in os.environ.items() if name != "GF_SECURITY_ADMIN_PASSWORD"}
    command = [_tool("docker-compose"), "--file", str(_COMPOSE), "--env-file", os.devnull, "config"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "make up" in done.stderr


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    """Six ports, on 127.0.0.1; Jaeger's own OTLP port and every service's own metrics stay inside."""
    published = {
        name: {int(port["published"]) for port in service["ports"] if port["host_ip"] == "127.0.0.1"}
        for name, service in compose.items()
        if "ports" in service
    }
    assert published == _PUBLISHED
    assert sum(len(service.get("ports", [])) for service in compose.values()) == 6


def test_services_are_hardened(compose: dict[str, Any]) -> None:
    """Each has a read-only root, no capabilities, no new privileges, a memory limit, and read-only configuration."""
    for name, service in compose.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert int(service["mem_limit"]) > 0, name
        for volume in service["volumes"]:
            assert volume["type"] == "volume" or volume["read_only"] is True, name


def test_mounted_files_are_in_the_repository(compose: dict[str, Any]) -> None:
    """A bind mount of what is not there would make an empty folder of it."""
    sources = {
        volume["source"] for service in compose.values() for volume in service["volumes"] if volume["type"] == "bind"
    }
    assert [source for source in sources if not Path(source).exists()] == []


def test_grafana_gets_the_variables_that_its_files_name(compose: dict[str, Any]) -> None:
    """Each environment variable that provisioning files refer to is set: an empty address would stop Grafana."""
    files = sorted((CONFIG_FOLDER / "grafana" / "provisioning").rglob("*.yaml"))
    named = {name for file in files for name in re.findall(r"(?<!\$)\$\{?([A-Z][A-Z0-9_]+)", file.read_text("utf-8"))}
    environment = compose["grafana"]["environment"]
    assert [name for name in sorted(named) if not environment.get(name)] == []


def test_services_are_checked_for_health(compose: dict[str, Any]) -> None:
    """All but the collector, whose image has no second program, and the one that only hands volumes over."""
    unchecked = {name for name, service in compose.items() if "healthcheck" not in service}
    assert unchecked == {"collector", "volume-owner"}


def test_what_ships_is_what_is_tested(compose: dict[str, Any]) -> None:
    """The images' tags are the versions that the tests build."""
    tags = {service["image"].partition(":")[0]: service["image"].partition(":")[2] for service in compose.values()}
    collector = (_PINS / "collector" / "builder.yaml").read_text("utf-8")
    assert f"version: {tags['otel/opentelemetry-collector-contrib']}\n" in collector
    prometheus = (_PINS / "prometheus" / "go.mod").read_text("utf-8")
    # Prometheus 3.13.5 is the module's version 0.313.5.
    major, minor, patch = tags["prom/prometheus"].removeprefix("v").split(".")
    assert re.search(rf"github.com/prometheus/prometheus v0\.{major}{minor}\.{patch}\b", prometheus)
    # Jaeger 2.x releases the module as 1.(x + 63).
    major, minor, patch = tags["jaegertracing/jaeger"].split(".")
    jaeger = (_PINS / "jaeger" / "go.mod").read_text("utf-8")
    assert re.search(rf"github.com/jaegertracing/jaeger v1\.{int(minor) + 63}\.{patch}\b", jaeger)
    assert major == "2"


def test_versions_can_be_overridden() -> None:
    """Each image's tag comes from a variable of its own."""
    tags = {"OTELCOL_TAG": "0.999.0", "JAEGER_TAG": "2.99.0", "PROMETHEUS_TAG": "v3.99.0", "GRAFANA_TAG": "13.99.0"}
    command = (_tool("docker-compose"), "--file", _COMPOSE, "config", "--images")
    done = _run(*command, GF_SECURITY_ADMIN_PASSWORD="for-this-test", **tags)  # noqa: S106 - of no service
    assert {image.partition(":")[2] for image in done.stdout.split()} == set(tags.values())


def test_span_metrics_are_of_our_span_names() -> None:
    """The names that the collector makes metrics of are those of `semconv.py`, no more and no fewer."""
    text = (CONFIG_FOLDER / "collector.yaml").read_text("utf-8")
    (pattern,) = re.findall(r'IsMatch\(span\.name, "\^\((.+)\)\$"\)', text)
    assert set(pattern.split("|")) == {value for name, value in vars(SpanName).items() if name.isupper()}


@pytest.mark.stack
def test_promtool_accepts_the_configuration(promtool: Path) -> None:
    """Prometheus' own checker accepts each configuration with all its rules."""
    for name in ("prometheus.yml", "prometheus-remote-write.yml"):
        done = _run(promtool, "check", "config", "--syntax-only", CONFIG_FOLDER / "prometheus" / name)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.stack
@pytest.mark.parametrize(
    "files", [["collector.yaml"], ["agent.yaml"], ["tail-sampling.yaml"], ["collector.yaml", "metrics-store.yaml"]]
)
def test_the_collector_accepts_the_configuration(files: list[str]) -> None:
    """`otelcol validate` accepts what it can be built for."""
    options = [f"--config={CONFIG_FOLDER / file}" for file in files]
    done = _run(program_or_skip("otelcol"), "validate", *options)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    # An alias of a renamed component is accepted too, with a warning.
    assert "deprecated" not in done.stderr


@pytest.mark.stack
@pytest.mark.parametrize(
    "file",
    ["jaeger.yaml", "jaeger-clickhouse.yaml", "jaeger-opensearch.yaml", "kafka/producer.yaml", "kafka/ingester.yaml"],
)
def test_jaeger_accepts_the_configuration(file: str) -> None:
    """Jaeger's own check accepts each configuration that it is to run with."""
    done = _run(program_or_skip("jaeger"), "validate", f"--config={CONFIG_FOLDER / file}")
    assert done.returncode == 0, done.stderr
