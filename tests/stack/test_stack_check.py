"""``runspan stack check`` against the real collector, Jaeger and Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from runspan.stack.checks import StackAddress, check_stack
from runspan.stack.endpoint import examine_endpoint
from runspan.stack.files import rule_groups
from runspan.stack.findings import CheckState
from runspan.stack.services import Prometheus
from support.certificates import self_signed
from support.cli import clean_environ, run_program
from support.otlp_receiver import endpoint_of
from support.stack import CONFIG_FOLDER, Collector, Jaeger, Program, free_port, program_or_skip
from support.web_server import GRAFANA, WebServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from support.cli import Answer
    from support.stack import Stack

pytestmark = pytest.mark.stack

_TOKEN = "token-of-this-test"  # noqa: S105 - of a collector that lives for one test


@pytest.fixture(scope="module")
def grafana() -> Iterator[str]:
    """Stand in for Grafana, which cannot run here, by a server that answers as it does."""
    with WebServer(GRAFANA) as server:
        yield server.url


def _check(stack: Stack, grafana: str, folder: Path, *options: str, **variables: str) -> Answer:
    places = ["--jaeger", stack.jaeger.url, "--prometheus", stack.prometheus.url, "--grafana", grafana]
    return run_program(["stack", "check", "--json", *places, *options], clean_environ(folder, **variables))


def _found(answer: Answer) -> dict[str, dict[str, Any]]:
    assert answer.code in {0, 1}, answer.err
    return {check["name"]: check for check in answer.document}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_stack_that_works_has_no_problem(stack: Stack, grafana: str, tmp_path: Path, protocol: str) -> None:
    """Every service answers, and a span and a metric come back from the stores, over either protocol; exit 0."""
    url = stack.collector.grpc_url if protocol == "grpc" else stack.collector.http_url
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    answer = _check(stack, grafana, tmp_path, **variables)
    found = _found(answer)
    assert {check["state"] for check in found.values()} == {"ok"}, answer.out
    assert answer.code == 0
    assert "read back from Jaeger" in found["probe span"]["found"]
    assert "read back from Prometheus" in found["probe metric"]["found"]
    assert answer.err == ""


def test_checking_again_adds_no_series(stack: Stack, grafana: str, tmp_path: Path) -> None:
    """However often a host checks, its probe is one series, without labels beside job and instance."""
    for _ in range(2):
        assert _check(stack, grafana, tmp_path, "--collector", stack.otlp_url).code == 0
    series = stack.prometheus.client.series("runspan_stack_probe_time_seconds")
    assert [sorted(labels) for labels in series] == [["__name__", "instance", "job"]]
    assert "stack check" not in str(stack.prometheus.client.series('{__name__=~"runspan_spans.*"}'))


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_wrong_protocol_is_told_with_the_right_one(
    stack: Stack, grafana: str, tmp_path: Path, protocol: str
) -> None:
    """GRPC to the collector's HTTP port, and the reverse: what it takes instead, and by which variable."""
    url, other = (
        (stack.collector.http_url, "http/protobuf") if protocol == "grpc" else (stack.collector.grpc_url, "grpc")
    )
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    answer = _check(stack, grafana, tmp_path, **variables)
    assert answer.code == 1
    for signal in ("traces", "metrics"):
        check = _found(answer)[f"collector {signal}"]
        assert f"takes {signal} over {other}, and not over {protocol}" in check["found"]
        assert f"OTEL_EXPORTER_OTLP_PROTOCOL={other}" in check["advice"]


def test_doctor_tells_the_same_of_the_endpoint(stack: Stack, tmp_path: Path) -> None:
    """A run's endpoint is examined by the same code: the collector takes both signals, and no TLS."""
    collector = stack.collector
    answer = run_program(["doctor", "--json"], clean_environ(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector.grpc_url))
    assert answer.code == 0
    assert _found(answer)["otlp traces"]["found"].endswith("(grpc): takes traces")
    url = collector.grpc_url.replace("http:", "https:")
    answer = run_program(["doctor", "--json"], clean_environ(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=url))
    assert answer.code == 1
    assert "speaks no TLS" in _found(answer)["otlp metrics"]["found"]


def test_services_that_were_mixed_up_are_told_apart(stack: Stack, grafana: str, tmp_path: Path) -> None:
    """Each URL names another of the stack's programs: none is taken for what it is not."""
    places = ["--jaeger", stack.prometheus.url, "--prometheus", stack.jaeger.url, "--grafana", stack.collector.http_url]
    answer = _check(stack, grafana, tmp_path, *places, "--collector", stack.prometheus.url)
    found = _found(answer)
    assert answer.code == 1
    for name in ("jaeger", "prometheus", "grafana"):
        assert f"not {name.capitalize()}" in found[name]["found"]
    assert found["collector traces"]["state"] == "problem"
    assert found["probe span"]["found"].startswith("not sent")


def test_services_that_are_down_or_hang_are_named(
    new_stack: Callable[[], AbstractContextManager[Stack]], grafana: str, tmp_path: Path
) -> None:
    """Jaeger down and Prometheus stopped by a signal are told, each with where to look; the other's probe goes on."""
    with new_stack() as stack:
        stack.jaeger.stop()
        found = _found(_check(stack, grafana, tmp_path, "--collector", stack.otlp_url))
        assert "not reachable: Connection refused" in found["jaeger"]["found"]
        assert "docker compose" in found["jaeger"]["advice"]
        assert found["probe metric"]["state"] == "ok"
        stack.jaeger.start()
        stack.prometheus.pause()
        try:
            found = _found(_check(stack, grafana, tmp_path, "--collector", stack.otlp_url))
        finally:
            stack.prometheus.resume()
        assert "accepts connections, and does not answer" in found["prometheus"]["found"]
        assert found["probe span"]["state"] == "ok"


def test_a_jaeger_that_gets_nothing_is_found_by_the_probe(stack: Stack, grafana: str, tmp_path: Path) -> None:
    """A Jaeger that the collector does not ship to answers well, and lacks the span."""
    other = Jaeger(tmp_path / "jaeger")
    try:
        other.start()
        address = StackAddress(
            collector={signal: endpoint_of("grpc", 1, url=stack.otlp_url) for signal in ("traces", "metrics")},
            jaeger=other.url,
            prometheus=stack.prometheus.url,
            grafana=grafana,
        )
        found = {check.name: check for check in check_stack(address, arrival_s=2.0)}
    finally:
        other.stop()
    assert found["jaeger"].state is CheckState.OK
    assert found["probe span"].state is CheckState.PROBLEM
    assert "Jaeger does not have it after 2 s" in found["probe span"].found
    assert "docker compose logs collector" in str(found["probe span"].advice)
    assert found["probe metric"].state is CheckState.OK


def test_a_prometheus_that_is_not_set_up(tmp_path: Path) -> None:
    """Without its options and rules: OTLP receiver off, exemplars off, rules not loaded."""
    (tmp_path / "empty.yml").write_text("global: {}\n")
    url = f"http://127.0.0.1:{free_port()}"
    bare = Program(
        [
            str(program_or_skip("prometheus")),
            f"--config.file={tmp_path / 'empty.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
        ],
        tmp_path / "prometheus",
        f"{url}/-/ready",
        {},
    )
    try:
        bare.start()
        prometheus = Prometheus(url, rule_groups())
        found = {check.name: check for check in prometheus.checks()}
        prometheus.close()
    finally:
        bare.stop()
    assert found["prometheus"].state is CheckState.OK
    assert "--web.enable-otlp-receiver" in str(found["otlp receiver"].advice)
    assert "--enable-feature=exemplar-storage" in str(found["exemplars"].advice)
    assert "runspan-liveness" in found["rules"].found
    assert {found[name].state for name in ("otlp receiver", "exemplars", "rules")} == {CheckState.PROBLEM}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_a_collector_refuses_is_told(
    protocol: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector with TLS, a token and clients' certificates: what is missing or wrong is named, and never shown."""
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    certificate, key = self_signed(tmp_path, "server", alternatives="DNS:localhost")
    client, client_key = self_signed(tmp_path, "client")
    secured = {
        "tls": {"cert_file": str(certificate), "key_file": str(key)},
        "auth": {"authenticator": "bearertokenauth/test"},
    }
    document = {
        "extensions": {"bearertokenauth/test": {"token": _TOKEN}},
        "receivers": {"otlp": {"protocols": {"grpc": secured, "http": secured}}},
        "service": {"extensions": ["health_check", "file_storage/queue", "bearertokenauth/test"]},
    }
    mutual = {"receivers": {"otlp": {"protocols": {"grpc": {"tls": {"client_ca_file": str(client)}}}}}}
    mutual["receivers"]["otlp"]["protocols"]["http"] = mutual["receivers"]["otlp"]["protocols"]["grpc"]
    for name, content in (("token.yaml", document), ("mutual.yaml", mutual)):
        (tmp_path / name).write_text(yaml.safe_dump(content))

    def told(collector: Collector, scheme: str = "https", host: str = "localhost", **changes: Any) -> str:
        url = collector.grpc_url if protocol == "grpc" else f"{collector.http_url}/v1/traces"
        url = url.replace("http://127.0.0.1", f"{scheme}://{host}")
        settings = {"certificate": str(certificate), "headers": {"authorization": f"Bearer {_TOKEN}"}, **changes}
        target = endpoint_of(protocol, 1, url=url, insecure=scheme == "http", **settings)
        check = examine_endpoint("collector", target, "traces")
        assert (check.state is CheckState.OK) is (check.advice is None)
        return f"{check.found}; {check.advice}"

    configs = [CONFIG_FOLDER / "collector.yaml", tmp_path / "token.yaml"]
    collector = Collector(tmp_path / "token", config=configs)
    try:
        collector.start()
        assert "takes traces" in told(collector)
        assert "asks for credentials" in told(collector, headers={})
        wrong = told(collector, headers={"authorization": "Bearer hunter22"})
        assert "rejects the credentials in authorization" in wrong
        assert "hunter22" not in wrong
        assert "self-signed certificate; set OTEL_EXPORTER_OTLP_CERTIFICATE" in told(collector, certificate=None)
        assert "not valid for '127.0.0.1'" in told(collector, host="127.0.0.1")
        assert "speaks TLS; write https://" in told(collector, scheme="http")
    finally:
        collector.stop()
    collector = Collector(tmp_path / "mutual", config=[*configs, tmp_path / "mutual.yaml"])
    try:
        collector.start()
        assert "asks for a client certificate" in told(collector)
        identity = {"client_certificate": str(client), "client_key": str(client_key)}
        assert "takes traces" in told(collector, **identity)
        identity = {"client_certificate": str(certificate), "client_key": str(key)}
        assert "refuses the client certificate" in told(collector, **identity)
    finally:
        collector.stop()
    assert capfd.readouterr().err == ""
