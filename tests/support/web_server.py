"""A small HTTP server with fixed answers, to stand in for a service or to be none."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from runspan.stack import files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

__all__ = ["GRAFANA", "JAEGER", "PROMETHEUS", "WebServer"]


def _prometheus(data: Any) -> dict[str, Any]:
    return {"status": "success", "data": data}


#: What Grafana answers where the stack's dashboards are provisioned.
GRAFANA: dict[str, Any] = {
    "/api/health": {"database": "ok", "version": "13.2.3"},
    "/api/search": [{"uid": uid, "type": "dash-db"} for uid in sorted(files.dashboard_uids())],
}
#: What Jaeger answers where there are no traces.
JAEGER: dict[str, Any] = {"/api/v3/services": {"services": []}}
#: What Prometheus answers where it has the stack's rules and no series.
PROMETHEUS: dict[str, Any] = {
    "/api/v1/status/buildinfo": _prometheus({"version": "3.13.5"}),
    "/api/v1/status/flags": _prometheus({"web.enable-otlp-receiver": "true", "enable-feature": "exemplar-storage"}),
    "/api/v1/rules": _prometheus({"groups": [{"name": name, "rules": []} for name in sorted(files.rule_groups())]}),
    "/api/v1/query": _prometheus({"result": []}),
}


class WebServer:
    """Serves on a loopback port.

    Args:
        answers: a JSON document, text or status code by path; every other path is not found.
        tls: PEM files of certificate and key; None: no TLS.
        credentials: the ``Authorization`` header that is asked for; None: none is.
        post_status: what every POST is answered with, and a page.
    """

    def __init__(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        tls: tuple[Path, Path] | None = None,
        credentials: str | None = None,
        post_status: int = 404,
    ) -> None:
        known = {} if answers is None else answers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            server_version = "TestServer"

            def do_GET(self) -> None:
                answer = known.get(self.path.partition("?")[0], 404)
                if credentials is not None and self.headers.get("Authorization") != credentials:
                    answer = 401
                if isinstance(answer, int):
                    self._reply(answer, b"<html></html>")
                elif isinstance(answer, str):
                    self._reply(200, answer.encode())
                else:
                    self._reply(200, json.dumps(answer).encode())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._reply(post_status, b"<html></html>")

            def _reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Log nothing."""

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing of a client that spoke something else."""
