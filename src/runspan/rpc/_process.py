"""A server in a process of its own, for the run of this one: its work takes nothing from the training's interpreter.

:func:`main` reads what to serve as one JSON line from stdin and answers with one: its address, or why it cannot serve.
It ends when stdin says so, or with the process that started it, when its subscribers had the rest.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from runspan.directory_frames import allow_many_files
from runspan.errors import ConfigError, RunspanError
from runspan.rpc._address import ServerTls

__all__ = ["ProcessOptions", "ServerProcess"]

#: With this process's path, which a program may have changed by itself.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from runspan.rpc._process import main; main()"
_START_S = 60.0
_KILL_AFTER_S = 3.0
#: How long the subscribers may take for the rest when the training is gone.
_LAST_DRAIN_S = 5.0
_PARENT_POLL_S = 1.0


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to serve, and how; see :func:`runspan.rpc.serve`.

    Attributes:
        directory: the run directory.
        address: where.
        token: what clients must show; not among the process's arguments, which others can read.
        tls: paths of certificate, key and client authorities.
        max_subscribers: how many clients may subscribe at once.
        interval_s: seconds between two updates.
    """

    directory: str
    address: str
    token: str | None
    tls: tuple[str, str, str | None] | None
    max_subscribers: int
    interval_s: float


class _Answer(msgspec.Struct, frozen=True):
    """What the process says of itself: where it answers, or why it does not."""

    address: str | None = None
    error: str | None = None


class ServerProcess:
    """A server that answers from a process of its own until it is closed.

    Leaving its ``with`` block holds a training up no longer than ``patience_s``: what is not through then is killed.

    Args:
        options: what it serves.
        patience_s: how long leaving the block may take.

    Raises:
        ConfigError: it cannot serve; the message says why.
    """

    def __init__(self, options: ProcessOptions, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._pid = os.getpid()
        self._closing = threading.Lock()
        # Nothing of this process's output stays open in it: who waits for the end of that waits for this one alone.
        self._process = subprocess.Popen(  # noqa: S603 - this program's own interpreter
            [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        )
        try:
            self.address = self._begun(options)
        except BaseException:
            self._end(0.0, _KILL_AFTER_S)
            raise
        atexit.register(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close(self._patience_s, self._patience_s)

    def close(self, drain_s: float = 5.0) -> None:
        """Shut down, see :meth:`runspan.rpc.DashboardServer.close`."""
        self._close(drain_s, drain_s + _KILL_AFTER_S)

    def _close(self, drain_s: float, kill_after_s: float) -> None:
        if os.getpid() != self._pid:
            return
        with self._closing:
            if self._process.poll() is None or not _input_of(self._process).closed:
                self._end(drain_s, kill_after_s)
        atexit.unregister(self._at_exit)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server has ended, and return whether it has."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _begun(self, options: ProcessOptions) -> str:
        with suppress(BrokenPipeError):
            _input_of(self._process).write(msgspec.json.encode(options) + b"\n")
            _input_of(self._process).flush()
        output = self._process.stdout
        line = b""
        if output is not None:
            poll = select.poll()  # unlike select(), for a training with any number of open files
            poll.register(output, select.POLLIN)
            if poll.poll(_START_S * 1_000):
                line = output.readline()
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except msgspec.DecodeError as error:
            raise ConfigError("the dashboard's server process did not start; `runspan serve` may say why") from error
        if answer.address is None:
            raise ConfigError(answer.error or "the dashboard's server process cannot serve")
        return answer.address

    def _end(self, drain_s: float, kill_after_s: float) -> None:
        with suppress(OSError, ValueError):
            _input_of(self._process).write(b"%f\n" % drain_s)
            _input_of(self._process).close()
        try:
            self._process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _at_exit(self) -> None:
        """Let the subscribers have the rest, without waiting for them."""
        if os.getpid() == self._pid:
            with suppress(OSError, ValueError):
                _input_of(self._process).write(b"%f\n" % _LAST_DRAIN_S)
                _input_of(self._process).close()


def _input_of(process: subprocess.Popen[bytes]) -> Any:
    if process.stdin is None:
        raise AssertionError("stdin is a pipe")
    return process.stdin


def main() -> None:
    """Serve what stdin says until it says that it is enough."""
    from runspan.rpc.server import serve  # noqa: PLC0415 - it starts this module

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training, which then closes this
    allow_many_files()
    parent = os.getppid()
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=ProcessOptions)
    tls = None if options.tls is None else ServerTls(*options.tls)
    try:
        server = serve(
            Path(options.directory),
            options.address,
            token=options.token,
            tls=tls,
            max_subscribers=options.max_subscribers,
            interval_s=options.interval_s,
        )
    except RunspanError as error:
        _say(_Answer(error=str(error)))
        return
    _say(_Answer(address=server.address))
    drain_s = _LAST_DRAIN_S
    # A forked worker of the training may hold the other end of stdin beyond the training's own end.
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], _PARENT_POLL_S)[0]:
            with suppress(ValueError):
                drain_s = float(sys.stdin.buffer.readline() or _LAST_DRAIN_S)
            break
    server.close(drain_s)


def _say(answer: _Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.flush()
