from __future__ import annotations

import logging
import shutil
import subprocess
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import pytest

from runspan.errors import ConfigError
from runspan.telemetry.exporter import METRICS, TRACES
from support.exporting import ended_step, start_export
from support.otlp_receiver import BlackHole, Faults, OtlpReceiver, endpoint_of, refused_port, until

if TYPE_CHECKING:
    from pathlib import Path

_PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
_UNAVAILABLE = {"grpc": "UNAVAILABLE", "http/protobuf": "503"}
_EXHAUSTED = {"grpc": "RESOURCE_EXHAUSTED", "http/protobuf": "429"}
_UNAUTHENTICATED = {"grpc": "UNAUTHENTICATED", "http/protobuf": "401"}


def _lost(dropped: dict[tuple[str, str], int], signal: str) -> int:
    return sum(count for (lost_signal, _), count in dropped.items() if lost_signal == signal)


@_PROTOCOLS
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "call in flight"])
def test_a_black_hole_holds_up_no_longer_than_allowed(
    protocol: str, busy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 5: a receiver that accepts and never answers delays the end by the timeout, whatever was in flight."""
    with BlackHole() as hole, caplog.at_level(logging.WARNING, "runspan"):
        export = start_export(endpoint_of(protocol, hole.port), endpoint_of(protocol, hole.port, "metrics"))
        export.end_spans(600 if busy else 3)
        if busy:
            time.sleep(0.2)
        assert export.drain(0.6) < 0.6 + 0.2
        assert export.pipeline.exported == {TRACES: 0, METRICS: 0}
        dropped = dict(export.pipeline.dropped)
        assert dropped[TRACES, "shutdown_timeout"] == (600 if busy else 3)
        assert dropped[METRICS, "shutdown_timeout"] > 0
        assert until(lambda: caplog.records)  # the abandoned call may end a moment after the drain
        assert len(caplog.records) == 1


@_PROTOCOLS
def test_a_refused_connection_is_told_once_and_counted(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """Case 5: nobody listening costs one warning and at most the timeout, and everything is counted as lost."""
    port = refused_port()
    with caplog.at_level(logging.WARNING, "runspan"):
        export = start_export(
            endpoint_of(protocol, port),
            endpoint_of(protocol, port, "metrics"),
            metric_interval_s=0.1,
            label="run job-7, rank 2",
        )
        for _ in range(3):
            export.end_spans(5)
            export.pipeline.flush_soon()
            time.sleep(0.1)
        assert export.drain(0.5) < 0.5 + 0.2
    assert _lost(dict(export.pipeline.dropped), TRACES) == 15
    (told,) = caplog.messages
    assert told.startswith("run job-7, rank 2: ")
    assert f"127.0.0.1:{port}" in told


@_PROTOCOLS
def test_an_outage_is_survived(protocol: str) -> None:
    """Spans of a time without receiver are kept and arrive when it comes, without a drain."""
    port = refused_port()
    export = start_export(endpoint_of(protocol, port))
    export.end_spans(7)
    export.pipeline.flush_soon()
    time.sleep(0.2)
    with OtlpReceiver(protocol, port=port) as receiver:
        assert until(lambda: len(receiver.spans) == 7, timeout_s=8)
        export.drain()
    assert export.pipeline.exported[TRACES] == 7
    assert export.pipeline.dropped == {}


@_PROTOCOLS
def test_buffers_stay_small_while_the_receiver_is_away(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """Case 5: durations and observations are folded also while a request waits to be sent again."""
    with caplog.at_level(logging.WARNING, "runspan"):
        export = start_export(None, endpoint_of(protocol, refused_port(), "metrics"), metric_interval_s=0.05)
        assert until(lambda: bool(caplog.records), timeout_s=5)
        for _ in range(3):
            export.metrics.ended_steps.append(ended_step(1_000_000))
            export.metrics.observations.append(("latency", "s", 0.1))
            assert until(lambda: not export.metrics.ended_steps and not export.metrics.observations, timeout_s=5)
    export.drain(0.1)


@_PROTOCOLS
def test_retryable_answers_are_retried(protocol: str) -> None:
    """A receiver that is unavailable twice gets the same spans a third time, also within the drain."""
    faults = Faults(answers=deque([_UNAVAILABLE[protocol]] * 2))
    with OtlpReceiver(protocol, faults=faults) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(4)
        assert export.drain(5.0) < 2.0
        assert len(receiver.spans) == 4
        assert len(receiver.request_sizes) == 3
        assert export.pipeline.dropped == {}


@_PROTOCOLS
def test_the_receivers_delay_is_honoured(protocol: str) -> None:
    """HTTP's Retry-After and gRPC's RetryInfo are waited for; a delay beyond the time left ends the drain early."""
    faults = Faults(answers=deque([_EXHAUSTED[protocol]]), headers={"Retry-After": "1"})
    with OtlpReceiver(protocol, faults=faults) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(1)
        assert 0.9 < export.drain(5.0) < 3.0
        assert len(receiver.spans) == 1
        faults.answers.append(_UNAVAILABLE[protocol])
        faults.headers["Retry-After"] = "3600"
        export = start_export(receiver.endpoint())
        export.end_spans(1)
        assert export.drain(5.0) < 1.0
        assert dict(export.pipeline.dropped) == {(TRACES, "shutdown_timeout"): 1}


@_PROTOCOLS
def test_a_refusal_is_final(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that says no is not asked again; the spans are counted and one warning says why."""
    faults = Faults(answers=deque([_UNAUTHENTICATED[protocol]]))
    with OtlpReceiver(protocol, faults=faults) as receiver, caplog.at_level(logging.WARNING, "runspan"):
        export = start_export(receiver.endpoint(headers={"authorization": "Bearer s3cret"}))
        export.end_spans(4)
        export.drain()
        assert receiver.spans == []
        assert len(receiver.request_sizes) == 1
        assert dict(export.pipeline.dropped) == {(TRACES, "refused"): 4}
    assert len(caplog.records) == 1
    assert "s3cret" not in caplog.text


@_PROTOCOLS
def test_partly_rejected_items_are_counted(protocol: str) -> None:
    """Items that an accepted request reports as rejected are not counted as exported."""
    with OtlpReceiver(protocol, faults=Faults(rejected=3)) as receiver:
        export = start_export(receiver.endpoint(), receiver.endpoint("metrics"))
        export.end_spans(10)
        export.drain()
        assert export.pipeline.exported[TRACES] == 7
        assert export.pipeline.dropped[TRACES, "rejected"] == 3
        assert export.pipeline.dropped[METRICS, "rejected"] == 3


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate for localhost, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not installed")
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files


@_PROTOCOLS
def test_tls_is_spoken_and_checked(
    protocol: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the receiver's authority spans arrive, whatever REQUESTS_CA_BUNDLE says; with the system's none does."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    with OtlpReceiver(protocol, tls=certificate) as receiver:
        export = start_export(receiver.endpoint())
        export.end_spans(3)
        export.drain()
        assert len(receiver.spans) == 3
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
        export = start_export(receiver.endpoint(certificate=None))
        export.end_spans(3)
        export.drain(0.3)
        assert len(receiver.spans) == 3


def test_an_unreadable_certificate_is_a_clear_error(tmp_path: Path) -> None:
    """A certificate that is not there, or is none, is named when the export starts, not when it fails."""
    missing = tmp_path / "missing.pem"
    with pytest.raises(ConfigError, match=str(missing)):
        start_export(endpoint_of("grpc", 1, insecure=False, certificate=str(missing)))


def test_netrc_does_not_replace_the_given_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authorization header that was configured is sent, not what ~/.netrc holds for the host."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with OtlpReceiver("http/protobuf") as receiver:
        export = start_export(receiver.endpoint(headers={"authorization": "Bearer mine"}))
        export.end_spans(1)
        export.drain()
        assert receiver.last_headers["authorization"] == "Bearer mine"


def test_credentials_in_an_endpoint_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names host and port, and nothing of user, password, path or query."""
    url = f"http://user:hunter2@127.0.0.1:{refused_port()}/v1/traces?token=s3cret"
    with caplog.at_level(logging.WARNING, "runspan"):
        export = start_export(endpoint_of("http/protobuf", 1, url=url))
        export.end_spans(1)
        export.drain(0.2)
    assert "127.0.0.1" in caplog.text
    assert "hunter2" not in caplog.text
    assert "s3cret" not in caplog.text


@_PROTOCOLS
def test_a_second_drain_returns_at_once(protocol: str) -> None:
    """Ending twice, and from two threads at once, waits no longer than ending once."""
    with BlackHole() as hole:
        export = start_export(endpoint_of(protocol, hole.port))
        export.end_spans(1)
        other = threading.Thread(target=export.drain, args=(0.4,))
        other.start()
        assert export.drain(0.4) < 0.6
        other.join()
        assert export.drain(5.0) < 0.1
        assert dict(export.pipeline.dropped) == {(TRACES, "shutdown_timeout"): 1}
    export.end_spans(2)
    assert dict(export.pipeline.dropped) == {(TRACES, "shutdown_timeout"): 1, (TRACES, "finished"): 2}


def test_ended_exports_leave_no_thread() -> None:
    """After a drain the export's threads end: a process may open run after run."""
    with OtlpReceiver() as receiver:
        before = threading.active_count()
        for _ in range(3):
            export = start_export(receiver.endpoint(), receiver.endpoint("metrics"))
            export.end_spans(1)
            export.drain()
        assert until(lambda: not [t for t in threading.enumerate() if t.name.startswith("runspan-export")])
        assert threading.active_count() <= before + 8  # the receiver's own pool
