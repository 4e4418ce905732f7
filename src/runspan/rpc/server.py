"""The server of the dashboard service."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import grpc

from runspan.errors import ConfigError, MissingExtraError
from runspan.rpc._address import DEFAULT_ADDRESS, MAX_MESSAGE_BYTES, Address, checked_token
from runspan.rpc._guard import MAX_OTHER_CALLS, DaemonExecutor, Guard, Reaper
from runspan.rpc._process import ProcessOptions, ServerProcess
from runspan.rpc._servicer import SERVICE, SUBSCRIBE, Servicer
from runspan.rpc._sources import live_run, runs_of

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.rpc._address import ServerTls
    from runspan.rpc._sources import Runs
    from runspan.run import Run
    from runspan.storage.base import ExperimentStorage

__all__ = ["DEFAULT_MAX_SUBSCRIBERS", "DashboardServer", "serve"]

_LOGGER = logging.getLogger("runspan")

DEFAULT_MAX_SUBSCRIBERS = 32
_MAX_SUBSCRIBERS = 1_000
_LONGEST_INTERVAL_S = 3_600
#: Requests are small; a resume token has some bytes a rank.
_MAX_REQUEST_BYTES = 1 << 20
#: How long the subscribers of a server whose process ends may take for the last update.
_EXIT_DRAIN_S = 1.0
_DRAIN_POLL_S = 0.02
#: ``grpc.health.v1.HealthCheckResponse.SERVING``, whose module is in an extra.
_SERVING = 1

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # two servers on one port would each get some of the calls
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A client that vanished without a word is noticed, and one that knocks every second is sent away.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 128),
)


def serve(
    target: Run | ExperimentStorage | str | Path,
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    tls: ServerTls | None = None,
    max_subscribers: int = DEFAULT_MAX_SUBSCRIBERS,
    trace_dir: Path | None = None,
    interval_s: float = 1.0,
) -> DashboardServer | ServerProcess:
    """Serve a live run, the runs of a storage, or a run directory over gRPC.

    A live run is served from a process of its own, which reads its files: the training's interpreter has no part in it,
    and may fork; leaving its ``with`` block takes at most the run's ``shutdown_timeout_s``. All else, and a run without
    files, is served by threads of this process.

    Args:
        target: what is shown. Of a run with files and of a run directory all ranks are.
        address: ``HOST:PORT``; port 0 takes any free one.
        token: what clients must show; 16 or more characters.
        tls: the server's certificate and key.
        max_subscribers: how many clients may subscribe at once, 1 to 1,000.
        trace_dir: for a storage: the folder that holds the run directories, from which runs are then shown.
        interval_s: seconds between two updates of a subscriber.

    Raises:
        ConfigError: an argument cannot be used; the address is in use, or does not resolve; or it is reached from
            beyond this machine, and there is neither TLS nor a token.
        MissingExtraError: the extra ``rpc`` is not installed.
        TraceFormatError: the path is of no run directory.
    """
    where = Address.parse(address, may_be_any_port=True)
    if not 1 <= max_subscribers <= _MAX_SUBSCRIBERS:
        raise ConfigError(f"max_subscribers={max_subscribers} cannot be used: it takes 1 to {_MAX_SUBSCRIBERS}")
    if not 0 < interval_s <= _LONGEST_INTERVAL_S:
        raise ConfigError(
            f"interval_s={interval_s} cannot be used: it takes seconds above 0, at most {_LONGEST_INTERVAL_S:,}"
        )
    token = checked_token(token)
    is_readable = not where.is_loopback() and tls is None
    if is_readable and token is None:
        raise ConfigError(
            f"{where} is reached from beyond this machine: give a TLS certificate and key, or a token, or serve on"
            " 127.0.0.1"
        )
    _extras()
    run = live_run(target)
    server: DashboardServer | ServerProcess
    if run is not None:
        server = ServerProcess(
            ProcessOptions(
                directory=str(run.directory),
                address=str(where),
                token=token,
                tls=None if tls is None else tls.paths(),
                max_subscribers=max_subscribers,
                interval_s=interval_s,
            ),
            patience_s=run.tracing_config.shutdown_timeout_s,
        )
    else:
        runs = runs_of(target, trace_dir=trace_dir, interval_s=interval_s)
        try:
            server = DashboardServer(runs, where, token=token, tls=tls, max_subscribers=max_subscribers)
        except BaseException:
            runs.close()
            raise
    if is_readable:
        _LOGGER.warning("serving on %s without TLS: token and metrics can be read on the way", server.address)
    return server


class DashboardServer:
    """A server that answers until it is closed; made by :func:`serve`.

    Args:
        runs: what it shows.
        address: where.
        token: what clients must show; None: nothing.
        tls: its certificate and key; None: plain text.
        max_subscribers: how many clients may subscribe at once.
    """

    def __init__(
        self, runs: Runs, address: Address, *, token: str | None, tls: ServerTls | None, max_subscribers: int
    ) -> None:
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._closing = threading.Lock()
        self._servicer = Servicer(runs)
        health, reflection = _extras()
        self._health = health.HealthServicer()
        self._reaper = Reaper()
        self._guard = Guard(token, SUBSCRIBE, max_subscribers, self._reaper)
        calls = max_subscribers + MAX_OTHER_CALLS
        # More threads than calls that are let in, so that one too many is told so.
        self._server = grpc.server(
            DaemonExecutor(calls + MAX_OTHER_CALLS),
            handlers=(self._servicer.handler(),),
            interceptors=(self._guard,),
            options=_OPTIONS,
            maximum_concurrent_rpcs=calls + MAX_OTHER_CALLS,
        )
        _add_health(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self._port = self._bind(address, tls)
        self._host = address.host
        for name in ("", SERVICE):
            self._health.set(name, _SERVING)
        self._server.start()
        atexit.register(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where it answers, ``HOST:PORT``."""
        return str(Address(self._host, self._port))

    @property
    def subscriber_count(self) -> int:
        """How many clients subscribe."""
        return self._guard.subscriber_count

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server was closed, and return whether it was."""
        return self._closed.wait(timeout_s)

    def close(self, drain_s: float = 5.0) -> None:
        """Shut down: health checks say NOT_SERVING, subscribers get what was written until now, then all ends.

        May be called twice; does nothing in a forked child.

        Args:
            drain_s: seconds that subscribers may take for their last update.
        """
        if os.getpid() != self._pid:
            return
        with self._closing:
            if self._closed.is_set():
                return
            self._health.enter_graceful_shutdown()
            self._servicer.drain()
            deadline_s = time.monotonic() + drain_s
            while self._guard.subscriber_count and time.monotonic() < deadline_s:
                time.sleep(_DRAIN_POLL_S)
            self._server.stop(None).wait(_EXIT_DRAIN_S)
            self._reaper.close()
            self._closed.set()
        atexit.unregister(self._at_exit)

    def _bind(self, address: Address, tls: ServerTls | None) -> int:
        try:
            if tls is None:
                port: int = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), tls.credentials())
        except RuntimeError as error:
            self._reaper.close()
            files = "" if tls is None else ", or the TLS files are no PEM, or certificate and key no pair"
            raise ConfigError(
                f"cannot serve on {address}: it is in use, or no address of this machine{files}; port 0 takes any free"
                " port"
            ) from error
        return port

    def _at_exit(self) -> None:
        self.close(_EXIT_DRAIN_S)


def _add_health(servicer: Any, server: grpc.Server) -> None:
    from grpc_health.v1 import health_pb2_grpc  # noqa: PLC0415 - an extra

    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)


def _extras() -> tuple[Any, Any]:
    try:
        from grpc_health.v1 import health  # noqa: PLC0415 - an extra
        from grpc_reflection.v1alpha import reflection  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("serving a dashboard", "rpc") from error
    return health, reflection
