from __future__ import annotations

import socket
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest

from runspan._alert_webhook import AlertPayload, Webhook
from support.certificates import self_signed
from support.webhook_receiver import WebhookReceiver

if TYPE_CHECKING:
    from pathlib import Path

_PAYLOAD = AlertPayload(
    schema="runspan.alert/1",
    text="run r, rank 0: t: d",
    title="t",
    detail="d",
    level="warning",
    rule="user",
    time_unix_nano=5,
    run_id="r",
    experiment_id="e",
    rank=0,
    world_size=1,
    attempt=0,
    host="h",
)


class _Hook:
    """A webhook with what it has lost and said; its pauses between tries are short."""

    def __init__(self, url: str, back_off_s: tuple[float, ...] = (0.001, 0.001)) -> None:
        self.lost: Counter[str] = Counter()
        self.said: list[str] = []
        self._webhook = Webhook(url, lose=self._lose, warn=self.said.append, back_off_s=back_off_s)

    def post(self, title: str = "t") -> None:
        """Post an alert with a title."""
        self._webhook.post(msgspec.structs.replace(_PAYLOAD, title=title))

    def close(self, timeout_s: float = 20) -> None:
        """Let what waits be posted."""
        self._webhook.close(time.monotonic() + timeout_s)

    def _lose(self, reason: str, count: int) -> None:
        self.lost[reason] += count


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def test_an_alert_is_posted_as_json() -> None:
    """The document has every field that is documented, and nothing that is unknown."""
    with WebhookReceiver() as receiver:
        hook = _Hook(receiver.url)
        hook.post()
        post = receiver.next_post()
        hook.close()
    assert post.path == "/hooks/hunter2"
    assert post.headers["content-type"] == "application/json"
    assert post.headers["user-agent"].startswith("runspan/")
    assert post.document == {
        "schema": "runspan.alert/1",
        "text": "run r, rank 0: t: d",
        "title": "t",
        "detail": "d",
        "level": "warning",
        "rule": "user",
        "time_unix_nano": 5,
        "run_id": "r",
        "experiment_id": "e",
        "rank": 0,
        "world_size": 1,
        "attempt": 0,
        "host": "h",
    }
    assert (hook.lost, hook.said) == ({}, [])


@pytest.mark.parametrize("statuses", [[500, 503], [429, 502]])
def test_a_server_in_trouble_is_asked_again(statuses: list[int]) -> None:
    """Errors of the server and too many requests are tried again, and nothing is lost."""
    with WebhookReceiver(statuses) as receiver:
        hook = _Hook(receiver.url)
        hook.post()
        titles = [receiver.next_post().document["title"] for _ in range(3)]
        hook.close()
    assert titles == ["t"] * 3
    assert hook.lost == {}
    assert f"HTTP status {statuses[0]}" in hook.said[0]


@pytest.mark.parametrize("status", [400, 404, 302, 307])
def test_a_server_that_refuses_is_not_asked_again(status: int) -> None:
    """Such an alert is counted as lost and the next one is posted; a redirect is not followed."""
    with WebhookReceiver([status]) as receiver:
        hook = _Hook(receiver.url)
        hook.post("first")
        hook.post("second")
        titles = [receiver.next_post().document["title"] for _ in range(2)]
        hook.close()
        assert receiver.posts.empty()
    assert titles == ["first", "second"]
    assert hook.lost == {"refused": 1}


def test_nobody_listens() -> None:
    """After the last try the alert is counted as lost, and no message shows anything of the URL."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hook = _Hook(f"http://user:pw@127.0.0.1:{unused.getsockname()[1]}/hooks/hunter2")
        hook.post()
        hook.close()
    assert hook.lost == {"unavailable": 1}
    assert "ConnectionRefusedError" in hook.said[0]
    assert not [line for line in hook.said if "hunter2" in line or "pw" in line or "127.0.0.1" in line]


def test_posting_never_waits_and_a_full_queue_is_counted() -> None:
    """While the receiver does not answer, a hundred alerts wait and the rest are counted."""
    with WebhookReceiver() as receiver:
        receiver.may_answer.clear()
        hook = _Hook(receiver.url)
        hook.post()
        receiver.next_post()
        for _ in range(150):
            hook.post()
        assert hook.lost == {"queue_full": 51}
        receiver.may_answer.set()
        hook.close()
    assert hook.lost == {"queue_full": 51}


def test_closing_waits_no_longer_than_it_may() -> None:
    """What has not been answered by the deadline is counted as lost, once."""
    with WebhookReceiver() as receiver:
        receiver.may_answer.clear()
        hook = _Hook(receiver.url)
        for _ in range(3):
            hook.post()
        receiver.next_post()
        hook.close(0.0)
        assert hook.lost == {"shutdown_timeout": 3}
        hook.post()
        assert hook.lost == {"shutdown_timeout": 4}


def test_closing_ends_a_pause_between_tries() -> None:
    """A webhook that waits an hour until its next try closes at once, and counts the alert as lost."""
    with WebhookReceiver([500]) as receiver:
        hook = _Hook(receiver.url, back_off_s=(3600.0,))
        hook.post()
        receiver.next_post()
        hook.close()
    assert hook.lost == {"unavailable": 1}


def test_credentials_in_the_url_become_a_header() -> None:
    """A user name and password are sent as the standard says, percent-decoded."""
    with WebhookReceiver() as receiver:
        hook = _Hook(receiver.url.replace("//", "//user:p%40ss@"))
        hook.post()
        post = receiver.next_post()
        hook.close()
    assert post.headers["authorization"] == "Basic dXNlcjpwQHNz"
    assert post.headers["host"] == f"127.0.0.1:{receiver.port}"


def test_https_is_checked_against_the_trusted_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of a trusted authority is taken, one of an unknown authority is not."""
    certificate, key = self_signed(tmp_path, alternatives="IP:127.0.0.1")
    with WebhookReceiver(tls=(certificate, key)) as receiver:
        untrusting = _Hook(receiver.url)
        untrusting.post()
        untrusting.close()
        assert untrusting.lost == {"unavailable": 1}
        assert "SSLCertVerificationError" in untrusting.said[0]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        trusting = _Hook(receiver.url)
        trusting.post()
        assert receiver.next_post().document["title"] == "t"
        trusting.close()
    assert trusting.lost == {}
