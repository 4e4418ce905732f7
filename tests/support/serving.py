"""``runspan serve`` as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Self

import psutil

from support.cli import Answer, clean_environ

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ServeProcess"]

_WAIT_S = 60


class ServeProcess:
    """A server that answers, ended with SIGTERM when the block is left.

    Args:
        root: the root folder.
        arguments: what ``runspan serve`` is given; it takes any free port unless they name an address.
        variables: what its environment has beside the basics.
    """

    def __init__(self, root: Path, *arguments: str, **variables: str) -> None:
        place = () if "--address" in arguments else ("--address", "127.0.0.1:0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runspan.cli", "serve", *arguments, *place, "--json"],
            env=clean_environ(root, **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self.process.stdout is None:
            raise AssertionError("stdout is a pipe")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {self.end(signal.SIGTERM)}")
        self.address: str = json.loads(line)["address"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end(signal.SIGTERM)

    @property
    def memory_bytes(self) -> int:
        """The memory that the process has in hand."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def end(self, signal_number: signal.Signals) -> Answer:
        """End it by a signal, if it has not ended, and return how it ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        out, err = self.process.communicate(timeout=_WAIT_S)
        return Answer(self.process.returncode, out, err)
