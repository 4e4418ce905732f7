"""``runspan stack`` against small real servers: wrong things at the right address, and the files it writes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socketserver
import stat
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import yaml

from runspan import cli
from runspan.stack import files
from runspan.stack.checks import StackAddress, check_stack
from runspan.stack.findings import Check, CheckState
from support.certificates import self_signed
from support.cli import Answer
from support.otlp_receiver import BlackHole, Faults, OtlpReceiver, refused_port
from support.web_server import GRAFANA, JAEGER, PROMETHEUS, WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_REPOSITORY = Path(__file__).resolve().parents[2]
_NOWHERE = "http://127.0.0.1:9"


class StackCli:
    """Runs ``runspan stack`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Answer:
        """Run a command and return what it printed."""
        self._capsys.readouterr()
        code = cli.main(["stack", *arguments])
        printed = self._capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    def check(self, **places: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Run ``check`` on these URLs, nowhere for those that are not given, and return findings by name."""
        everywhere = dict.fromkeys(("collector", "jaeger", "prometheus", "grafana"), _NOWHERE) | places
        options = [part for name, url in everywhere.items() for part in (f"--{name}", url)]
        answer = self("check", "--json", *options)
        assert answer.code in {0, 1}, answer.err
        return answer.code, {check["name"]: check for check in answer.document}


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> StackCli:
    """The commands in an empty folder and in an environment that sets nothing."""
    for name in os.environ:
        if name.startswith(("RUNSPAN_", "OTEL_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return StackCli(capsys)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate for localhost, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def services() -> Iterator[dict[str, str]]:
    """Stand in for Jaeger, Prometheus and Grafana, which have no probe."""
    with WebServer(JAEGER) as jaeger, WebServer(PROMETHEUS) as prometheus, WebServer(GRAFANA) as grafana:
        yield {"jaeger": jaeger.url, "prometheus": prometheus.url, "grafana": grafana.url}


def _told(check: dict[str, Any]) -> str:
    return f"{check['found']}; {check['advice']}"


def test_nothing_runs(stack: StackCli) -> None:
    """Closed ports: exit 1, each service is named with how to start it, and no probe is sent."""
    url = f"http://127.0.0.1:{refused_port()}"
    code, found = stack.check(collector=url, jaeger=url, prometheus=url, grafana=url)
    assert code == 1
    for name in ("collector traces", "collector metrics", "jaeger", "prometheus", "grafana"):
        assert f"{url}" in found[name]["found"]
        assert "not reachable: Connection refused" in found[name]["found"]
    assert "docker compose up -d" in found["jaeger"]["advice"]
    assert "the collector takes no traces" in found["probe span"]["found"]


def test_a_name_that_no_host_can_have(stack: StackCli) -> None:
    """A slip in a name is told as such, for each service."""
    _, found = stack.check(collector="http://a..b:4317", jaeger="http://a..b")
    for name in ("collector traces", "jaeger"):
        assert "not reachable: a..b cannot be the name of a host" in found[name]["found"]


@pytest.mark.parametrize("path", ["", "/v1"])
def test_a_black_hole(stack: StackCli, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A port that takes connections and never answers is told within its bound, over gRPC and over HTTP."""
    for module in ("endpoint", "services"):
        monkeypatch.setattr(f"runspan.stack.{module}._TIMEOUT_S", 0.5)
    with BlackHole() as hole:
        url = f"http://127.0.0.1:{hole.port}"
        _, found = stack.check(collector=url + path, jaeger=url, prometheus=url, grafana=url)
    for name in ("collector traces", "collector metrics", "jaeger", "prometheus", "grafana"):
        assert "accepts connections, and does not answer within 0.5 s" in found[name]["found"]


@pytest.mark.parametrize("status", [200, 404, 501])
def test_another_program_at_the_collectors_http_port(stack: StackCli, status: int) -> None:
    """A web server is no collector, whatever it answers: even "200 OK" with a page is not taken for a receiver."""
    with WebServer(post_status=status) as server:
        _, found = stack.check(collector=f"{server.url}/otlp")
    told = _told(found["collector traces"])
    assert f"a web server that takes no traces: HTTP {status}" in told
    assert "/otlp/v1/traces" in told
    assert "another program uses this port" in told


def test_another_program_at_the_collectors_grpc_port(stack: StackCli) -> None:
    """A web server where gRPC is expected: what it speaks, and that the port is taken."""
    with WebServer() as server:
        _, found = stack.check(collector=server.url)
    assert "speaks HTTP/1.1, and grpc needs HTTP/2; another program uses this port" in _told(found["collector traces"])


@pytest.mark.parametrize("greeting", [b"", b"220 mail.example.org ESMTP\r\n"])
@pytest.mark.parametrize("path", ["", "/otlp"])
def test_a_program_of_another_kind(stack: StackCli, greeting: bytes, path: str) -> None:
    """What closes each connection, at once or after a greeting of its own, is told as neither gRPC nor HTTP."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(greeting)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        _, found = stack.check(collector=url + path, jaeger=url)
        server.shutdown()
    assert "speaks neither gRPC nor HTTP; another program uses this port" in _told(found["collector traces"])
    assert "another program answers there, not Jaeger: it speaks another protocol" in found["jaeger"]["found"]


def test_a_grpc_server_that_is_no_collector(stack: StackCli) -> None:
    """A server that speaks gRPC without OTLP's service: no such receiver."""
    pool = ThreadPoolExecutor(1)
    server = grpc.server(pool)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        _, found = stack.check(collector=f"http://127.0.0.1:{port}")
    finally:
        server.stop(None).wait()
        pool.shutdown()
    assert "speaks gRPC, and takes no metrics" in found["collector metrics"]["found"]
    assert "the receiver otlp" in found["collector metrics"]["advice"]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_wrong_protocol(stack: StackCli, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """A receiver of the other protocol: both are named, and the variable."""
    other = "grpc" if protocol == "http/protobuf" else "http/protobuf"
    with OtlpReceiver(other) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        _, found = stack.check(collector=f"http://127.0.0.1:{receiver.port}")
    told = _told(found["collector traces"])
    assert f"takes traces over {other}, and not over {protocol}; set OTEL_EXPORTER_OTLP_PROTOCOL={other}" in told


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_the_wrong_scheme(
    stack: StackCli, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path], protocol: str
) -> None:
    """TLS to a receiver without it, and the reverse: which scheme to write."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with OtlpReceiver(protocol) as receiver:
        _, found = stack.check(collector=f"https://localhost:{receiver.port}")
    assert "speaks no TLS; write http://" in _told(found["collector traces"])
    with OtlpReceiver(protocol, tls=certificate) as receiver:
        _, found = stack.check(collector=f"http://localhost:{receiver.port}")
    assert "speaks TLS; write https://" in _told(found["collector traces"])


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_wrong_certificate(
    stack: StackCli, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path], protocol: str
) -> None:
    """An authority that is not known, a name that the certificate lacks, and a file that is none, each by its name."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with OtlpReceiver(protocol, tls=certificate) as receiver:

        def told(host: str = "localhost") -> str:
            return _told(stack.check(collector=f"https://{host}:{receiver.port}")[1]["collector traces"])

        assert "self-signed certificate; set OTEL_EXPORTER_OTLP_CERTIFICATE" in told()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate[0]))
        assert "takes traces" in told()
        assert "certificate is not valid for '127.0.0.1'" in told("127.0.0.1")
        no_certificate = Path("text.pem")
        no_certificate.write_text("no certificate")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(no_certificate))
        assert "these must be PEM files" in told()
        assert "text.pem" in told()


def test_grpc_over_tls_at_a_web_server(
    stack: StackCli, monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path]
) -> None:
    """TLS is right and gRPC is not: told, and gRPC's own complaint is not printed."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate[0]))
    with WebServer(tls=certificate) as server:
        _, found = stack.check(collector=f"https://localhost:{server.port}")
    assert "speaks TLS, and not HTTP/2, which gRPC needs" in found["collector traces"]["found"]


@pytest.mark.parametrize(
    ("protocol", "refusal"),
    [("grpc", "UNAUTHENTICATED"), ("grpc", "PERMISSION_DENIED"), ("http/protobuf", "401"), ("http/protobuf", "403")],
)
def test_a_rejected_token(stack: StackCli, monkeypatch: pytest.MonkeyPatch, protocol: str, refusal: str) -> None:
    """With no token: that one is asked for; with a wrong one: in which header; the token itself is never shown."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    faults = Faults()
    with OtlpReceiver(protocol, faults=faults) as receiver:
        url = f"http://127.0.0.1:{receiver.port}"
        faults.answers.extend([refusal] * 2)
        assert (
            "asks for credentials, and no headers are set" in stack.check(collector=url)[1]["collector traces"]["found"]
        )
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter22,x-key=receiver")
        faults.answers.extend([refusal] * 2)
        found = stack.check(collector=url)[1]["collector traces"]
    assert receiver.last_headers["authorization"] == "Bearer hunter22"
    assert "rejects the credentials in authorization, x-key" in found["found"]
    assert "OTEL_EXPORTER_OTLP_HEADERS" in found["advice"]
    assert "hunter22" not in _told(found)
    # The receiver repeats a word that is a secret here.
    assert "fault of the test receiver" not in _told(found)


def test_credentials_in_a_url_are_not_shown(stack: StackCli, services: dict[str, str]) -> None:
    """User and password in any of the URLs, right or wrong, stay out of the answer, and out of an error."""
    basic = base64.b64encode(b"me:hunter22").decode()
    with WebServer(PROMETHEUS, credentials=f"Basic {basic}") as prometheus:
        url = prometheus.url.replace("http://", "http://me:{}@")
        _, found = stack.check(
            **services | {"prometheus": url.format("hunter22"), "collector": "http://me:hunter22@127.0.0.1:9"}
        )
        assert found["prometheus"]["state"] == "ok"
        assert "hunter22" not in str(found)
        _, found = stack.check(**services | {"prometheus": url.format("hunter23")})
    assert "asks for credentials: HTTP 401" in found["prometheus"]["found"]
    assert "hunter23" not in str(found)
    answer = stack("check", "--jaeger", "http://me:hunter22@host:99999")
    assert answer.code == 2
    assert "hunter22" not in answer.err


def test_a_busy_collector(stack: StackCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory limit or a full queue is no wrong configuration: the collector refuses for now."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with OtlpReceiver("http/protobuf") as receiver:
        receiver.faults.answers.extend(["503", "429"])
        _, found = stack.check(collector=f"http://127.0.0.1:{receiver.port}")
    assert "refuses for now: HTTP 503" in found["collector traces"]["found"]
    assert "refuses for now: HTTP 429" in found["collector metrics"]["found"]


def test_services_that_are_other_programs(stack: StackCli) -> None:
    """A page, a document of another kind and a failure are told from the real thing, and name the port."""
    with WebServer(
        {"/api/v3/services": "<html></html>", "/api/v1/status/buildinfo": [1], "/api/health": 503}
    ) as server:
        _, found = stack.check(jaeger=server.url, prometheus=server.url, grafana=server.url)
    for name in ("jaeger", "prometheus"):
        assert f"another program answers there, not {name.capitalize()}" in found[name]["found"]
        assert "TestServer" in found[name]["found"]
        assert f"stop what uses port {server.port}" in found[name]["advice"]
    assert "answers HTTP 503" in found["grafana"]["found"]


def test_services_at_ports_of_other_protocols(stack: StackCli, certificate: tuple[Path, Path]) -> None:
    """A gRPC port, a TLS port and a missing TLS are told where a page is expected."""
    with OtlpReceiver("grpc") as receiver, WebServer(JAEGER, tls=certificate) as secured, WebServer() as plain:
        _, found = stack.check(
            jaeger=f"http://127.0.0.1:{secured.port}",
            prometheus=f"http://127.0.0.1:{receiver.port}",
            grafana=f"https://127.0.0.1:{plain.port}",
        )
        _, untrusted = stack.check(jaeger=f"https://localhost:{secured.port}")
    assert "speaks TLS; write https:// after --jaeger" in _told(found["jaeger"])
    assert "it speaks HTTP/2" in found["prometheus"]["found"]
    assert "speaks no TLS; write http:// after --grafana" in _told(found["grafana"])
    assert "its certificate is not accepted: self-signed certificate" in untrusted["jaeger"]["found"]


def test_a_prometheus_without_what_runs_need(stack: StackCli) -> None:
    """Receiver and exemplars off, rules missing or failing: each is a check of its own, with the option that helps."""
    groups: list[dict[str, Any]] = [{"name": name, "rules": []} for name in sorted(files.rule_groups())]
    flags = {"web.enable-otlp-receiver": "false", "enable-feature": ""}
    answers = PROMETHEUS | {
        "/api/v1/status/flags": {"status": "success", "data": flags},
        "/api/v1/rules": {"status": "success", "data": {"groups": groups[1:]}},
    }
    with WebServer(answers) as server:
        code, found = stack.check(prometheus=server.url)
    assert code == 1
    assert "--web.enable-otlp-receiver" in found["otlp receiver"]["advice"]
    assert "--enable-feature=exemplar-storage" in found["exemplars"]["advice"]
    assert found["rules"]["found"] == f"not loaded: {groups[0]['name']}"
    groups[0]["rules"] = [{"name": "RunspanRunStalled", "health": "err", "lastError": "many-to-many"}]
    answers["/api/v1/rules"] = {"status": "success", "data": {"groups": groups}}
    with WebServer(answers) as server:
        _, found = stack.check(prometheus=server.url)
    assert found["rules"]["found"] == "RunspanRunStalled: many-to-many"


def test_a_store_that_only_speaks_prometheus_language(stack: StackCli) -> None:
    """A store without flags, as the scalable ones are, is no problem for that."""
    answers = {path: answer for path, answer in PROMETHEUS.items() if not path.endswith("flags")}
    with WebServer(answers) as server:
        _, found = stack.check(prometheus=server.url)
    assert found["prometheus flags"]["state"] == "note"
    assert found["rules"]["state"] == "ok"


def test_a_grafana_that_is_not_provisioned(stack: StackCli) -> None:
    """Missing dashboards are named; one that lets nobody look is a note; a broken database is a problem."""
    with WebServer(GRAFANA | {"/api/search": []}) as server:
        _, found = stack.check(grafana=server.url)
    assert "not provisioned: " in found["dashboards"]["found"]
    assert min(files.dashboard_uids()) in found["dashboards"]["found"]
    with WebServer(GRAFANA | {"/api/search": 401}) as server:
        _, found = stack.check(grafana=server.url)
    assert found["dashboards"]["state"] == "note"
    with WebServer(GRAFANA | {"/api/health": {"database": "failing"}}) as server:
        _, found = stack.check(grafana=server.url)
    assert "its database is failing" in found["grafana"]["found"]


def _probed(services: dict[str, str], receiver: OtlpReceiver) -> dict[str, Check]:
    address = StackAddress(
        collector={signal: receiver.endpoint(signal) for signal in ("traces", "metrics")}, **services
    )
    return {check.name: check for check in check_stack(address, arrival_s=0.3)}


def test_a_probe_that_does_not_arrive(services: dict[str, str]) -> None:
    """All services answer, and the collector ships elsewhere: both probes are sent once, and missed in both stores."""
    with OtlpReceiver() as receiver:
        found = _probed(services, receiver)
    assert [span.name for span in receiver.spans] == ["stack check"]
    assert [point.metric for point in receiver.points] == ["runspan.stack.probe_time"]
    assert {name for name, check in found.items() if check.state is not CheckState.OK} == {"probe span", "probe metric"}
    assert "the collector took it, and Jaeger does not have it after 0.3 s" in found["probe span"].found
    assert "docker compose logs collector" in str(found["probe metric"].advice)


def test_a_collector_that_refuses_the_probe(services: dict[str, str]) -> None:
    """What takes an empty request and not a full one is told by the probe."""
    with OtlpReceiver(max_message_bytes=100) as receiver:
        found = _probed(services, receiver)
    assert found["collector traces"].state is CheckState.OK
    assert "the collector does not take it: RESOURCE_EXHAUSTED" in found["probe span"].found


def test_the_endpoint_of_a_run_is_the_default(
    stack: StackCli, monkeypatch: pytest.MonkeyPatch, services: dict[str, str]
) -> None:
    """Without --collector the check goes where a run would send; a signal that is not exported is a note."""
    with OtlpReceiver("http/protobuf") as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        # Where nobody could tell whether a probe arrives, none is sent.
        options = ["--jaeger", _NOWHERE, "--prometheus", _NOWHERE, "--grafana", services["grafana"]]
        found = {check["name"]: check for check in stack("check", "--json", *options).document}
    assert "takes traces" in found["collector traces"]["found"]
    assert found["collector metrics"]["state"] == "note"
    assert receiver.spans == []


@pytest.mark.parametrize("option", ["--collector", "--jaeger", "--prometheus", "--grafana"])
def test_a_url_that_is_none_is_bad_usage(stack: StackCli, option: str) -> None:
    """Another scheme or an impossible port: exit 2, naming option and value."""
    for url in ("ftp://host", "http://host:99999", "http://"):
        answer = stack("check", option, url)
        assert answer.code == 2
        assert f"{option}='{url}'" in answer.err


def test_findings_are_lines_where_nobody_sits_at_a_terminal(stack: StackCli) -> None:
    """In a pipe each finding is one line with its state first."""
    answer = stack("check", "--collector", _NOWHERE)
    assert answer.code == 1
    assert {line.split()[0] for line in answer.out.splitlines()} == {"problem", "note"}


def _shipped() -> set[str]:
    config = _REPOSITORY / "collector-config"
    paths = [path.relative_to(_REPOSITORY) for path in config.rglob("*") if path.is_file()]
    return {"docker-compose.yml", "docs/scale.md", *map(str, paths)}


def _written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_export_config_writes_all_files_readable_by_the_services(stack: StackCli, tmp_path: Path) -> None:
    """Whatever the umask, the services' users can read what is theirs, and nobody else the generated password."""
    folder = tmp_path / "my stack"
    old = os.umask(0o077)
    try:
        answer = stack("export-config", str(folder))
    finally:
        os.umask(old)
    assert answer.code == 0
    assert _written(folder) == _shipped() | {".env"}
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o600 if path.name == ".env" else 0o755 if path.is_dir() else 0o644)
    password = (folder / ".env").read_text().removeprefix("GF_SECURITY_ADMIN_PASSWORD=").strip()
    assert len(password) == 32
    assert password not in answer.out
    assert f"cd '{folder}' && docker compose up" in answer.out


def test_export_config_keeps_what_was_changed(stack: StackCli, tmp_path: Path) -> None:
    """A changed file: exit 2, it is named, and nothing is written; --force overwrites it, and keeps the password."""
    folder = tmp_path / "stack"
    assert stack("export-config", str(folder)).code == 0
    again = stack("export-config", str(folder), "--json").document
    assert (again["written"], again["unchanged"], again["password_generated"]) == ([], len(_shipped()), False)
    rules = folder / "collector-config" / "prometheus" / "rules" / "thresholds.yml"
    rules.write_text("mine")
    (folder / "docker-compose.yml").unlink()
    environment = (folder / ".env").read_text()
    answer = stack("export-config", str(folder))
    assert answer.code == 2
    assert "collector-config/prometheus/rules/thresholds.yml" in answer.err
    assert "--force" in answer.err
    assert rules.read_text() == "mine"
    assert not (folder / "docker-compose.yml").exists()
    forced = stack("export-config", str(folder), "--force", "--json").document
    assert forced["written"] == ["collector-config/prometheus/rules/thresholds.yml", "docker-compose.yml"]
    assert rules.read_bytes() == (_REPOSITORY / rules.relative_to(folder)).read_bytes()
    assert (folder / ".env").read_text() == environment


def test_export_config_adds_the_password_to_variables_of_ones_own(stack: StackCli, tmp_path: Path) -> None:
    """An .env without the password keeps its lines; one that has it is left alone."""
    environment = tmp_path / ".env"
    environment.write_text("JAEGER_TAG=2.14.0\nGF_SECURITY_ADMIN_PASSWORD=")
    assert stack("export-config", str(tmp_path)).code == 0
    lines = environment.read_text().splitlines()
    assert lines[0] == "JAEGER_TAG=2.14.0"
    assert lines[-1].startswith("GF_SECURITY_ADMIN_PASSWORD=")
    assert len(lines[-1]) > 40
    environment.write_text("GF_SECURITY_ADMIN_PASSWORD=mine\n")
    assert stack("export-config", str(tmp_path)).code == 0
    assert environment.read_text() == "GF_SECURITY_ADMIN_PASSWORD=mine\n"


def test_export_config_into_what_is_no_folder(stack: StackCli, tmp_path: Path) -> None:
    """A file in the way, of the folder or of one of the files, is named: exit 2."""
    (tmp_path / "file").write_text("")
    answer = stack("export-config", str(tmp_path / "file"))
    assert answer.code == 2
    assert str(tmp_path / "file") in answer.err
    (tmp_path / "taken" / "docker-compose.yml").mkdir(parents=True)
    answer = stack("export-config", str(tmp_path / "taken"))
    assert answer.code == 2
    assert "docker-compose.yml" in answer.err


def test_the_names_that_a_check_expects_are_those_of_the_files() -> None:
    """Rule groups and dashboards are read from the files as their own parsers read them."""
    rules = (_REPOSITORY / "collector-config" / "prometheus" / "rules").glob("*.yml")
    assert files.rule_groups() == {
        group["name"] for path in rules for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
    }
    dashboards = (_REPOSITORY / "collector-config" / "grafana" / "dashboards").glob("*.json")
    assert files.dashboard_uids() == {json.loads(path.read_text("utf-8"))["uid"] for path in dashboards}


def test_an_installed_package_has_the_files(tmp_path: Path) -> None:
    """Built as a wheel and unpacked far from the repository, the package writes the same files."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "docker-compose.yml"):
        shutil.copy(_REPOSITORY / name, source)
    for name in ("src", "collector-config", "docs"):
        shutil.copytree(_REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    done = subprocess.run(
        [sys.executable, "-m", "runspan.cli", "stack", "export-config", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert _written(tmp_path / "out") == _shipped() | {".env"}
