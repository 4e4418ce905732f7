"""The real Jaeger, Prometheus and collector, started with the shipped configuration on free loopback ports.

Command lines come from docker-compose.yml and settings from collector-config/; only endpoints and folders differ. Each
program can be stopped, killed and started again on the same ports and data.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests
import yaml

from stack.build import MissingToolError, program
from support.stack_clients import JaegerClient, PrometheusClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "CONFIG_FOLDER",
    "Collector",
    "Jaeger",
    "Program",
    "Prometheus",
    "Stack",
    "compose_options",
    "free_port",
    "program_or_skip",
    "running_stack",
]

_REPOSITORY = Path(__file__).resolve().parents[2]
#: The configuration that ships.
CONFIG_FOLDER = _REPOSITORY / "collector-config"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05
_OK = 200
#: Below the range that Linux takes ports of outgoing connections from: a stopped program finds its port free again.
_PORTS = range(20_000, 32_000)
_LOG_TAIL_BYTES = 3_000


def program_or_skip(name: str) -> Path:
    """Return the path of a program, built if need be.

    Without Go the test is skipped, or fails where ``RUNSPAN_REQUIRE_STACK=1`` says that nothing may be missing.
    """
    try:
        return program(name, os.environ)
    except MissingToolError as error:
        if os.environ.get("RUNSPAN_REQUIRE_STACK") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


def free_port() -> int:
    """Return a loopback port that nobody listens on, and that stays free while its program is stopped."""
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port from {_PORTS.start} to {_PORTS.stop}")


def compose_options(service: str) -> list[str]:
    """Return the command line options that docker-compose.yml gives a service."""
    compose = yaml.safe_load((_REPOSITORY / "docker-compose.yml").read_text("utf-8"))
    return list(compose["services"][service]["command"])


class Program:
    """A program that runs in the background.

    Args:
        command: its command line.
        folder: its working directory, which also gets its log.
        ready_url: answers 200 once it is ready.
        environ: its environment, beside this process's.
    """

    def __init__(self, command: Sequence[str], folder: Path, ready_url: str, environ: Mapping[str, str]) -> None:
        self._command = list(command)
        self._folder = folder
        self._ready_url = ready_url
        self._environ = dict(environ)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._running().pid

    @property
    def log(self) -> str:
        """What it printed, over all its starts."""
        path = self._folder / "log"
        return path.read_text("utf-8", errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            RuntimeError: it ended, or was not ready in time; with the end of its log.
        """
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**os.environ, **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal is for pytest, which then stops it.
                start_new_session=True,
            )
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._is_ready():
            code = self._process.poll()
            if code is None and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
                continue
            what = "was not ready in time" if code is None else f"ended with exit code {code}"
            self.kill()
            raise RuntimeError(f"{' '.join(self._command)} {what}:\n{self.log[-_LOG_TAIL_BYTES:]}")

    def stop(self) -> None:
        """End it by SIGTERM and wait for it; by SIGKILL where that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it by SIGKILL."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def pause(self) -> None:
        """Stop it by SIGSTOP: it accepts connections and answers nothing."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        self._running().send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self._command[0]} is not running")
        return self._process

    def _is_ready(self) -> bool:
        try:
            return requests.get(self._ready_url, timeout=1).status_code == _OK
        except requests.RequestException:
            return False


class Jaeger(Program):
    """Jaeger with ``collector-config/jaeger.yaml`` and Badger below its folder.

    Args:
        folder: its folder.
        config: another configuration file, for the variants.
        environ: more variables for it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Path = CONFIG_FOLDER / "jaeger.yaml",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        otlp, query, query_grpc, health, self.telemetry_port = (free_port() for _ in range(5))
        self.otlp_endpoint = f"127.0.0.1:{otlp}"
        self.url = f"http://127.0.0.1:{query}"
        self.query_grpc_endpoint = f"127.0.0.1:{query_grpc}"
        variables = {
            "JAEGER_OTLP_GRPC_ENDPOINT": self.otlp_endpoint,
            "JAEGER_QUERY_HTTP_ENDPOINT": f"127.0.0.1:{query}",
            "JAEGER_QUERY_GRPC_ENDPOINT": self.query_grpc_endpoint,
            "JAEGER_HEALTH_ENDPOINT": f"127.0.0.1:{health}",
            "JAEGER_DATA_DIRECTORY": str(folder / "badger"),
            "JAEGER_TELEMETRY_HOST": "127.0.0.1",
            "JAEGER_TELEMETRY_PORT": str(self.telemetry_port),
            **(environ or {}),
        }
        command = [str(program_or_skip("jaeger")), f"--config={config}"]
        super().__init__(command, folder, f"http://127.0.0.1:{health}/status", variables)
        self.client = JaegerClient(self.url)


class Prometheus(Program):
    """Prometheus with ``collector-config/prometheus/`` and its data below its folder.

    Its files have no variables, so endpoints are replaced in a copy of them.

    Args:
        folder: its folder.
        port: where it listens; None: a free one.
        targets: what stands in for the addresses that the shipped file scrapes, by address.
        edits: texts of ``prometheus.yml`` and of the rules to be replaced by others, such as an interval; each must
            occur.
        config_file: the file of ``collector-config/prometheus/`` that it reads.
        options: more command line options.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        targets: Mapping[str, str] | None = None,
        edits: Mapping[str, str] | None = None,
        config_file: str = "prometheus.yml",
        options: Sequence[str] = (),
    ) -> None:
        port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{port}"
        config = folder / "config"
        shutil.copytree(CONFIG_FOLDER / "prometheus", config, dirs_exist_ok=True)
        addresses = {"localhost:9090": f"127.0.0.1:{port}", **(targets or {})}
        #: The configuration it reads.
        self.config = config / config_file
        _edit([self.config], addresses)
        _edit([self.config, *sorted(config.glob("rules/*.yml"))], edits or {})
        replaced = ("--config.file=", "--storage.tsdb.path=")
        command = [
            str(program_or_skip("prometheus")),
            *(option for option in compose_options("prometheus") if not option.startswith(replaced)),
            f"--config.file={self.config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            *options,
        ]
        super().__init__(command, folder, f"{self.url}/-/ready", {})
        self.client = PrometheusClient(self.url)


class Collector(Program):
    """The collector with ``collector-config/collector.yaml`` and its queue below its folder.

    Args:
        folder: its folder.
        jaeger_endpoint: host and port that take its spans over OTLP/gRPC.
        prometheus_url: base URL of the Prometheus that takes its metrics.
        config: other configuration files, for the variants; a later one changes an earlier one.
        environ: more variables for it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        jaeger_endpoint: str = "127.0.0.1:9",
        prometheus_url: str = "http://127.0.0.1:9",
        config: Sequence[Path] = (CONFIG_FOLDER / "collector.yaml",),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        grpc, http, replay, health, self.telemetry_port = (free_port() for _ in range(5))
        self.grpc_endpoint = f"127.0.0.1:{grpc}"
        self.grpc_url = f"http://{self.grpc_endpoint}"
        self.http_url = f"http://127.0.0.1:{http}"
        #: Takes recorded runs, over gRPC.
        self.replay_url = f"http://127.0.0.1:{replay}"
        variables = {
            "COLLECTOR_OTLP_GRPC_ENDPOINT": f"127.0.0.1:{grpc}",
            "COLLECTOR_OTLP_HTTP_ENDPOINT": f"127.0.0.1:{http}",
            "COLLECTOR_REPLAY_GRPC_ENDPOINT": f"127.0.0.1:{replay}",
            "COLLECTOR_HEALTH_ENDPOINT": f"127.0.0.1:{health}",
            "COLLECTOR_QUEUE_DIRECTORY": str(folder / "queue"),
            "COLLECTOR_TELEMETRY_HOST": "127.0.0.1",
            "COLLECTOR_TELEMETRY_PORT": str(self.telemetry_port),
            "JAEGER_OTLP_ENDPOINT": jaeger_endpoint,
            "PROMETHEUS_OTLP_ENDPOINT": f"{prometheus_url}/api/v1/otlp",
            **(environ or {}),
        }
        options = [option for option in compose_options("collector") if not option.startswith("--config=")]
        command = [str(program_or_skip("otelcol")), *(f"--config={file}" for file in config), *options]
        super().__init__(command, folder, f"http://127.0.0.1:{health}/", variables)

    def telemetry(self) -> dict[str, float]:
        """Return its own metrics, summed over their labels."""
        answer = requests.get(f"http://127.0.0.1:{self.telemetry_port}/metrics", timeout=10)
        answer.raise_for_status()
        sums: dict[str, float] = {}
        for line in answer.text.splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name = series.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums


class Stack:
    """Jaeger, Prometheus and the collector between them and training; not started yet.

    Args:
        folder: gets a folder of each.
        edits: see :class:`Prometheus`.
    """

    def __init__(self, folder: Path, *, edits: Mapping[str, str] | None = None) -> None:
        prometheus_port = free_port()
        prometheus_url = f"http://127.0.0.1:{prometheus_port}"
        self.jaeger = Jaeger(folder / "jaeger")
        self.collector = Collector(
            folder / "collector", jaeger_endpoint=self.jaeger.otlp_endpoint, prometheus_url=prometheus_url
        )
        self.prometheus = Prometheus(
            folder / "prometheus",
            port=prometheus_port,
            targets={
                "collector:8888": f"127.0.0.1:{self.collector.telemetry_port}",
                "jaeger:8888": f"127.0.0.1:{self.jaeger.telemetry_port}",
            },
            edits=edits,
        )

    @property
    def otlp_url(self) -> str:
        """Where training sends to, over gRPC."""
        return self.collector.grpc_url

    @property
    def otlp_environ(self) -> dict[str, str]:
        """The variables by which a run ships here."""
        return {"RUNSPAN_OTLP_ENDPOINT": self.otlp_url, "RUNSPAN_OTLP_PROTOCOL": "grpc"}


@contextmanager
def running_stack(folder: Path, *, edits: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """Run a stack for the length of the block."""
    stack = Stack(folder, edits=edits)
    with ExitStack() as cleanup:
        for each in (stack.jaeger, stack.prometheus, stack.collector):
            # Before its start: a program that is not ready in time ends too.
            cleanup.callback(each.stop)
            each.start()
        yield stack


def _edit(files: Sequence[Path], replacements: Mapping[str, str]) -> None:
    """Replace texts in files.

    Raises:
        ValueError: one of the texts is in none of them.
    """
    texts = {file: file.read_text("utf-8") for file in files}
    for old, new in replacements.items():
        if not any(old in text for text in texts.values()):
            raise ValueError(f"{old!r} is in none of {', '.join(map(str, files))}")
        texts = {file: text.replace(old, new) for file, text in texts.items()}
    for file, text in texts.items():
        file.write_text(text, "utf-8")
