"""The configurations beyond one host: what can start here is started, the rest is checked against its schema."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml
from opentelemetry.trace import format_trace_id, set_span_in_context

from runspan._endpoints import endpoints
from runspan.config import TracingConfig
from support.exporting import start_export
from support.stack import CONFIG_FOLDER, Collector, Jaeger, Prometheus, free_port, program_or_skip
from support.stack_clients import JaegerClient, eventually
from support.stack_runs import Training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.stack import Program, Stack

pytestmark = pytest.mark.stack

_TOKEN = "token-of-this-test"  # noqa: S105 - of a gateway that lives for one test
_TRAIN = """
def train(run):
    with run.step(tokens=5):
        run.log_metric("loss", 0.5)
    with run.span("tidy up"):
        pass
"""
_EMPTY = b""
_HTTP_OK = 200
_UNAUTHORIZED = 401


@contextmanager
def _running(*programs: Program) -> Iterator[None]:
    """Run programs for the length of the block."""
    started: list[Program] = []
    try:
        for each in programs:
            started.append(each)
            each.start()
        yield
    finally:
        for each in reversed(started):
            each.stop()


class _Secrets:
    """A token, a server's and a client's certificate, and the variables by which a gateway finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = folder / "token"
        self.token.write_text(_TOKEN)
        self.server = self._certificate("server")
        self.client = self._certificate("client")
        self.gateway_environ = {
            "GATEWAY_CERT_FILE": str(self.server[0]),
            "GATEWAY_KEY_FILE": str(self.server[1]),
            "GATEWAY_TOKEN_FILE": str(self.token),
            "GATEWAY_CLIENT_CA_FILE": str(self.client[0]),
        }

    def _certificate(self, name: str) -> tuple[Path, Path]:
        """Make a self-signed certificate, and return the paths of it and of its key."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
        subprocess.run(command, check=True, capture_output=True)
        return certificate, key


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> _Secrets:
    """Make the secrets once."""
    return _Secrets(tmp_path_factory.mktemp("secrets"))


def _gateway(folder: Path, stack: Stack, secrets: _Secrets, *more: str) -> Collector:
    """Return gateway.yaml with a plain exporter in place of the one that cannot be built."""
    document: dict[str, Any] = yaml.safe_load((CONFIG_FOLDER / "gateway.yaml").read_text("utf-8"))
    balancing = document["exporters"].pop("load_balancing")
    document["exporters"]["otlp_grpc/one"] = {
        "endpoint": stack.jaeger.otlp_endpoint,
        **{key: balancing[key] for key in ("sending_queue", "retry_on_failure")},
        **{key: value for key, value in balancing["protocol"]["otlp"].items() if key == "tls"},
    }
    document["service"]["pipelines"]["traces"]["exporters"] = ["otlp_grpc/one"]
    folder.mkdir(parents=True)
    config = folder / "gateway.yaml"
    config.write_text(yaml.safe_dump(document), "utf-8")
    environ = {**secrets.gateway_environ, "METRICS_STORE_OTLP_ENDPOINT": f"{stack.prometheus.url}/api/v1/otlp"}
    return Collector(folder, config=[config, *(CONFIG_FOLDER / name for name in more)], environ=environ)


def test_an_agent_ships_through_the_gateway(stack: Stack, secrets: _Secrets, tmp_path: Path) -> None:
    """A run that ships to its node's agent arrives, through the gateway with TLS and token, in both back ends."""
    gateway = _gateway(tmp_path / "gateway", stack, secrets)
    environ = {
        "GATEWAY_ENDPOINT": gateway.grpc_endpoint,
        "GATEWAY_TOKEN_FILE": str(secrets.token),
        "GATEWAY_CA_FILE": str(secrets.server[0]),
    }
    agent = Collector(tmp_path / "agent", config=[CONFIG_FOLDER / "agent.yaml"], environ=environ)
    with _running(gateway, agent):
        training = Training(tmp_path / "run", stack, _TRAIN, ranks=2, RUNSPAN_OTLP_ENDPOINT=agent.grpc_url)
        exported = sum(rank.exported or 0 for rank in training.run())

        def arrived() -> None:
            assert len(training.spans()) == exported
            tokens = stack.prometheus.client.query(training.select("runspan_tokens_total"))
            assert [sample.value for sample in tokens] == [5.0, 5.0]

        eventually(arrived)
        assert {span.resource["deployment.environment.name"] for span in training.spans()} == {"unset"}


def test_the_gateway_lets_nobody_in_without_its_token(stack: Stack, secrets: _Secrets, tmp_path: Path) -> None:
    """The right token over TLS is let in; another one, none, or no TLS is not."""
    gateway = _gateway(tmp_path / "gateway", stack, secrets)
    with _running(gateway):
        url = gateway.http_url.replace("http://", "https://")
        assert _post(url, secrets, token=_TOKEN) == _HTTP_OK
        assert _post(url, secrets, token="another") == _UNAUTHORIZED  # noqa: S106 - a wrong one
        assert _post(url, secrets, token=None) == _UNAUTHORIZED
        assert _post(gateway.http_url, secrets, token=_TOKEN) != _HTTP_OK


def test_mutual_tls_asks_for_a_client_certificate(stack: Stack, secrets: _Secrets, tmp_path: Path) -> None:
    """With gateway-mtls.yaml the token alone is not enough: the certificate must be of the clients' authority."""
    gateway = _gateway(tmp_path / "gateway", stack, secrets, "gateway-mtls.yaml")
    with _running(gateway):
        url = gateway.http_url.replace("http://", "https://")
        assert _post(url, secrets, token=_TOKEN, certificate=secrets.client) == _HTTP_OK
        for certificate in (None, secrets.server):
            with pytest.raises(requests.ConnectionError):
                _post(url, secrets, token=_TOKEN, certificate=certificate)


def _post(url: str, secrets: _Secrets, *, token: str | None, certificate: tuple[Path, Path] | None = None) -> int:
    """Send an empty export and return the answer's status."""
    headers = {"Content-Type": "application/x-protobuf"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    answer = requests.post(
        f"{url}/v1/traces",
        data=_EMPTY,
        headers=headers,
        verify=str(secrets.server[0]),
        cert=None if certificate is None else (str(certificate[0]), str(certificate[1])),
        timeout=10,
    )
    return answer.status_code


def test_tail_sampling_keeps_runs_and_unusual_steps(stack: Stack, tmp_path: Path) -> None:
    """Slow and failed steps and whatever is no step pass, late spans too; of the scheduled ones only a share."""
    sampler = Collector(
        tmp_path,
        config=[CONFIG_FOLDER / "tail-sampling.yaml"],
        jaeger_endpoint=stack.jaeger.otlp_endpoint,
        environ={"SCHEDULED_STEPS_PERCENTAGE": "0"},
    )
    with _running(sampler):
        export = start_export(endpoints(TracingConfig().with_otlp_export(sampler.grpc_url, "grpc"))["traces"])
        tracer = export.tracer
        run = tracer.start_span("run")
        run.end()
        run_trace = format_trace_id(run.get_span_context().trace_id)
        kept = {run_trace}
        left_out: set[str] = set()
        for because in ("scheduled", "slow", "failed") * 5:
            step = tracer.start_span("step", attributes={"runspan.step.captured_because": because})
            (left_out if because == "scheduled" else kept).add(format_trace_id(step.get_span_context().trace_id))
            step.end()
        client = stack.jaeger.client
        eventually(lambda: _assert_known(client, kept), timeout_s=60)
        tracer.start_span("epoch", context=set_span_in_context(run)).end()
        export.drain()
        eventually(lambda: _assert_names(client, run_trace, {"run", "epoch"}))
        # All decisions were made alike: what passed is there, and what did not is not on its way.
        assert [trace_id for trace_id in left_out if client.trace(trace_id)] == []


def _assert_names(client: JaegerClient, trace_id: str, names: set[str]) -> None:
    assert {span.name for span in client.trace(trace_id)} == names


def _assert_known(client: JaegerClient, trace_ids: set[str]) -> None:
    assert [trace_id for trace_id in trace_ids if not client.trace(trace_id)] == []


def test_metrics_go_to_another_store(stack: Stack, tmp_path: Path) -> None:
    """collector.yaml with metrics-store.yaml sends metrics to that store, with its token, and spans to Jaeger."""
    token = tmp_path / "token"
    token.write_text(_TOKEN)
    collector = Collector(
        tmp_path / "collector",
        jaeger_endpoint=stack.jaeger.otlp_endpoint,
        config=[CONFIG_FOLDER / "collector.yaml", CONFIG_FOLDER / "metrics-store.yaml"],
        environ={
            "METRICS_STORE_OTLP_ENDPOINT": f"{stack.prometheus.url}/api/v1/otlp",
            "METRICS_STORE_TOKEN_FILE": str(token),
        },
    )
    with _running(collector):
        training = Training(tmp_path / "run", stack, _TRAIN, ranks=1, RUNSPAN_OTLP_ENDPOINT=collector.grpc_url)
        (ended,) = training.run()

        def arrived() -> None:
            assert len(training.spans()) == ended.exported
            tokens = stack.prometheus.client.query(training.select("runspan_tokens_total"))
            assert [sample.value for sample in tokens] == [5.0]

        eventually(arrived)


def test_prometheus_forwards_by_remote_write(stack: Stack, tmp_path: Path) -> None:
    """prometheus-remote-write.yml forwards counters and native histograms; beside that it is prometheus.yml."""
    folder = CONFIG_FOLDER / "prometheus"
    documents = [
        yaml.safe_load((folder / name).read_text("utf-8")) for name in ("prometheus.yml", "prometheus-remote-write.yml")
    ]
    del documents[1]["remote_write"]
    assert documents[0] == documents[1]

    token = tmp_path / "token"
    token.write_text(_TOKEN)
    store = Prometheus(tmp_path / "store", targets=_NO_TARGETS, options=["--web.enable-remote-write-receiver"])
    near = Prometheus(
        tmp_path / "near",
        config_file="prometheus-remote-write.yml",
        targets=_NO_TARGETS,
        edits={
            "https://metrics.example": store.url,
            "/etc/prometheus-secrets/token": str(token),
        },
    )
    collector = Collector(tmp_path / "collector", jaeger_endpoint=stack.jaeger.otlp_endpoint, prometheus_url=near.url)
    with _running(store, near, collector):
        training = Training(tmp_path / "run", stack, _TRAIN, ranks=1, RUNSPAN_OTLP_ENDPOINT=collector.grpc_url)
        training.run()

        def arrived() -> None:
            tokens = store.client.query(training.select("runspan_tokens_total"))
            assert [sample.value for sample in tokens] == [5.0]
            count = f"histogram_count({training.select('runspan_step_duration_seconds')})"
            assert [sample.value for sample in store.client.query(count)] == [1.0]

        eventually(arrived)


#: Addresses of the shipped scrape configuration at which nobody answers here.
_NO_TARGETS = {"collector:8888": "127.0.0.1:9", "jaeger:8888": "127.0.0.1:9"}


def test_spans_go_over_kafka(stack: Stack, tmp_path: Path) -> None:
    """Spans that Jaeger's program writes to a topic are read from it by another one, stored and shown."""
    port = free_port()
    environ = {"KAFKA_BROKER": f"127.0.0.1:{port}"}
    producer = Jaeger(tmp_path / "producer", config=CONFIG_FOLDER / "kafka" / "producer.yaml", environ=environ)
    ingester = Jaeger(tmp_path / "ingester", config=CONFIG_FOLDER / "kafka" / "ingester.yaml", environ=environ)
    collector = Collector(
        tmp_path / "collector", jaeger_endpoint=producer.otlp_endpoint, prometheus_url=stack.prometheus.url
    )
    with _kafka(port, "runspan-spans", tmp_path), _running(producer, ingester, collector):
        training = Training(tmp_path / "run", stack, _TRAIN, RUNSPAN_OTLP_ENDPOINT=collector.grpc_url)
        exported = sum(rank.exported or 0 for rank in training.run())

        def arrived() -> None:
            traces = ingester.client.find_trace_ids(training.experiment, {"runspan.run.id": training.run_id})
            spans = [span for trace_id in traces for span in ingester.client.trace(trace_id) if not span.is_pending]
            assert len(spans) == exported

        eventually(arrived, timeout_s=60)


@contextmanager
def _kafka(port: int, topic: str, folder: Path) -> Iterator[None]:
    """Run a broker that keeps one topic in memory."""
    command = [str(program_or_skip("kafka-broker")), str(port), topic]
    with (folder / "kafka.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as broker:
        try:
            eventually(lambda: _assert_listens(port))
            yield
        finally:
            broker.kill()


def _assert_listens(port: int) -> None:
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("file", "section", "component"),
    [
        ("gateway.yaml", "exporters", "load_balancing"),
        ("agent-kubernetes.yaml", "processors", "k8sattributes"),
        ("agent-kubernetes.yaml", "processors", "resource_detection"),
    ],
)
def test_what_is_not_started_follows_its_schema(file: str, section: str, component: str, tmp_path: Path) -> None:
    """Components that cannot be built here have the settings that their documentation lists, and the file says so."""
    text = (CONFIG_FOLDER / file).read_text("utf-8")
    assert "STARTED IN TESTS" in text
    document = yaml.safe_load(text.replace("${env:SAMPLER_PORT:-4317}", '"4317"'))
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({component: document[section][component]}), "utf-8")
    schema = Path(__file__).with_name("schemas") / "not-started.json"
    command = [str(Path(sys.executable).with_name("check-jsonschema")), "--schemafile", str(schema), str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
