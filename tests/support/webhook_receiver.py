"""A receiver of alerts: a web server that keeps what is posted to it; as a program it prints each body as a line."""

from __future__ import annotations

import json
import queue
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = ["Post", "WebhookReceiver"]


class Post(NamedTuple):
    """One request: its path, its headers by lower-case name, and its body."""

    path: str
    headers: dict[str, str]
    document: dict[str, Any]


class WebhookReceiver:
    """Listens on a loopback port.

    Args:
        statuses: what the first requests are answered with; all later ones with 204.
        tls: PEM files of certificate and key; None: no TLS.
    """

    def __init__(self, statuses: Sequence[int] = (), *, tls: tuple[Path, Path] | None = None) -> None:
        self.posts: queue.SimpleQueue[Post] = queue.SimpleQueue()
        #: Requests wait for it before they are answered.
        self.may_answer = threading.Event()
        self.may_answer.set()
        posts, may_answer, left = self.posts, self.may_answer, list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                posts.put(Post(self.path, {name.lower(): value for name, value in self.headers.items()}, document))
                may_answer.wait(30)
                status = left.pop(0) if left else 204
                self.send_response(status)
                if status in {301, 302, 307}:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                posts.put(Post(self.path, {}, {"redirected": True}))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self.port}/hooks/hunter2"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next_post(self) -> Post:
        """Wait for the next request.

        Raises:
            queue.Empty: none came.
        """
        return self.posts.get(timeout=20)


if __name__ == "__main__":
    with WebhookReceiver() as receiver:
        sys.stdout.write(f"{receiver.url}\n")
        sys.stdout.flush()
        while True:
            sys.stdout.write(json.dumps(receiver.posts.get().document) + "\n")
            sys.stdout.flush()
