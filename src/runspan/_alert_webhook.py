"""Posting alerts to a URL: from a bounded queue, on a thread of its own, with growing pauses between tries.

The whole URL of a webhook is a credential, so no message, log line or error shows any of it.
"""

from __future__ import annotations

import base64
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
from opentelemetry import context as otel_context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY

from runspan._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPMessage
    from typing import IO

    from runspan._alert_view import Alert

__all__ = ["PAYLOAD_SCHEMA", "AlertPayload", "Webhook", "payload_text"]

#: The version of :class:`AlertPayload`; a later one only adds fields, or has another number.
PAYLOAD_SCHEMA = "runspan.alert/1"

#: Alerts that may wait; the newest ones are lost beyond it.
_MAX_WAITING = 100
_TIMEOUT_S = 10.0
#: Seconds until the next try, the first four times; after the fifth failure the alert is lost.
_BACK_OFF_S = (1.0, 2.0, 4.0, 8.0)
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500


class AlertPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON document that a webhook gets, by POST.

    ``text`` is the one line that chat programs show.

    Attributes:
        schema: ``runspan.alert/1``.
        text: ``run <id>, rank <n>: <title>: <detail>``.
        title: what the alert says.
        detail: more of it.
        level: info, warning, error or critical.
        rule: the rule that fired; ``user`` for the training program's own.
        time_unix_nano: when, ns since the epoch.
        run_id: the run's id.
        experiment_id: its experiment's.
        name: the run's display name; left out without one.
        trace_id: the run's trace, lower-case hex; left out where tracing is off.
        rank: the rank that raised it.
        world_size: how many there are.
        attempt: the rank's attempt, from 0.
        host: its machine.
    """

    # No default: a field with one would be left out.
    schema: str
    text: str
    title: str
    detail: str
    level: str
    rule: str
    time_unix_nano: int
    run_id: str
    experiment_id: str
    rank: int
    world_size: int
    attempt: int
    host: str
    name: str | None = None
    trace_id: str | None = None


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: a redirected POST would become a GET that says nothing, or go where nobody meant it to."""

    def redirect_request(  # noqa: PLR0917 - the library's signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """Return that there is no request to go on with."""


class Webhook:
    """Posts alerts. Nothing here raises, and only :meth:`close` waits.

    Certificates and proxies are those of the system and of the environment (``SSL_CERT_FILE``, ``HTTPS_PROXY``).

    Args:
        url: an http or https URL; a user name and password in it become a header.
        lose: called with a reason and a number when alerts are lost.
        warn: called with a line for people, the first time that something goes wrong.
        back_off_s: seconds before each further try.
    """

    def __init__(
        self,
        url: str,
        *,
        lose: Callable[[str, int], None],
        warn: Callable[[str], None],
        back_off_s: tuple[float, ...] = _BACK_OFF_S,
    ) -> None:
        self._request_parts = _split_credentials(url)
        self._lose = lose
        self._warn = warn
        self._back_off_s = back_off_s
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def post(self, payload: AlertPayload) -> None:
        """Queue an alert, without waiting."""
        body = msgspec.json.encode(payload)
        with self._changed:
            if self._is_closing:
                self._lose("shutdown_timeout", 1)
                return
            if len(self._waiting) >= _MAX_WAITING:
                self._lose("queue_full", 1)
                return
            self._waiting.append(body)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="runspan-webhook", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is ending
                    self._thread = None
            self._changed.notify_all()

    def close(self, deadline_monotonic_s: float) -> None:
        """Post what waits, each at most once more, until a deadline of ``time.monotonic()``; count the rest."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline_monotonic_s - time.monotonic()))
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
        if left:
            self._lose("shutdown_timeout", left)

    def _run(self) -> None:
        # Instrumented HTTP libraries of the host program would put the URL into a span.
        otel_context.attach(otel_context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        opener = urllib.request.build_opener(_RefuseRedirects())
        while (body := self._next()) is not None:
            lost_as = self._deliver(opener, body)
            with self._changed:
                # Whoever closes may have given it up and counted it meanwhile.
                is_ours = bool(self._waiting) and self._waiting[0] is body
                if is_ours:
                    self._waiting.popleft()
            if is_ours and lost_as is not None:
                self._lose(lost_as, 1)

    def _next(self) -> bytes | None:
        """Return the oldest alert that waits, once there is one; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._is_closing:
                    return None
                self._changed.wait()
            return self._waiting[0]

    def _deliver(self, opener: urllib.request.OpenerDirector, body: bytes) -> str | None:
        """Post one alert, several times if need be; return why it was lost, None when it was not."""
        for pause_s in (*self._back_off_s, None):
            problem, is_final = self._try(opener, body)
            if problem is None:
                return None
            self._warn(f"the alert webhook does not take alerts ({problem}); what is lost is counted")
            if is_final:
                return "refused"
            if pause_s is None:
                break
            with self._changed:
                if self._is_closing or self._changed.wait_for(lambda: self._is_closing, pause_s):
                    break
        return "unavailable"

    def _try(self, opener: urllib.request.OpenerDirector, body: bytes) -> tuple[str | None, bool]:
        """Post once; return what went wrong, and whether it would again."""
        url, authorization = self._request_parts
        headers = {"Content-Type": "application/json", "User-Agent": f"runspan/{__version__}"}
        if authorization is not None:
            headers["Authorization"] = authorization
        try:
            request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - http and https alone
            with opener.open(request, timeout=_TIMEOUT_S):
                return None, False
        except urllib.error.HTTPError as error:
            error.close()
            is_final = error.code < _SERVER_ERRORS and error.code != _TOO_MANY_REQUESTS
            return f"HTTP status {error.code}", is_final
        except urllib.error.URLError as error:
            return type(error.reason).__name__, False
        except Exception as error:  # noqa: BLE001 - a URL that is none, a server that speaks no HTTP, a proxy's error
            return type(error).__name__, False


def _split_credentials(url: str) -> tuple[str, str | None]:
    """Return a URL without user name and password, and the header that carries them."""
    parts = urlsplit(url)
    user_info, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    encoded = base64.b64encode(unquote(user_info).encode()).decode("ascii")
    return urlunsplit(parts._replace(netloc=host)), f"Basic {encoded}"


def payload_text(run_id: str, rank: int, alert: Alert) -> str:
    """Return the one line of an alert that chat programs show."""
    said = f"{alert.title}: {alert.text}" if alert.text else alert.title
    return f"run {run_id}, rank {rank}: {said}"
